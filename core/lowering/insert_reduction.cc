// Pass 9: gradients are summed over micro-steps and ranks.
//
// In place (stages 0 and 1, or one rank that keeps its optimizer on the GPU): whole gradients
// persist; the first micro-step writes them, the others add; the last one reduces them by buckets.
// Otherwise (stages 2 and 3): whole gradients are transient, every micro-step reduces each bucket
// as soon as the backward pass has filled it (ZeRO paper, section 5.2), and what arrives is added
// to where the shard's elements live. With overlap_comm a bucket and what it is reduced to stay
// until the next bucket but one begins, so that the backward pass does not wait for the reduction.
// Of offloaded states that is host memory, which the adding kernel cannot reach by itself:
// InsertOffload sees to that.
//
// Of several shard groups each reduces its own, and what a rank's shard holds then is summed over
// the groups: all-reduced, or reduce-scattered where they own slices of it. Once a step where the
// shard persists until then, else in every micro-step (CrossesEachMicroStep).
//
// With fp32_reduction transient gradients are written in fp32 and reduced as they are. Gradients
// that persist in 16 bit are converted to fp32 bucket by bucket, reduced, and converted back; two
// such buckets live at a time, one without overlap_comm.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "core/base/error.h"
#include "core/lowering/emitter.h"
#include "core/lowering/passes.h"
#include "core/lowering/state_homes.h"
#include "core/program/bucket_sizes.h"
#include "core/program/program.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {
namespace {

// Elements [begin, end) of a unit's gradient.
struct GradPiece {
  int unit;
  uint64_t begin, end;
  bool last_of_unit = true;         // no other piece of the unit is reduced later
  BufferId own_buffer = kNoBuffer;  // holds this piece alone; else it lies in the unit's buffer
};

// The buffer that a piece lies in (`whole`: the units' buffers), and the unit's element it begins
// with.
BufferId PieceBuffer(const GradPiece& piece, const std::vector<BufferId>& whole) {
  return piece.own_buffer != kNoBuffer ? piece.own_buffer : whole[static_cast<size_t>(piece.unit)];
}
uint64_t PieceBase(const GradPiece& piece) {
  return piece.own_buffer != kNoBuffer ? piece.begin : 0;
}

struct ReduceBucket {
  std::vector<GradPiece> pieces;
  size_t first_write = 0, last_write = 0;  // micro_step instructions that write its gradients
};

// First and last instruction that writes each slot of a unit.
struct SlotWrites {
  std::vector<size_t> first, last;
};

std::vector<SlotWrites> FindWrites(const Program& p, const std::vector<Instruction>& list) {
  std::vector<SlotWrites> writes(p.layout.units.size());
  for (size_t u = 0; u < writes.size(); ++u) {
    writes[u].first.assign(p.layout.units[u].slots.size(), SIZE_MAX);
    writes[u].last.assign(p.layout.units[u].slots.size(), 0);
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const auto* launch = std::get_if<LaunchKernel>(&list[i].op);
    if (launch == nullptr || list[i].phase != Phase::kBackward) continue;
    for (const Ref& ref : p.args(*launch)) {
      if (ref.null() || p.buffers[ref.buffer].role != Role::kGradFull) continue;
      const auto u = static_cast<size_t>(p.buffers[ref.buffer].unit);
      const uint64_t element = ref.offset / DtypeBytes(p.buffers[ref.buffer].dtype);
      const auto& slots = p.layout.units[u].slots;
      for (size_t s = 0; s < slots.size(); ++s) {
        if (slots[s].offset != element) continue;
        writes[u].first[s] = std::min(writes[u].first[s], i);
        writes[u].last[s] = std::max(writes[u].last[s], i);
      }
    }
  }
  return writes;
}

struct TimedPiece {
  GradPiece piece;
  size_t first, last;
};

// The unit as one piece, or cut at tensors into pieces of at most `bucket` elements (one tensor at
// least), from the end of the unit, where the backward pass begins.
void CutUnit(const Unit& unit, int index, const SlotWrites& writes, uint64_t bucket,
             bool each_tensor, std::vector<TimedPiece>& pieces) {
  const size_t n = unit.slots.size();
  size_t end = n;
  uint64_t end_element = unit.padded_elements;
  while (end > 0) {
    size_t begin = end - 1;
    const bool whole_unit_fits = !each_tensor && unit.padded_elements <= bucket;
    while (begin > 0 && !each_tensor &&
           (whole_unit_fits || end_element - unit.slots[begin - 1].offset <= bucket)) {
      --begin;
    }
    TimedPiece timed{{index, begin == 0 ? 0 : unit.slots[begin].offset, end_element}, SIZE_MAX, 0};
    for (size_t s = begin; s < end; ++s) {
      timed.first = std::min(timed.first, writes.first[s]);
      timed.last = std::max(timed.last, writes.last[s]);
    }
    pieces.push_back(timed);
    end_element = timed.piece.begin;
    end = begin;
  }
}

// In order of completion in `list` (section micro_step before reductions are inserted). Whole units
// are put together while they fit ReduceBucketElements; a larger unit is cut at tensors (a tensor
// is never cut), and so is every unit without contiguous_gradients; none of quantized gradients.
std::vector<ReduceBucket> PlanReduceBuckets(const Program& p,
                                            const std::vector<Instruction>& list) {
  const uint64_t bucket_elements = ReduceBucketElements(p);
  const bool each_tensor = !p.setup.zero.contiguous_gradients && !GradsInPlace(p.setup);
  const uint64_t most = p.setup.zero.quantized_gradients ? UINT64_MAX : bucket_elements;
  const std::vector<SlotWrites> writes = FindWrites(p, list);
  std::vector<TimedPiece> pieces;
  for (size_t u = 0; u < p.layout.units.size(); ++u) {
    const Unit& unit = p.layout.units[u];
    if (!unit.trainable) continue;
    CutUnit(unit, static_cast<int>(u), writes[u], most, each_tensor, pieces);
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const TimedPiece& a, const TimedPiece& b) { return a.last < b.last; });
  std::vector<size_t> last_piece(p.layout.units.size(), 0);
  for (size_t i = 0; i < pieces.size(); ++i)
    last_piece[static_cast<size_t>(pieces[i].piece.unit)] = i;

  const std::map<int, uint64_t> of_layer = p.layout.grad_elements_by_layer();
  std::vector<ReduceBucket> buckets;
  uint64_t filled = 0;
  int last_layer = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    TimedPiece& timed = pieces[i];
    timed.piece.last_of_unit = last_piece[static_cast<size_t>(timed.piece.unit)] == i;
    const uint64_t size = timed.piece.end - timed.piece.begin;
    // The units of a layer stay together where they fit a bucket.
    const int layer = p.layout.units[static_cast<size_t>(timed.piece.unit)].layer;
    const uint64_t of_its_layer = of_layer.at(layer);
    const bool opens_layer = (i == 0 || layer != last_layer) && of_its_layer <= bucket_elements;
    last_layer = layer;
    const uint64_t room_for = opens_layer ? of_its_layer : size;
    // A piece of gradients that are open for long (the tied head's) does not hold others up.
    const bool joins = !buckets.empty() && !each_tensor && filled + room_for <= bucket_elements &&
                       timed.first >= buckets.back().first_write;
    if (!joins) {
      buckets.push_back({{}, timed.first, timed.last});
      filled = 0;
    }
    buckets.back().pieces.push_back(timed.piece);
    buckets.back().first_write = std::min(buckets.back().first_write, timed.first);
    buckets.back().last_write = std::max(buckets.back().last_write, timed.last);
    filled += size;
  }
  return buckets;
}

// Gives each piece of a cut unit a buffer of its own, so that no more than the bucket is held, and
// points the kernels at it. Units that are all-reduced stay whole: a rank needs the part that is
// its shard.
void GiveOwnBuffers(Program& p, const std::vector<Instruction>& list,
                    std::vector<ReduceBucket>& buckets) {
  if (!p.setup.zero.reduce_scatter && p.setup.batch.world_size > 1) return;
  const std::vector<BufferId> whole = UnitBuffers(p, Role::kGradFull);
  const Dtype dtype = FullGradDtype(p.setup);
  const uint64_t size = DtypeBytes(dtype);
  std::vector<GradPiece*> cut;
  for (ReduceBucket& bucket : buckets) {
    for (GradPiece& piece : bucket.pieces) {
      const Unit& unit = p.layout.units[static_cast<size_t>(piece.unit)];
      if (piece.begin == 0 && piece.end == unit.padded_elements) continue;
      piece.own_buffer =
          AddBuffer(p, "grads", Role::kGradFull, dtype, (piece.end - piece.begin) * size);
      p.buffers[piece.own_buffer].unit = piece.unit;
      cut.push_back(&piece);
    }
  }
  if (cut.empty()) return;
  for (const Instruction& instruction : list) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch == nullptr) continue;
    for (uint32_t a = 0; a < launch->arg_count; ++a) {
      Ref& ref = p.refs[launch->first_arg + a];
      if (ref.null() || p.buffers[ref.buffer].role != Role::kGradFull) continue;
      for (const GradPiece* piece : cut) {
        const bool of_unit = ref.buffer == whole[static_cast<size_t>(piece->unit)];
        if (!of_unit || ref.offset < piece->begin * size || ref.offset >= piece->end * size)
          continue;
        ref.buffer = piece->own_buffer;
        ref.offset -= piece->begin * size;
        break;
      }
    }
  }
}

bool WritesGrads(const Program& p, const Instruction& instruction) {
  const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
  if (launch == nullptr) return false;
  for (int a = 0; a < launch->arg_count; ++a) {
    const Ref& ref = p.refs[launch->first_arg + static_cast<uint32_t>(a)];
    if (!ref.null() && p.buffers[ref.buffer].role == Role::kGradFull) return true;
  }
  return false;
}

// With several micro-steps: the writing kernel for the first, the adding one for the others.
void EmitWriteAndAdd(const Program& p, Instruction instruction, std::vector<Instruction>& out) {
  auto launch = std::get<LaunchKernel>(instruction.op);
  if (!Accumulates(p.setup) || (launch.flags & kAccumulate)) {
    out.push_back(instruction);
    return;
  }
  Instruction add = instruction;
  instruction.when = kWritesGrads;
  out.push_back(instruction);
  if (launch.kernel == KernelId::kFill) return;  // zeroes what others add to
  launch.flags |= kAccumulate;
  add.op = launch;
  add.when = kAddsGrads;
  out.push_back(add);
}

class Reducer {
 public:
  Reducer(Program& p, std::vector<Instruction>& out)
      : p_(p),
        emit_(p, out),
        stage_(p.setup.zero.stage),
        world_(p.setup.batch.world_size),
        in_place_(GradsInPlace(p.setup)),
        hybrid_(Hybrid(p.setup)),
        crosses_each_(CrossesEachMicroStep(p.setup)),
        converts_(SentGradDtype(p.setup) != FullGradDtype(p.setup)),
        dtype_(SentGradDtype(p.setup)),
        size_(DtypeBytes(dtype_)),
        whole_(UnitBuffers(p, Role::kGradFull)),
        homes_(p),
        scratch_(p.layout.units.size(), kNoBuffer),
        for_host_(p.layout.units.size(), kNoBuffer) {}

  void Emit(const ReduceBucket& bucket, const Instruction& at) {
    emit_.Tag(Phase::kBackward, at.layer, stage_ <= 1 ? kReduces : kEvery);
    if (converts_) {
      EmitConverted(bucket);
      return;
    }
    if (world_ > 1) EmitCollective(bucket, Sources(bucket));
    if (in_place_) return;
    for (const GradPiece& piece : bucket.pieces) {
      if (piece.last_of_unit || world_ == 1) EmitToShard(piece);
    }
    if (hybrid_ && !crosses_each_) EmitCrossingOfSums(bucket);
  }

  // Frees what the unit's reduction took beside its gradients, where that is transient.
  void ReleaseScratch(int unit, Emitter& emit) const {
    for (const std::vector<BufferId>* buffers : {&scratch_, &for_host_}) {
      const BufferId id = (*buffers)[static_cast<size_t>(unit)];
      if (id != kNoBuffer) emit.Release(id);
    }
  }
  // Frees what buckets were converted to, and reduced to, but for the last `keep` of them.
  void ReleaseConverted(size_t keep, Emitter& emit) {
    for (; converted_.size() > keep; converted_.pop_front()) {
      for (const BufferId id : converted_.front()) emit.Release(id);
    }
  }
  bool converts() const { return converts_; }

 private:
  const Unit& UnitOf(const GradPiece& piece) const {
    return p_.layout.units[static_cast<size_t>(piece.unit)];
  }
  // Where the piece's gradients lie: the unit's buffer, or the piece's own.
  Ref Source(const GradPiece& piece) const {
    const BufferId buffer = PieceBuffer(piece, whole_);
    const uint64_t size = DtypeBytes(p_.buffers[buffer].dtype);
    return {buffer, (piece.begin - PieceBase(piece)) * size, (piece.end - piece.begin) * size, 0};
  }
  std::vector<Ref> Sources(const ReduceBucket& bucket) const {
    std::vector<Ref> sources;
    for (const GradPiece& piece : bucket.pieces) sources.push_back(Source(piece));
    return sources;
  }
  bool ReducesAll() const { return stage_ == 0 || !p_.setup.zero.reduce_scatter; }
  bool IsUnit(const GradPiece& piece) const {
    return piece.begin == 0 && piece.end == UnitOf(piece).padded_elements;
  }
  bool Direct() const {
    return !Accumulates(p_.setup) && p_.setup.precision.grad_accum_dtype == dtype_ &&
           p_.setup.zero.offload_optimizer.device == OffloadDevice::kNone;
  }
  // What the rank owns of `shard`, which holds its shard of a unit.
  Ref Owned(Ref shard) const {
    shard.bytes /= p_.layout.slices;
    if (p_.layout.slices > 1) shard.replica_stride = shard.bytes;
    return shard;
  }
  // Where the unit's reduced gradient persists on the device, all of it. REQUIRES: not in place.
  Ref SumHome(const GradPiece& piece) const {
    const Unit& unit = UnitOf(piece);
    return Whole(p_,
                 homes_.GradHomes(piece.unit, 0, GradShardElements(p_.setup, unit))[1].home.buffer);
  }
  // Sums what the ranks of a group have summed, `shards`, over the groups.
  void EmitCrossing(std::span<const Segment> shards) {
    const bool whole = p_.layout.slices == 1;
    emit_.Collect(whole ? CollectiveKind::kAllReduce : CollectiveKind::kReduceScatter,
                  RankAxis::kReplica, dtype_, shards, Stream::kReduce);
  }
  // Where this rank's sum of the unit arrives, of which `src` holds the piece.
  Ref Destination(const GradPiece& piece, const Ref& src) {
    const auto u = static_cast<size_t>(piece.unit);
    const uint64_t bytes = UnitOf(piece).shard_elements * size_;
    const bool within_source = converts_ ? IsUnit(piece) : in_place_;
    if (within_source) return {src.buffer, 0, bytes, bytes};
    if (!converts_ && Direct() && p_.layout.slices == 1) return SumHome(piece);
    return Scratch("reduced", dtype_, UnitOf(piece).shard_elements, piece.unit, scratch_[u]);
  }
  // All of `id`, which is made where it is not there yet.
  Ref Scratch(const char* label, Dtype dtype, uint64_t elements, int unit, BufferId& id) {
    if (id == kNoBuffer) {
      id = AddBuffer(p_, label, Role::kReduceScratch, dtype, elements * DtypeBytes(dtype));
      p_.buffers[id].unit = unit;
    }
    return Whole(p_, id);
  }

  void Convert(const Ref& src, const Ref& dst) {
    const auto count = static_cast<int64_t>(src.bytes / DtypeBytes(p_.buffers[src.buffer].dtype));
    emit_.Launch(KernelId::kConvert, {count}, kNoFlags, {src, dst}, Stream::kReduce);
  }

  // Gradients that stay in 16 bit, summed over the ranks in fp32.
  void EmitConverted(const ReduceBucket& bucket) {
    std::vector<Ref> sources;
    std::vector<BufferId>& taken = converted_.emplace_back();
    for (const GradPiece& piece : bucket.pieces) {
      const BufferId id =
          AddBuffer(p_, "fp32_grads", Role::kGradFull, dtype_, (piece.end - piece.begin) * size_);
      p_.buffers[id].unit = piece.unit;
      taken.push_back(id);
      sources.push_back(Whole(p_, id));
      Convert(Source(piece), sources.back());
    }
    EmitCollective(bucket, sources);
    for (size_t i = 0; i < sources.size(); ++i) {
      const GradPiece& piece = bucket.pieces[i];
      if (ReducesAll()) {
        Convert(sources[i], Source(piece));
      } else if (piece.last_of_unit) {
        const BufferId whole = whole_[static_cast<size_t>(piece.unit)];
        const uint64_t bytes = UnitOf(piece).shard_elements * DtypeBytes(p_.buffers[whole].dtype);
        const Ref sum = Destination(piece, sources[i]);
        Convert(Owned(sum), Owned({whole, 0, bytes, bytes}));
        if (sum.buffer != taken[i]) taken.push_back(sum.buffer);
      }
    }
  }

  // `sources`: of each piece, in what is sent.
  void EmitCollective(const ReduceBucket& bucket, const std::vector<Ref>& sources) {
    const bool all = ReducesAll();
    std::vector<Segment> whole, parts, crossing;
    for (size_t i = 0; i < sources.size(); ++i) {
      const GradPiece& piece = bucket.pieces[i];
      const Ref& src = sources[i];
      if (all) {
        whole.push_back({src, src, converts_ ? piece.unit : -1, converts_ ? piece.begin : 0,
                         converts_ ? piece.end : 0});
      } else if (IsUnit(piece)) {
        whole.push_back({src, Destination(piece, src)});
      } else {
        parts.push_back({src, Destination(piece, src), piece.unit, piece.begin, piece.end});
      }
      if (hybrid_ && !all && piece.last_of_unit && (in_place_ || crosses_each_)) {
        const Ref shard = Destination(piece, src);
        crossing.push_back({shard, Direct() && !in_place_ ? SumHome(piece) : Owned(shard)});
      }
    }
    if (all) {
      emit_.Collect(CollectiveKind::kAllReduce, RankAxis::kAll, dtype_, whole, Stream::kReduce);
    } else if (!whole.empty()) {
      emit_.Collect(CollectiveKind::kReduceScatter, RankAxis::kShard, dtype_, whole,
                    Stream::kReduce);
    }
    if (!parts.empty()) {
      emit_.Collect(CollectiveKind::kReduceToOwners, RankAxis::kShard, dtype_, parts,
                    Stream::kReduce);
    }
    if (!crossing.empty()) EmitCrossing(crossing);
  }

  // Sums the shards that a step's micro-steps have added to over the groups, in what is sent.
  void EmitCrossingOfSums(const ReduceBucket& bucket) {
    const Dtype kept = p_.setup.precision.grad_accum_dtype;
    std::vector<Segment> crossing;
    std::vector<std::pair<Ref, Ref>> back;  // what was converted, and where it was
    emit_.When(kReduces);
    for (const GradPiece& piece : bucket.pieces) {
      if (!piece.last_of_unit) continue;
      const Ref shard = SumHome(piece);
      const Ref sent = kept == dtype_ ? shard : Destination(piece, {});
      if (kept != dtype_) {
        Convert(shard, sent);
        back.emplace_back(Owned(sent), Owned(shard));
      }
      crossing.push_back({sent, Owned(sent)});
    }
    if (!crossing.empty()) EmitCrossing(crossing);
    for (const auto& [sent, home] : back) Convert(sent, home);
    emit_.When(kEvery);
  }

  // Adds what arrived to the shard's home, where it did not arrive there.
  void EmitToShard(const GradPiece& piece) {
    const bool all = ReducesAll() && world_ > 1;
    if (Direct() && world_ > 1 && !all) return;
    const Unit& unit = UnitOf(piece);
    uint64_t begin = 0, end = GradShardElements(p_.setup, unit);
    Ref src;
    if (world_ == 1) {  // one rank: the piece is its own sum
      src = Source(piece);
      begin = piece.begin;
      end = piece.end;
    } else if (all) {
      const uint64_t shard_bytes = unit.shard_elements * size_;
      src = Owned({whole_[static_cast<size_t>(piece.unit)], 0, shard_bytes, shard_bytes});
    } else {
      src = Destination(piece, {});
      if (crosses_each_) src = Owned(src);
    }
    const Ref for_host = ForHost(piece.unit, src);
    const bool sums = Accumulates(p_.setup);
    AddToHomes(piece.unit, src, for_host, begin, end, sums ? kWritesGrads : kEvery, kNoFlags);
    if (sums) AddToHomes(piece.unit, src, for_host, begin, end, kAddsGrads, kAccumulate);
    emit_.When(kEvery);
  }

  // What of the rank's sum, `src`, goes to host memory, in fewer bytes where it is summed in
  // fewer there; else `src`.
  Ref ForHost(int unit, const Ref& src) {
    const Dtype dtype = HostGradDtype(p_.setup);
    const uint64_t own = GradShardElements(p_.setup, p_.layout.units[static_cast<size_t>(unit)]);
    const GradRange range = homes_.GradHomes(unit, 0, own)[0];
    const uint64_t count = range.end - range.begin;
    if (dtype == dtype_ || count == 0) return src;
    const Ref dst = Scratch("for_host", dtype, count, unit, for_host_[static_cast<size_t>(unit)]);
    Convert(src.Part(0, count * size_), dst);
    return dst;
  }

  // `src` holds elements [begin, end) of the rank's sum; `for_host` those of them that go to the
  // host.
  void AddToHomes(int unit, const Ref& src, const Ref& for_host, uint64_t begin, uint64_t end,
                  uint8_t when, uint8_t flags) {
    emit_.When(when);
    for (const GradRange& range : homes_.GradHomes(unit, begin, end)) {
      const uint64_t count = range.end - range.begin;
      if (count == 0) continue;
      const bool to_host = p_.buffers[range.home.buffer].role == Role::kGradHost;
      const Ref& from = to_host ? for_host : src;
      const uint64_t size = DtypeBytes(p_.buffers[from.buffer].dtype);
      const Ref part = from.Part((range.begin - begin) * size, count * size);
      emit_.Launch(KernelId::kConvert, {static_cast<int64_t>(count)}, flags, {part, range.home},
                   Stream::kReduce);
    }
  }

  Program& p_;
  Emitter emit_;
  const int stage_, world_;
  const bool in_place_;
  const bool hybrid_, crosses_each_;
  const bool converts_;  // gradients that are kept in 16 bit
  const Dtype dtype_;    // in which gradients are sent, and its bytes
  const uint64_t size_;
  const std::vector<BufferId> whole_;
  const StateHomes homes_;
  std::vector<BufferId> scratch_;                // by unit: what its reduced gradients arrived in
  std::vector<BufferId> for_host_;               // by unit: those of them that go to the host
  std::deque<std::vector<BufferId>> converted_;  // by bucket: what is not freed yet
};

// Whole gradients become transient: what they are reduced to persists.
void MakeTransient(Program& p) {
  for (BufferId id : UnitBuffers(p, Role::kGradFull)) {
    if (id == kNoBuffer) continue;
    p.buffers[id].persistent = false;
    p.buffers[id].memory_class = MemoryClass::kBuffers;
  }
}

// Zeroes what no kernel writes of a transient gradient: alignment between tensors and the unit's
// end.
void FillGaps(Program& p, const Unit& unit, const GradPiece& piece, BufferId buffer,
              Emitter& emit) {
  const uint64_t size = DtypeBytes(FullGradDtype(p.setup));
  uint64_t at = piece.begin;
  auto fill = [&](uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    const uint64_t bytes = (end - begin) * size;
    emit.Launch(KernelId::kFill, {static_cast<int64_t>(bytes)}, kNoFlags,
                {Ref{buffer, (begin - PieceBase(piece)) * size, bytes, 0}});
  };
  for (const TensorSlot& slot : unit.slots) {
    if (slot.offset < piece.begin || slot.offset >= piece.end) continue;
    fill(at, slot.offset);
    at = slot.offset + slot.elements;
  }
  fill(at, piece.end);
}

}  // namespace

Program InsertReduction(Program p) {
  std::vector<Instruction>& list = p.section(Section::kMicroStep);
  if (list.empty()) return p;
  const bool in_place = GradsInPlace(p.setup);
  if (!in_place) MakeTransient(p);
  std::vector<ReduceBucket> buckets = PlanReduceBuckets(p, list);
  if (!in_place) GiveOwnBuffers(p, list, buckets);

  std::vector<std::vector<size_t>> done_at(list.size()), begun_at(list.size());
  for (size_t b = 0; b < buckets.size(); ++b) {
    done_at[buckets[b].last_write].push_back(b);
    begun_at[buckets[b].first_write].push_back(b);
  }
  std::vector<Instruction> in = std::move(list);
  std::vector<Instruction> out;
  out.reserve(in.size() * 3 / 2 + 4 * buckets.size());
  Reducer reducer(p, out);
  Emitter emit(p, out);
  const std::vector<BufferId> whole = UnitBuffers(p, Role::kGradFull);
  auto release = [&](const ReduceBucket& bucket, const Instruction& at, uint8_t when) {
    emit.Tag(at.phase, at.layer, when);
    for (const GradPiece& piece : bucket.pieces) {
      if (piece.last_of_unit) reducer.ReleaseScratch(piece.unit, emit);
      if (piece.own_buffer != kNoBuffer || piece.last_of_unit) {
        emit.Release(PieceBuffer(piece, whole));
      }
    }
  };
  const bool overlap = p.setup.zero.overlap_comm;
  size_t released = 0, done = 0;  // buckets, in order of completion
  for (size_t i = 0; i < in.size(); ++i) {
    if (!in_place) {
      for (size_t b : begun_at[i]) {
        // Two buckets at a time: the one being reduced and the one being filled.
        while (overlap && released + 1 < std::min(b, done)) {
          release(buckets[released++], in[i], kEvery);
        }
        emit.Tag(in[i].phase, in[i].layer);
        for (const GradPiece& piece : buckets[b].pieces) {
          FillGaps(p, p.layout.units[static_cast<size_t>(piece.unit)], piece,
                   PieceBuffer(piece, whole), emit);
        }
      }
    }
    const Instruction& at = in[i];
    if (in_place && WritesGrads(p, at)) {
      EmitWriteAndAdd(p, at, out);
    } else {
      out.push_back(at);
    }
    for (size_t b : done_at[i]) {
      if (reducer.converts()) {
        emit.Tag(at.phase, at.layer, kReduces);
        reducer.ReleaseConverted(1, emit);
      }
      reducer.Emit(buckets[b], at);
      if (!overlap) reducer.ReleaseConverted(0, emit);
      done = b + 1;
      if (in_place) continue;
      while (!overlap && released < done) release(buckets[released++], at, kEvery);
    }
  }
  if (reducer.converts()) {
    emit.Tag(in.back().phase, in.back().layer, kReduces);
    reducer.ReleaseConverted(0, emit);
  }
  // The last buckets are reduced beside the next micro-step's forward pass, where there is one:
  // InsertLifetimes frees them there.
  const uint8_t when = Accumulates(p.setup) ? kCompletesGrads : kEvery;
  while (!in_place && released < buckets.size()) release(buckets[released++], in.back(), when);
  p.section(Section::kMicroStep) = std::move(out);
  return p;
}

}  // namespace zeroplan
