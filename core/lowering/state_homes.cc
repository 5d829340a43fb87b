#include "core/lowering/state_homes.h"

#include <algorithm>
#include <cmath>

#include "core/base/units.h"
#include "core/config/setup_facts.h"
#include "core/lowering/passes.h"
#include "core/program/bucket_sizes.h"

namespace zeroplan {
namespace {

constexpr Role kDeviceRole[] = {Role::kMaster, Role::kAdamM, Role::kAdamV};
constexpr Role kHostRole[] = {Role::kMasterHost, Role::kAdamMHost, Role::kAdamVHost};
constexpr Role kFileRole[] = {Role::kMasterFile, Role::kAdamMFile, Role::kAdamVFile};
constexpr const char* kStateLabel[] = {"master", "adam_m", "adam_v"};

Space HostSpace(bool pinned) { return pinned ? Space::kPinned : Space::kPageable; }

}  // namespace

std::vector<uint64_t> OffloadedElements(const Program& p) {
  const auto& offload = p.setup.zero.offload_optimizer;
  std::vector<uint64_t> offloaded(p.layout.units.size(), 0);
  if (offload.device == OffloadDevice::kNone) return offloaded;
  uint64_t total = 0;
  for (const Unit& unit : p.layout.units) total += unit.shard_elements;
  auto left = offload.ratio >= 1.0
                  ? total
                  : static_cast<uint64_t>(std::ceil(static_cast<double>(total) * offload.ratio));
  for (size_t u = offloaded.size(); u-- > 0;) {
    const uint64_t shard = p.layout.units[u].shard_elements;
    offloaded[u] = std::min(shard, CeilDiv(left, kShardAlignElements) * kShardAlignElements);
    left -= std::min(left, shard);
  }
  return offloaded;
}

StateHomes::StateHomes(Program& program, bool with_adam)
    : p_(program), with_adam_(with_adam), offloaded_(OffloadedElements(program)) {
  params_ = UnitBuffers(p_, Role::kParamFull);
  const std::vector<BufferId> shards = UnitBuffers(p_, Role::kParamShard);
  for (size_t u = 0; u < params_.size(); ++u) {
    if (shards[u] != kNoBuffer) params_[u] = shards[u];
  }
  const auto& zero = p_.setup.zero;
  const Home away =
      zero.offload_optimizer.device == OffloadDevice::kNvme ? Home::kFile : Home::kHost;
  // The many small persistent units come before all others: the next forward pass, which may begin
  // beside the update, wants some of them for its first layer; and staging slots, which are taken
  // in turn, all get pieces worth their size.
  for (const bool persistent : {true, false}) {
    for (size_t u = 0; u < offloaded_.size(); ++u) {
      if (p_.layout.units[u].persistent != persistent) continue;
      const uint64_t shard = p_.layout.units[u].shard_elements, h = offloaded_[u];
      for (uint64_t begin = 0; begin < h; begin += zero.sub_group_elements) {
        pieces_.push_back(
            {static_cast<int>(u), begin, std::min(zero.sub_group_elements, h - begin), away});
      }
      if (h < shard) pieces_.push_back({static_cast<int>(u), h, shard - h, Home::kDevice});
    }
  }
  for (int kind = 0; kind < 3; ++kind) {
    device_.push_back(UnitBuffers(p_, kDeviceRole[kind]));
    offloaded_states_.push_back(
        UnitBuffers(p_, away == Home::kFile ? kFileRole[kind] : kHostRole[kind]));
  }
  const bool added =
      UnitBuffers(p_, Role::kAdamM) != std::vector<BufferId>(params_.size(), kNoBuffer) ||
      offloaded_states_[0] != std::vector<BufferId>(params_.size(), kNoBuffer);
  if (!added) AddStates(offloaded_);
  AddSlots();
  grads_full_ = UnitBuffers(p_, Role::kGradFull);
  grad_shard_ = UnitBuffers(p_, Role::kGradShard);
  grad_host_ = UnitBuffers(p_, Role::kGradHost);
}

BufferId StateHomes::AddPersistent(const char* label, Role role, Dtype dtype, uint64_t elements,
                                   int unit, Space space, MemoryClass memory_class) {
  const BufferId id = AddBuffer(p_, label, role, dtype, elements * DtypeBytes(dtype));
  Buffer& buffer = p_.buffers[id];
  buffer.unit = unit;
  buffer.space = space;
  buffer.persistent = true;
  buffer.memory_class = memory_class;
  return id;
}

void StateHomes::AddStates(const std::vector<uint64_t>& offloaded) {
  const auto& offload = p_.setup.zero.offload_optimizer;
  const bool file = offload.device == OffloadDevice::kNvme;
  const std::vector<BufferId> shards = UnitBuffers(p_, Role::kGradShard);
  for (size_t u = 0; u < offloaded.size(); ++u) {
    const int unit = static_cast<int>(u);
    const uint64_t h = offloaded[u], on_device = p_.layout.units[u].shard_elements - h;
    const bool master_is_param = MasterIsParam({unit, h, on_device, Home::kDevice});
    for (int kind = 0; kind < (with_adam_ ? 3 : 1); ++kind) {
      const auto k = static_cast<size_t>(kind);
      if (on_device > 0 && !(kind == 0 && master_is_param)) {
        device_[k][u] = AddPersistent(kStateLabel[k], kDeviceRole[k], Dtype::kF32, on_device, unit,
                                      Space::kDevice, MemoryClass::kOptimizer);
      }
      if (h > 0) {
        offloaded_states_[k][u] =
            AddPersistent(kStateLabel[k], file ? kFileRole[k] : kHostRole[k], Dtype::kF32, h, unit,
                          file ? Space::kFile : Space::kPageable, MemoryClass::kOptimizer);
      }
    }
    if (!with_adam_ || h == 0) continue;
    const Dtype grad_dtype = p_.setup.precision.grad_accum_dtype;
    AddPersistent("grads", Role::kGradHost, grad_dtype, h, unit, HostSpace(offload.pin_memory),
                  MemoryClass::kGrads);
    if (shards[u] != kNoBuffer) p_.buffers[shards[u]].bytes = on_device * DtypeBytes(grad_dtype);
  }
}

// Gives each piece that goes through host memory a slot, in turn; a slot is as large as its largest
// piece.
void StateHomes::AddSlots() {
  static constexpr const char* kStateSlot = "state_slot";
  static constexpr const char* kParamSlot = "param_slot";
  const auto& offload = p_.setup.zero.offload_optimizer;
  const auto count = static_cast<size_t>(offload.buffer_count);
  auto assign = [&](const char* label, Dtype dtype, uint64_t bytes_an_element, auto&& needs_slot,
                    std::vector<BufferId>& slot_of) {
    std::vector<BufferId> slots;
    for (size_t i = 0; i < p_.buffers.size(); ++i) {
      if (p_.buffers[i].label == label) slots.push_back(static_cast<BufferId>(i));
    }
    slot_of.assign(pieces_.size(), kNoBuffer);
    size_t turn = 0;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (!needs_slot(pieces_[i])) continue;
      const size_t slot = turn++ % count;
      if (slot == slots.size()) {
        slots.push_back(AddPersistent(label, Role::kStaging, dtype, 0, -1,
                                      HostSpace(offload.pin_memory), MemoryClass::kBuffers));
      }
      slot_of[i] = slots[slot];
      uint64_t& bytes = p_.buffers[slots[slot]].bytes;
      bytes = std::max(bytes, pieces_[i].count * bytes_an_element);
    }
  };
  const Dtype dtype = p_.setup.precision.dtype;
  assign(
      kStateSlot, Dtype::kF32, 3 * DtypeBytes(Dtype::kF32),
      [](const StatePiece& piece) { return piece.home == Home::kFile; }, state_slot_of_);
  assign(
      kParamSlot, dtype, DtypeBytes(dtype),
      [&](const StatePiece& piece) {
        const Space space = p_.buffers[params_[static_cast<size_t>(piece.unit)]].space;
        return space == Space::kFile || (piece.home != Home::kDevice && space == Space::kDevice);
      },
      param_slot_of_);
}

bool StateHomes::MasterIsParam(const StatePiece& piece) const {
  return p_.setup.precision.dtype == Dtype::kF32 && piece.home == Home::kDevice &&
         p_.buffers[params_[static_cast<size_t>(piece.unit)]].space == Space::kDevice;
}

Ref StateHomes::State(const StatePiece& piece) const {
  return Whole(p_, piece.home == Home::kDevice ? p_.state_buffer : p_.state_host_buffer);
}

Ref StateHomes::StateRef(size_t index, StateKind kind) const {
  const StatePiece& piece = pieces_[index];
  const auto k = static_cast<size_t>(kind), u = static_cast<size_t>(piece.unit);
  switch (piece.home) {
    case Home::kDevice:
      if (kind == StateKind::kMaster && MasterIsParam(piece)) return Param(piece);
      return {device_[k][u], (piece.begin - offloaded_[u]) * 4, piece.count * 4, 0};
    case Home::kHost:
      return {offloaded_states_[k][u], piece.begin * 4, piece.count * 4, 0};
    case Home::kFile:
      return {state_slot_of_[index], k * piece.count * 4, piece.count * 4, 0};
  }
  return {};
}

void StateHomes::Fetch(Emitter& emit, size_t index) const {
  const StatePiece& piece = pieces_[index];
  if (piece.home != Home::kFile) return;
  for (int k = 0; k < 3; ++k) {
    emit.Swap(false, StateRef(index, static_cast<StateKind>(k)),
              {offloaded_states_[static_cast<size_t>(k)][static_cast<size_t>(piece.unit)],
               piece.begin * 4, piece.count * 4, 0});
  }
}

void StateHomes::Store(Emitter& emit, size_t index) const {
  const StatePiece& piece = pieces_[index];
  if (piece.home != Home::kFile) return;
  for (int k = 0; k < 3; ++k) {
    emit.Swap(true, StateRef(index, static_cast<StateKind>(k)),
              {offloaded_states_[static_cast<size_t>(k)][static_cast<size_t>(piece.unit)],
               piece.begin * 4, piece.count * 4, 0});
  }
}

// The piece's range of a buffer that holds a whole unit (then the rank's part of it) or a shard
// from element `base` on.
Ref StateHomes::Slice(BufferId buffer, uint64_t base, const StatePiece& piece) const {
  const Buffer& b = p_.buffers[buffer];
  const Unit& unit = p_.layout.units[static_cast<size_t>(piece.unit)];
  const uint64_t size = DtypeBytes(b.dtype);
  const bool whole = b.role == Role::kParamFull || b.role == Role::kGradFull;
  const uint64_t stride = whole && p_.layout.world_size > 1 ? unit.shard_elements * size : 0;
  return {buffer, (piece.begin - base) * size, piece.count * size, stride};
}

Ref StateHomes::Grad(const StatePiece& piece) const {
  const auto u = static_cast<size_t>(piece.unit);
  if (piece.home != Home::kDevice) return Slice(grad_host_[u], 0, piece);
  if (GradsInPlace(p_.setup)) return Slice(grads_full_[u], 0, piece);
  return Slice(grad_shard_[u], offloaded_[u], piece);
}

Ref StateHomes::Param(const StatePiece& piece) const {
  return Slice(params_[static_cast<size_t>(piece.unit)], 0, piece);
}

Ref StateHomes::ParamTarget(size_t index) {
  const StatePiece& piece = pieces_[index];
  if (MasterIsParam(piece)) return {};
  const Dtype dtype = p_.setup.precision.dtype;
  const uint64_t bytes = piece.count * DtypeBytes(dtype);
  const Space space = p_.buffers[params_[static_cast<size_t>(piece.unit)]].space;
  if (piece.home == Home::kDevice) {
    if (space == Space::kDevice) return Param(piece);
    const BufferId updated = AddBuffer(p_, "updated", Role::kStaging, dtype, bytes);
    p_.buffers[updated].unit = piece.unit;
    return Whole(p_, updated);
  }
  if (space == Space::kPinned || space == Space::kPageable) return Param(piece);
  return {param_slot_of_[index], 0, bytes, 0};
}

void StateHomes::FinishParam(Emitter& emit, size_t index, const Ref& target) const {
  if (target.null()) return;
  const Ref param = Param(pieces_[index]);
  if (target.buffer == param.buffer) return;
  if (p_.buffers[param.buffer].space != Space::kFile) {
    emit.CopyTo(target, param);
    return;
  }
  Ref host = target;
  if (p_.buffers[target.buffer].space == Space::kDevice) {
    host = {param_slot_of_[index], 0, target.bytes, 0};
    emit.CopyTo(target, host);
  }
  emit.Swap(true, host, param);
}

void StateHomes::GatherParams(Emitter& emit) const {
  if (p_.layout.world_size <= 1) return;
  const ZeroConfig& zero = p_.setup.zero;
  std::vector<Segment> bucket;
  uint64_t filled = 0;
  const auto kind =
      zero.allgather_partitions ? CollectiveKind::kAllGather : CollectiveKind::kBroadcast;
  auto flush = [&] {
    if (!bucket.empty()) {
      emit.Collect(kind, p_.setup.precision.dtype, bucket, Stream::kGather);
    }
    bucket.clear();
    filled = 0;
  };
  const uint64_t bucket_elements = GatherBucketElements(p_);
  for (size_t u = 0; u < params_.size(); ++u) {
    if (p_.buffers[params_[u]].role != Role::kParamFull) continue;
    const Unit& unit = p_.layout.units[u];
    if (filled + unit.padded_elements > bucket_elements) flush();
    const StatePiece whole_shard{static_cast<int>(u), 0, unit.shard_elements, Home::kDevice};
    bucket.push_back({Slice(params_[u], 0, whole_shard), Whole(p_, params_[u])});
    filled += unit.padded_elements;
  }
  flush();
}

}  // namespace zeroplan
