// Where each rank's optimizer states live, and how a kernel gets at them. One object serves the
// passes that visit states: init, optimizer step, save, load.
//
// A rank's shard of a unit is cut into pieces: [0, h) offloaded (host or swap file), [h, shard) on
// the device. h follows offload_optimizer.ratio over the whole model, last units first, as the
// backward pass finishes them first.
#pragma once

#include <cstdint>
#include <vector>

#include "core/lowering/emitter.h"
#include "core/program/program.h"

namespace zeroplan {

enum class Home : uint8_t { kDevice, kHost, kFile };

struct StatePiece {
  int unit;
  uint64_t begin, count;  // elements within the rank's shard
  Home home;
};

// Elements of each unit's shard that are offloaded.
std::vector<uint64_t> OffloadedElements(const Program& program);

class StateHomes {
 public:
  // Adds the states' persistent buffers and staging slots to `program` where they are not there
  // yet.
  StateHomes(Program& program, bool with_adam);

  // In update order: the order in which the next forward pass uses the units, but persistent units
  // first of all; pieces of at most sub_group_elements where offloaded.
  const std::vector<StatePiece>& pieces() const { return pieces_; }
  bool has_adam() const { return with_adam_; }

  // The stream that kernels on the piece's states run on.
  static Stream KernelStream(const StatePiece& piece) {
    return piece.home == Home::kDevice ? Stream::kCompute : Stream::kHost;
  }
  // The state block that kernels on the piece read.
  Ref State(const StatePiece& piece) const;

  // Emits what brings the states within reach: nothing, or a read into the piece's staging slot.
  void Fetch(Emitter& emit, size_t piece) const;
  // Emits what takes changed states back.
  void Store(Emitter& emit, size_t piece) const;
  // The states, once within reach. Master may be the parameter itself (fp32 on the device).
  Ref StateRef(size_t piece, StateKind kind) const;
  bool MasterIsParam(const StatePiece& piece) const;

  // The reduced gradient of the piece.
  Ref Grad(const StatePiece& piece) const;
  // The rank's parameters in the compute dtype, wherever they live.
  Ref Param(const StatePiece& piece) const;
  // Where a kernel must write the piece's new parameters (null if MasterIsParam), and what moves
  // them to Param() then.
  Ref ParamTarget(size_t piece);
  void FinishParam(Emitter& emit, size_t piece, const Ref& target) const;

  // Gathers (or broadcasts) the parameters that every rank keeps whole, in the order in which the
  // forward pass uses them, in buckets of GatherBucketElements (one unit at least).
  void GatherParams(Emitter& emit) const;

 private:
  void AddStates(const std::vector<uint64_t>& offloaded);
  void AddSlots();
  BufferId AddPersistent(const char* label, Role role, Dtype dtype, uint64_t elements, int unit,
                         Space space, MemoryClass memory_class);
  Ref Slice(BufferId buffer, uint64_t base, const StatePiece& piece) const;

  Program& p_;
  const bool with_adam_;
  std::vector<uint64_t> offloaded_;
  std::vector<StatePiece> pieces_;
  std::vector<BufferId> params_, grads_full_, grad_shard_, grad_host_;
  // [state kind][unit]
  std::vector<std::vector<BufferId>> device_, offloaded_states_;
  std::vector<BufferId> state_slot_of_, param_slot_of_;  // [piece]
};

}  // namespace zeroplan
