// Gives kernels access to a rank's optimizer states, reduced gradients and parameters, wherever
// they live. The passes that visit them share this view: reduction, init, optimizer step, save,
// load.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/lowering/emitter.h"
#include "core/program/program.h"

namespace zeroplan {

// A piece of a rank's optimizer states, and its home. The pieces follow from the layout and the
// setup alone.
//
// The rank's part of a unit, its shard or a slice of it (core/program/layout.h), is cut into
// pieces: [0, h) offloaded (host or swap file), [h, end) on the device. offload_optimizer.ratio
// sets h over the whole model, last units first, because the backward pass finishes them first.
struct StatePiece {
  int unit;
  uint64_t begin, count;  // elements within the rank's part of the unit
  Home home;
  // False: the unit is not trained and has only parameters; `home` is their home.
  bool trainable = true;

  bool on_device() const { return home == Home::kDevice; }
};

// Pieces, and ranges that are converted through fp32, are cut at multiples of this many elements,
// so that they are whole blocks.
uint64_t StateAlign(const Program& program);

// By unit: the elements of the rank's part whose states are offloaded.
std::vector<uint64_t> OffloadedElements(const Program& program);

// The pieces in update order: the order in which the next forward pass uses the units, but
// persistent units before all others. Offloaded pieces have at most sub_group_elements. Pieces of
// units that are not trained are last, and small enough to pass through memory in fp32. `offloaded`
// is by unit.
std::vector<StatePiece> StatePieces(const Program& program, const std::vector<uint64_t>& offloaded);

// TakesStateSlot: the piece's states pass through a slot in host memory. TakesParamSlot: its new
// parameters do, on their way to `params`, which holds the rank's parameters of the unit.
bool TakesStateSlot(const StatePiece& piece);
bool TakesParamSlot(const StatePiece& piece, const Buffer& params);

// The form of master weights at one home.
enum class MasterForm : uint8_t {
  kOwn,    // in a buffer of their own
  kParam,  // the parameters are the masters and lie in the same memory: fp32 on the device, or 16
           // bits (MasterWeights::kParam) there or in host memory
  kHalf    // the upper half is the parameter, in the same memory; a buffer holds the lower half
};
// `params`: holds the rank's parameters of the unit.
MasterForm MasterFormOf(const PrecisionConfig& precision, const Buffer& params, Home home);

// The buffer of the rank's own parameters, by unit: a whole unit or its shard.
std::vector<BufferId> RankParams(const Program& program);

// A range of elements and the home of their reduced gradient.
struct GradRange {
  uint64_t begin, end;
  Ref home;  // null where the range is empty
};

class StateHomes {
 public:
  // REQUIRES: InsertStates has run. Keeps the reference; buffers may still be added to the program.
  explicit StateHomes(const Program& program);

  // All pieces in update order, and the trained ones, which are first.
  const std::vector<StatePiece>& pieces() const { return pieces_; }
  std::span<const StatePiece> trained() const { return {pieces_.data(), trained_}; }
  // False where nothing is updated: a program that evaluates or generates.
  bool has_moments() const { return has_moments_; }

  // The stream that kernels on the piece's states run on.
  static Stream KernelStream(const StatePiece& piece) {
    return piece.on_device() ? Stream::kCompute : Stream::kHost;
  }
  // The step state that kernels on the piece read.
  Ref StepStateOf(const StatePiece& piece) const;

  // Emits the instructions that bring the states within reach of kernels: none, or a read into the
  // piece's staging slot.
  void Fetch(Emitter& emit, size_t piece) const { Swap(emit, piece, false); }
  // Emits the instructions that write changed states back.
  void Store(Emitter& emit, size_t piece) const { Swap(emit, piece, true); }
  // The state after Fetch. The master may be the parameter itself, or the lower half. REQUIRES: the
  // piece is trained, or its master is the parameter.
  Ref StateRef(size_t piece, StateKind kind) const;
  // The master; for a piece that is not trained, a transient buffer, because parameters are
  // initialised, loaded and saved in fp32. The buffer is added to `program`, which must be the
  // view's program. Null if the master is in halves.
  Ref Master(Program& program, size_t piece) const;
  MasterForm FormOf(const StatePiece& piece) const;
  bool MasterIsParam(const StatePiece& piece) const { return FormOf(piece) == MasterForm::kParam; }
  // False where only 16-bit parameters are kept, as in a program that generates.
  bool HasMaster(const StatePiece& piece) const;

  uint64_t align() const { return StateAlign(p_); }
  // True if the state is kept in fp32.
  bool InFp32(const StatePiece& piece, StateKind kind) const;
  // StateFromFp32 emits the conversion of `state_fp32`, which KernelStream reaches, into the
  // elements [at, at + count) of a state that is not InFp32; StateToFp32 the reverse. REQUIRES: the
  // piece is trained, and `at` is a multiple of align().
  void StateFromFp32(Emitter& emit, size_t piece, StateKind kind, uint64_t at, uint64_t count,
                     const Ref& state_fp32) const;
  void StateToFp32(Emitter& emit, size_t piece, StateKind kind, uint64_t at, uint64_t count,
                   const Ref& state_fp32) const;
  // Emits the conversion of the master into new parameters. REQUIRES: MasterForm::kOwn.
  void ParamFromMaster(Emitter& emit, const StatePiece& piece, const Ref& master,
                       const Ref& target) const;

  // The reduced gradient of the piece, where its update reads it.
  Ref Grad(const StatePiece& piece) const;
  // The same on the device, where the reduction leaves it. REQUIRES: the piece is on the device, or
  // gradients are accumulated in place.
  Ref GradOnDevice(const StatePiece& piece) const;
  // Elements [begin, end) of the rank's GradShardElements, split by the home of their reduced
  // gradients: first host memory, then the device. REQUIRES: gradients are not accumulated in
  // place.
  std::array<GradRange, 2> GradHomes(int unit, uint64_t begin, uint64_t end) const;

  // The rank's parameters in the compute dtype, wherever they live.
  Ref Param(const StatePiece& piece) const;
  // ParamTarget: where a kernel must write the piece's new parameters; null unless the form is
  // kOwn. FinishParam emits the transfer from there to Param(). Parameters that the device updates
  // but that live elsewhere, and NF4 on its way to a file, pass through a transient buffer. It is
  // added to `program`, which must be the view's program.
  Ref ParamTarget(Program& program, size_t piece) const;
  void FinishParam(Emitter& emit, size_t piece, const Ref& target) const;
  // Emits the transfer that brings the parameters within reach of KernelStream, and returns where
  // they then are.
  Ref FetchParam(Emitter& emit, size_t piece) const;

  // Gathers (or broadcasts) the parameters that ranks hold but do not update, in the order in which
  // the forward pass uses them, in buckets of GatherBucketElements (at least one unit). Each bucket
  // is gathered over shard groups on the stream kReduce, so that gathers within a group need not
  // queue behind it, then within a group on kGather.
  enum class Gathered : uint8_t { kAll, kTrained };
  void GatherParams(Emitter& emit, Gathered which) const;

 private:
  using StateSlots = std::array<BufferId, kStateKinds.size()>;  // by StateKind
  BufferId At(Role role, int unit) const;
  size_t StateIndex(StateKind kind, Home home, int unit) const;  // into states_of_unit_
  void Swap(Emitter& emit, size_t piece, bool write) const;
  void GatherOver(Emitter& emit, Gathered which, Role role) const;
  // Elements [begin, begin+count) of the rank's part of a unit, in a buffer that holds whole units
  // or shards (then within the rank's part), or the rank's part from element `base` on.
  Ref Slice(BufferId buffer, uint64_t base, int unit, uint64_t begin, uint64_t count) const;

  const Program& p_;
  const std::vector<uint64_t> offloaded_;  // by unit
  const std::vector<StatePiece> pieces_;
  size_t trained_ = 0;
  bool has_moments_ = false;
  std::vector<BufferId> params_;            // by unit
  std::vector<BufferId> of_unit_;           // [role][unit]
  std::vector<BufferId> states_of_unit_;    // [kind][home][unit]
  std::vector<StateSlots> state_slots_of_;  // by piece
  std::vector<BufferId> param_slot_of_;     // by piece
};

}  // namespace zeroplan
