// How a kernel gets at each rank's optimizer states, reduced gradients and parameters, wherever
// they live. One view serves the passes that visit them: reduction, init, optimizer step, save,
// load.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/lowering/emitter.h"
#include "core/program/program.h"

namespace zeroplan {

// How a rank's optimizer states are cut into pieces, and where each of them lives. Follows from the
// layout and the setup alone.
//
// What a rank owns of a unit, its shard or a slice of that (core/program/layout.h), is cut into
// pieces: [0, h) offloaded (host or swap file), [h, end) on the device. h follows
// offload_optimizer.ratio over the whole model, last units first, as the backward pass finishes
// them first.
struct StatePiece {
  int unit;
  uint64_t begin, count;  // elements within what the rank owns
  Home home;
  // False: of a unit that is not trained, which has parameters alone. `home` says where these are.
  bool trainable = true;

  bool on_device() const { return home == Home::kDevice; }
};

// Pieces, and what passes through fp32, are cut at multiples of so many elements: whole blocks.
uint64_t StateAlign(const Program& program);

// Elements of what a rank owns of each unit whose states are offloaded.
std::vector<uint64_t> OffloadedElements(const Program& program);

// In update order: the order in which the next forward pass uses the units, but persistent units
// first of all; pieces of at most sub_group_elements where offloaded. Last come those of units that
// are not trained, small enough to pass through memory in fp32. `offloaded` by unit.
std::vector<StatePiece> StatePieces(const Program& program, const std::vector<uint64_t>& offloaded);

// Whether the piece's states pass through a slot in host memory, and whether its new parameters do
// on their way to `params`, where the rank's parameters of the unit live.
bool TakesStateSlot(const StatePiece& piece);
bool TakesParamSlot(const StatePiece& piece, const Buffer& params);

// Where the master weights of states at one home are.
enum class MasterForm : uint8_t {
  kOwn,    // in a buffer of their own
  kParam,  // they are the parameters, which lie in the same memory: fp32 on the device, or 16 bits
           // (MasterWeights::kParam) there or in host memory
  kHalf    // the upper half is the parameter, in the same memory; a buffer has the lower
};
// `params`: where the rank's parameters of the unit live.
MasterForm MasterFormOf(const PrecisionConfig& precision, const Buffer& params, Home home);

// The buffer of the rank's own parameters, by unit: a whole unit or its shard.
std::vector<BufferId> RankParams(const Program& program);

// A range of elements, and where their reduced gradient lives.
struct GradRange {
  uint64_t begin, end;
  Ref home;  // null where the range is empty
};

class StateHomes {
 public:
  // REQUIRES: InsertStates has run. Keeps the reference; buffers may still be added to the program.
  explicit StateHomes(const Program& program);

  // In update order; and those of them that are updated, which come first.
  const std::vector<StatePiece>& pieces() const { return pieces_; }
  std::span<const StatePiece> trained() const { return {pieces_.data(), trained_}; }
  // False where nothing is updated: a program that evaluates or generates.
  bool has_moments() const { return has_moments_; }

  // The stream that kernels on the piece's states run on.
  static Stream KernelStream(const StatePiece& piece) {
    return piece.on_device() ? Stream::kCompute : Stream::kHost;
  }
  // The step state's block that kernels on the piece read.
  Ref StepStateOf(const StatePiece& piece) const;

  // Emits what brings the states within reach: nothing, or a read into the piece's staging slot.
  void Fetch(Emitter& emit, size_t piece) const { Swap(emit, piece, false); }
  // Emits what takes changed states back.
  void Store(Emitter& emit, size_t piece) const { Swap(emit, piece, true); }
  // The states, once within reach. The master may be the parameter itself, or its lower half.
  // REQUIRES: the piece is trained, or that is so.
  Ref StateRef(size_t piece, StateKind kind) const;
  // The master, or for what is not trained a transient buffer, added to `program`, which is the
  // view's: parameters are initialised, loaded and saved in fp32. Null where it is in halves.
  Ref Master(Program& program, size_t piece) const;
  MasterForm FormOf(const StatePiece& piece) const;
  bool MasterIsParam(const StatePiece& piece) const { return FormOf(piece) == MasterForm::kParam; }
  // False where only parameters in 16 bit are kept: a program that generates.
  bool HasMaster(const StatePiece& piece) const;

  uint64_t align() const { return StateAlign(p_); }
  // True where fp32 numbers are the state as it is kept.
  bool InFp32(const StatePiece& piece, StateKind kind) const;
  // Emits what makes `state_fp32`, which KernelStream reaches, the elements [at, + count) of a
  // state that is not InFp32, and the other way round. REQUIRES: the piece is trained, `at` a
  // multiple of align().
  void StateFromFp32(Emitter& emit, size_t piece, StateKind kind, uint64_t at, uint64_t count,
                     const Ref& state_fp32) const;
  void StateToFp32(Emitter& emit, size_t piece, StateKind kind, uint64_t at, uint64_t count,
                   const Ref& state_fp32) const;
  // Emits what makes new parameters of the master. REQUIRES: kOwn.
  void ParamFromMaster(Emitter& emit, const StatePiece& piece, const Ref& master,
                       const Ref& target) const;

  // The reduced gradient of the piece, where its update reads it.
  Ref Grad(const StatePiece& piece) const;
  // The same on the device, where the reduction leaves it. REQUIRES: the piece lives there, or
  // gradients are accumulated in place.
  Ref GradOnDevice(const StatePiece& piece) const;
  // Elements [begin, end) of the rank's GradShardElements by where their reduced gradients live: in
  // host memory, then on the device. REQUIRES: gradients are not accumulated in place.
  std::array<GradRange, 2> GradHomes(int unit, uint64_t begin, uint64_t end) const;

  // The rank's parameters in the compute dtype, wherever they live.
  Ref Param(const StatePiece& piece) const;
  // Where a kernel must write the piece's new parameters (null but for kOwn), and what moves
  // them to Param() then. What the device updates for parameters that live elsewhere, and NF4 on
  // its way to a file, goes through a transient buffer, added to `program`, which is the view's.
  Ref ParamTarget(Program& program, size_t piece) const;
  void FinishParam(Emitter& emit, size_t piece, const Ref& target) const;
  // Emits what brings the parameters within reach of KernelStream, and says where they are then.
  Ref FetchParam(Emitter& emit, size_t piece) const;

  // Gathers (or broadcasts) what ranks hold of parameters beyond what they update, in the order in
  // which the forward pass uses them, in buckets of GatherBucketElements (one unit at least): over
  // shard groups on the stream `reduce`, so that gathers within a group need not queue behind, then
  // within a group on `gather`.
  enum class Gathered : uint8_t { kAll, kTrained };
  void GatherParams(Emitter& emit, Gathered which) const;

 private:
  using StateSlots = std::array<BufferId, kStateKinds.size()>;  // by StateKind
  BufferId At(Role role, int unit) const;
  size_t StateIndex(StateKind kind, Home home, int unit) const;  // into states_of_unit_
  void Swap(Emitter& emit, size_t piece, bool write) const;
  void GatherOver(Emitter& emit, Gathered which, Role role) const;
  // Elements [begin, begin+count) of what the rank owns in a buffer that holds whole units or
  // shards (then within the rank's part), or what it owns from element `base` on.
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
