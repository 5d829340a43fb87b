#include "core/lowering/state_homes.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/program/bucket_sizes.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {

namespace {

void AddFrozenPieces(const Program& p, std::vector<StatePiece>& pieces) {
  // Each is staged in fp32 as it is made or read.
  constexpr uint64_t kLeastAtOnce = 1 << 24;
  uint64_t frozen = 0;
  for (const Unit& unit : p.layout.units) frozen += unit.trainable ? 0 : unit.owned_elements();
  const uint64_t at_once =
      std::max(kLeastAtOnce, AlignUp(CeilDiv(frozen, kMostStatePieces / 2), kNf4AlignElements));
  for (const Buffer& buffer : p.buffers) {
    const bool params = buffer.role == Role::kParamFull || buffer.role == Role::kParamShard;
    if (!params || !buffer.persistent) continue;
    const Unit& unit = p.layout.units[static_cast<size_t>(buffer.unit)];
    if (unit.trainable) continue;
    const Home home = buffer.space == Space::kDevice ? Home::kDevice : Home::kHost;
    for (uint64_t begin = 0; begin < unit.owned_elements(); begin += at_once) {
      const uint64_t count = std::min(at_once, unit.owned_elements() - begin);
      pieces.push_back({buffer.unit, begin, count, home, false});
    }
  }
}

// The roles of buffers that belong to a unit, which the enumeration lists first.
constexpr size_t kUnitRoles = static_cast<size_t>(Role::kGradHost) + 1;

}  // namespace

uint64_t StateAlign(const Program& p) {
  uint64_t align = 1;
  for (const StateKind kind : kMomentKinds) {
    align = std::max<uint64_t>(align, DtypeElements(p.layout.StateDtype(kind)));
  }
  return align;
}

std::vector<uint64_t> OffloadedElements(const Program& p) {
  const auto& offload = p.setup.zero.offload_optimizer;
  std::vector<uint64_t> offloaded(p.layout.units.size(), 0);
  if (offload.device == OffloadDevice::kNone) return offloaded;
  uint64_t total = 0;
  for (const Unit& unit : p.layout.units) total += unit.trainable ? unit.owned_elements() : 0;
  auto left = offload.ratio >= 1.0
                  ? total
                  : static_cast<uint64_t>(std::ceil(static_cast<double>(total) * offload.ratio));
  const uint64_t align = std::max(kShardAlignElements, StateAlign(p));
  for (size_t u = offloaded.size(); u-- > 0;) {
    if (!p.layout.units[u].trainable) continue;
    const uint64_t own = p.layout.units[u].owned_elements();
    offloaded[u] = std::min(own, AlignUp(left, align));
    left -= std::min(left, own);
  }
  return offloaded;
}

std::vector<StatePiece> StatePieces(const Program& p, const std::vector<uint64_t>& offloaded) {
  const ZeroConfig& zero = p.setup.zero;
  const Home away =
      zero.offload_optimizer.device == OffloadDevice::kNvme ? Home::kFile : Home::kHost;
  const uint64_t at_once = AlignUp(std::max<uint64_t>(1, zero.sub_group_elements), StateAlign(p));
  std::vector<StatePiece> pieces;
  // The many small persistent units come before all others: the next forward pass, which may begin
  // beside the update, wants some of them for its first layer; and staging slots, which are taken
  // in turn, all get pieces worth their size.
  for (const bool persistent : {true, false}) {
    for (size_t u = 0; u < offloaded.size(); ++u) {
      if (p.layout.units[u].persistent != persistent || !p.layout.units[u].trainable) continue;
      const int unit = static_cast<int>(u);
      const uint64_t own = p.layout.units[u].owned_elements(), h = offloaded[u];
      for (uint64_t begin = 0; begin < h; begin += at_once) {
        pieces.push_back({unit, begin, std::min(at_once, h - begin), away});
      }
      if (h < own) pieces.push_back({unit, h, own - h, Home::kDevice});
    }
  }
  AddFrozenPieces(p, pieces);
  return pieces;
}

bool TakesStateSlot(const StatePiece& piece) { return piece.home == Home::kFile; }

bool TakesParamSlot(const StatePiece& piece, const Buffer& params) {
  if (params.dtype == Dtype::kNf4) return false;  // made once, in a buffer of its own dtype
  return params.space == Space::kFile || (!piece.on_device() && params.space == Space::kDevice);
}

MasterForm MasterFormOf(const PrecisionConfig& precision, const Buffer& params, Home home) {
  const bool on_host = params.space == Space::kPinned || params.space == Space::kPageable;
  const bool same_memory =
      (home == Home::kDevice && params.space == Space::kDevice) || (home == Home::kHost && on_host);
  if (!same_memory) return MasterForm::kOwn;
  if (params.dtype == Dtype::kF32) {
    return home == Home::kDevice ? MasterForm::kParam : MasterForm::kOwn;
  }
  switch (precision.master_weights) {
    case MasterWeights::kFp32:
      return MasterForm::kOwn;
    case MasterWeights::kSplit:
      return MasterForm::kHalf;
    case MasterWeights::kParam:
      return MasterForm::kParam;
  }
  return MasterForm::kOwn;
}

std::vector<BufferId> RankParams(const Program& program) {
  std::vector<BufferId> params = UnitBuffers(program, Role::kParamFull);
  const std::vector<BufferId> shards = UnitBuffers(program, Role::kParamShard);
  for (size_t u = 0; u < params.size(); ++u) {
    if (shards[u] != kNoBuffer) params[u] = shards[u];
  }
  return params;
}

StateHomes::StateHomes(const Program& program)
    : p_(program),
      offloaded_(OffloadedElements(program)),
      pieces_(StatePieces(program, offloaded_)),
      params_(RankParams(program)),
      of_unit_(kUnitRoles * program.layout.units.size(), kNoBuffer),
      states_of_unit_(kStateKinds.size() * kHomes.size() * program.layout.units.size(), kNoBuffer),
      state_slots_of_(pieces_.size()),
      param_slot_of_(pieces_.size(), kNoBuffer) {
  std::vector<BufferId> state_slots, param_slots;
  for (BufferId id = 0; id < p_.buffers.size(); ++id) {
    const Buffer& buffer = p_.buffers[id];
    if (!buffer.persistent && buffer.role != Role::kGradShard) continue;
    if (buffer.role == Role::kStateSlot) state_slots.push_back(id);
    if (buffer.role == Role::kParamSlot) param_slots.push_back(id);
    const auto role = static_cast<size_t>(buffer.role);
    if (buffer.unit < 0 || role >= kUnitRoles) continue;
    if (buffer.role == Role::kOptimizerState) {
      states_of_unit_[StateIndex(buffer.state, HomeOf(buffer.space), buffer.unit)] = id;
      has_moments_ |= buffer.state != StateKind::kMaster;
    } else {
      of_unit_[role * p_.layout.units.size() + static_cast<size_t>(buffer.unit)] = id;
    }
  }
  trained_ = static_cast<size_t>(std::count_if(pieces_.begin(), pieces_.end(),
                                               [](const StatePiece& p) { return p.trainable; }));
  size_t state_turn = 0, param_turn = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (TakesStateSlot(pieces_[i])) {
      const size_t first = kStateKinds.size() * state_turn++ % state_slots.size();
      std::copy_n(state_slots.begin() + static_cast<ptrdiff_t>(first), kStateKinds.size(),
                  state_slots_of_[i].begin());
    }
    if (TakesParamSlot(pieces_[i], p_.buffers[params_[static_cast<size_t>(pieces_[i].unit)]])) {
      param_slot_of_[i] = param_slots[param_turn++ % param_slots.size()];
    }
  }
}

BufferId StateHomes::At(Role role, int unit) const {
  return of_unit_[static_cast<size_t>(role) * p_.layout.units.size() + static_cast<size_t>(unit)];
}

size_t StateHomes::StateIndex(StateKind kind, Home home, int unit) const {
  const size_t row = static_cast<size_t>(kind) * kHomes.size() + static_cast<size_t>(home);
  return row * p_.layout.units.size() + static_cast<size_t>(unit);
}

MasterForm StateHomes::FormOf(const StatePiece& piece) const {
  // What is not trained is read and written in fp32.
  static constexpr PrecisionConfig kNotTrained{};
  return MasterFormOf(piece.trainable ? p_.setup.precision : kNotTrained,
                      p_.buffers[params_[static_cast<size_t>(piece.unit)]], piece.home);
}

bool StateHomes::HasMaster(const StatePiece& piece) const {
  return has_moments_ || MasterIsParam(piece);
}

Ref StateHomes::StepStateOf(const StatePiece& piece) const {
  return Whole(p_, piece.on_device() ? p_.state_buffer : p_.state_host_buffer);
}

Ref StateHomes::StateRef(size_t index, StateKind kind) const {
  const StatePiece& piece = pieces_[index];
  if (piece.home == Home::kFile) {
    return {state_slots_of_[index][static_cast<size_t>(kind)], 0,
            StoredBytes(p_.layout.StateDtype(kind), piece.count), 0};
  }
  if (kind == StateKind::kMaster && MasterIsParam(piece)) return Param(piece);
  const uint64_t base = piece.on_device() ? offloaded_[static_cast<size_t>(piece.unit)] : 0;
  return Slice(states_of_unit_[StateIndex(kind, piece.home, piece.unit)], base, piece.unit,
               piece.begin, piece.count);
}

Ref StateHomes::Master(Program& program, size_t index) const {
  const StatePiece& piece = pieces_[index];
  if (FormOf(piece) == MasterForm::kHalf) return {};
  if (piece.trainable || MasterIsParam(piece)) return StateRef(index, StateKind::kMaster);
  const BufferId id = AddBuffer(program, "frozen", Role::kStaging, Dtype::kF32,
                                piece.count * DtypeBytes(Dtype::kF32));
  program.buffers[id].unit = piece.unit;
  if (!piece.on_device()) program.buffers[id].space = Space::kPageable;
  return Whole(program, id);
}

namespace {

Ref PartOf(const Program& p, const Ref& ref, uint64_t at, uint64_t count) {
  const Dtype dtype = p.buffers[ref.buffer].dtype;
  return ref.Part(StoredBytes(dtype, at), StoredBytes(dtype, count));
}

}  // namespace

bool StateHomes::InFp32(const StatePiece& piece, StateKind kind) const {
  if (!piece.trainable) return true;
  if (p_.layout.StateDtype(kind) != Dtype::kF32) return false;
  return kind != StateKind::kMaster || FormOf(piece) != MasterForm::kHalf;
}

void StateHomes::StateFromFp32(Emitter& emit, size_t index, StateKind kind, uint64_t at,
                               uint64_t count, const Ref& state_fp32) const {
  const StatePiece& piece = pieces_[index];
  const Ref state = PartOf(p_, StateRef(index, kind), at, count);
  const KernelDims dims = {static_cast<int64_t>(count)};
  const bool half = kind == StateKind::kMaster && FormOf(piece) == MasterForm::kHalf;
  if (half) {
    emit.Launch(KernelId::kSplitMaster, dims, kNoFlags,
                {state_fp32, PartOf(p_, Param(piece), at, count), state}, KernelStream(piece));
  } else {
    const bool of_param = kind == StateKind::kMaster && p_.layout.StateDtype(kind) == Dtype::kBF16;
    emit.Launch(KernelId::kConvert, dims, of_param ? kHalfAway : kNoFlags, {state_fp32, state},
                KernelStream(piece));
  }
}

void StateHomes::StateToFp32(Emitter& emit, size_t index, StateKind kind, uint64_t at,
                             uint64_t count, const Ref& state_fp32) const {
  const StatePiece& piece = pieces_[index];
  const Ref state = PartOf(p_, StateRef(index, kind), at, count);
  const KernelDims dims = {static_cast<int64_t>(count)};
  const bool half = kind == StateKind::kMaster && FormOf(piece) == MasterForm::kHalf;
  if (half) {
    emit.Launch(KernelId::kJoinMaster, dims, kNoFlags,
                {PartOf(p_, Param(piece), at, count), state, state_fp32}, KernelStream(piece));
  } else {
    emit.Launch(KernelId::kConvert, dims, kNoFlags, {state, state_fp32}, KernelStream(piece));
  }
}

void StateHomes::ParamFromMaster(Emitter& emit, const StatePiece& piece, const Ref& master,
                                 const Ref& target) const {
  const bool rounded = piece.trainable && p_.buffers[target.buffer].dtype == Dtype::kBF16 &&
                       p_.buffers[master.buffer].dtype == Dtype::kF32;
  emit.Launch(KernelId::kConvert, {static_cast<int64_t>(piece.count)},
              rounded ? kHalfAway : kNoFlags, {master, target}, KernelStream(piece));
}

void StateHomes::Swap(Emitter& emit, size_t index, bool write) const {
  const StatePiece& piece = pieces_[index];
  if (piece.home != Home::kFile) return;
  for (const StateKind kind : kStateKinds) {
    emit.Swap(write, StateRef(index, kind),
              Slice(states_of_unit_[StateIndex(kind, Home::kFile, piece.unit)], 0, piece.unit,
                    piece.begin, piece.count));
  }
}

Ref StateHomes::Slice(BufferId buffer, uint64_t base, int unit, uint64_t begin,
                      uint64_t count) const {
  const Buffer& b = p_.buffers[buffer];
  const Unit& of = p_.layout.units[static_cast<size_t>(unit)];
  const bool whole = b.role == Role::kParamFull || b.role == Role::kGradFull;
  const bool shard =
      b.role == Role::kParamShard ||
      (b.role == Role::kGradShard && GradShardElements(p_.setup, of) > of.owned_elements());
  Ref ref{buffer, StoredBytes(b.dtype, begin - base), StoredBytes(b.dtype, count)};
  if (whole && p_.layout.shards > 1) ref.shard_stride = StoredBytes(b.dtype, of.shard_elements);
  if ((whole || shard) && p_.layout.slices > 1) {
    ref.replica_stride = StoredBytes(b.dtype, of.owned_elements());
  }
  return ref;
}

Ref StateHomes::Grad(const StatePiece& piece) const {
  if (piece.on_device()) return GradOnDevice(piece);
  return Slice(At(Role::kGradHost, piece.unit), 0, piece.unit, piece.begin, piece.count);
}

Ref StateHomes::GradOnDevice(const StatePiece& piece) const {
  const bool in_place = GradsInPlace(p_.setup);
  ZEROPLAN_CHECK(in_place || piece.on_device());
  return in_place
             ? Slice(At(Role::kGradFull, piece.unit), 0, piece.unit, piece.begin, piece.count)
             : Slice(At(Role::kGradShard, piece.unit), offloaded_[static_cast<size_t>(piece.unit)],
                     piece.unit, piece.begin, piece.count);
}

std::array<GradRange, 2> StateHomes::GradHomes(int unit, uint64_t begin, uint64_t end) const {
  const uint64_t h = offloaded_[static_cast<size_t>(unit)], split = std::clamp(h, begin, end);
  std::array<GradRange, 2> ranges = {{{begin, split, {}}, {split, end, {}}}};
  if (begin < split) {
    ranges[0].home = Slice(At(Role::kGradHost, unit), 0, unit, begin, split - begin);
  }
  if (split < end) {
    ranges[1].home = Slice(At(Role::kGradShard, unit), h, unit, split, end - split);
    ranges[1].home.replica_stride = 0;  // all that persists, not what the rank owns of it
  }
  return ranges;
}

Ref StateHomes::Param(const StatePiece& piece) const {
  return Slice(params_[static_cast<size_t>(piece.unit)], 0, piece.unit, piece.begin, piece.count);
}

Ref StateHomes::ParamTarget(Program& program, size_t index) const {
  ZEROPLAN_CHECK(&program == &p_);
  const StatePiece& piece = pieces_[index];
  if (FormOf(piece) != MasterForm::kOwn) return {};
  const Buffer& home = p_.buffers[params_[static_cast<size_t>(piece.unit)]];
  const Dtype dtype = home.dtype;
  const Space space = home.space;
  const uint64_t bytes = StoredBytes(dtype, piece.count);
  const bool quantized_to_file = dtype == Dtype::kNf4 && space == Space::kFile;
  if (piece.on_device() || quantized_to_file) {
    if (space == Space::kDevice) return Param(piece);
    const BufferId updated = AddBuffer(program, "updated", Role::kStaging, dtype, bytes);
    program.buffers[updated].unit = piece.unit;
    if (quantized_to_file) program.buffers[updated].space = Space::kPageable;
    return Whole(program, updated);
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

Ref StateHomes::FetchParam(Emitter& emit, size_t index) const {
  const Ref param = Param(pieces_[index]);
  if (p_.buffers[param.buffer].space != Space::kFile) return param;
  const Ref slot{param_slot_of_[index], 0, param.bytes, 0};
  emit.Swap(false, slot, param);
  return slot;
}

void StateHomes::GatherParams(Emitter& emit, Gathered which) const {
  GatherOver(emit, which, Role::kParamFull);
  GatherOver(emit, which, Role::kParamShard);
}

void StateHomes::GatherOver(Emitter& emit, Gathered which, Role role) const {
  // What every rank of a group keeps whole is gathered within it; what the groups have updated
  // slices of is gathered over these first.
  const bool within = role == Role::kParamFull && p_.layout.shards > 1;
  const bool across = p_.layout.slices > 1;
  if (!within && !across) return;
  const auto kind =
      p_.setup.zero.allgather_partitions ? CollectiveKind::kAllGather : CollectiveKind::kBroadcast;
  std::vector<Segment> shards, units;  // of one bucket
  uint64_t filled = 0;
  Dtype dtype = p_.setup.precision.dtype;
  auto flush = [&] {
    const auto collect = [&](RankAxis axis, std::vector<Segment>& bucket, Stream stream) {
      if (!bucket.empty()) emit.Collect(kind, axis, SentDtype(dtype), bucket, stream);
      bucket.clear();
    };
    collect(RankAxis::kReplica, shards, Stream::kReduce);
    collect(RankAxis::kShard, units, Stream::kGather);
    filled = 0;
  };
  const uint64_t bucket_elements = GatherBucketElements(p_);
  for (size_t u = 0; u < params_.size(); ++u) {
    if (p_.buffers[params_[u]].role != role) continue;
    const Unit& unit = p_.layout.units[u];
    if (which == Gathered::kTrained && !unit.trainable) continue;
    const Dtype next = p_.buffers[params_[u]].dtype;
    if (filled + unit.padded_elements > bucket_elements || next != dtype) flush();
    dtype = next;
    const Ref own = Slice(params_[u], 0, static_cast<int>(u), 0, unit.owned_elements());
    Ref shard = own;
    shard.bytes *= p_.layout.slices;
    shard.replica_stride = 0;
    if (across) shards.push_back({own, shard});
    if (within) units.push_back({shard, Whole(p_, params_[u])});
    filled += unit.padded_elements;
  }
  flush();
}

}  // namespace zeroplan
