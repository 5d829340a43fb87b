// Pass 5: gradients are summed over micro-steps and ranks.
//
// In place (stages 0 and 1, or one rank that keeps its optimizer on the GPU): whole gradients
// persist; the first micro-step writes them, the others add; the last one reduces them by buckets.
// Otherwise (stages 2 and 3): whole gradients are transient, every micro-step reduces each bucket
// as soon as the backward pass has filled it (ZeRO paper, section 5.2), and what arrives is added
// to where the shard's elements live. With overlap_comm a bucket and what it is reduced to stay
// until the next bucket but one begins, so that the backward pass does not wait for the reduction.
// Of offloaded states that is host memory, which the adding kernel cannot reach by itself:
// InsertOffload sees to that.
#include <algorithm>

#include "core/config/setup_facts.h"
#include "core/lowering/emitter.h"
#include "core/lowering/passes.h"
#include "core/lowering/reduce_buckets.h"
#include "core/lowering/state_homes.h"

namespace zeroplan {
namespace {

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
        dtype_(FullGradDtype(p.setup)),
        size_(DtypeBytes(dtype_)),
        whole_(UnitBuffers(p, Role::kGradFull)),
        homes_(p),
        scratch_(p.layout.units.size(), kNoBuffer) {}

  void Emit(const ReduceBucket& bucket, const Instruction& at) {
    emit_.Tag(Phase::kBackward, at.layer, stage_ <= 1 ? kReduces : kEvery);
    if (in_place_) {
      if (world_ > 1) EmitCollective(bucket);
      return;
    }
    if (world_ > 1) EmitCollective(bucket);
    for (const GradPiece& piece : bucket.pieces) {
      if (piece.last_of_unit || world_ == 1) EmitToShard(piece);
    }
  }

  // What the unit's reduced gradients arrived in, if that is transient; else kNoBuffer.
  BufferId scratch(int unit) const { return scratch_[static_cast<size_t>(unit)]; }

 private:
  const Unit& UnitOf(const GradPiece& piece) const {
    return p_.layout.units[static_cast<size_t>(piece.unit)];
  }
  // Where the piece's gradients lie: the unit's buffer, or the piece's own.
  Ref Source(const GradPiece& piece) const {
    return {PieceBuffer(piece, whole_), (piece.begin - PieceBase(piece)) * size_,
            (piece.end - piece.begin) * size_, 0};
  }
  bool Direct() const {
    return !Accumulates(p_.setup) && p_.setup.precision.grad_accum_dtype == dtype_ &&
           p_.setup.zero.offload_optimizer.device == OffloadDevice::kNone;
  }
  // Where this rank's sum of the unit arrives.
  Ref Destination(const GradPiece& piece) {
    const auto u = static_cast<size_t>(piece.unit);
    const uint64_t bytes = UnitOf(piece).shard_elements * size_;
    if (in_place_) return {whole_[u], 0, bytes, bytes};
    if (Direct()) return homes_.GradHomes(piece.unit, 0, UnitOf(piece).shard_elements)[1].home;
    if (scratch_[u] == kNoBuffer) {
      scratch_[u] = AddBuffer(p_, "reduced", Role::kReduceScratch, dtype_, bytes);
      p_.buffers[scratch_[u]].unit = piece.unit;
    }
    return {scratch_[u], 0, bytes, 0};
  }

  void EmitCollective(const ReduceBucket& bucket) {
    const bool all = stage_ == 0 || !p_.setup.zero.reduce_scatter;
    std::vector<Segment> whole, parts;
    for (const GradPiece& piece : bucket.pieces) {
      const Ref src = Source(piece);
      if (all) {
        whole.push_back({src, src});
      } else if (piece.begin == 0 && piece.end == UnitOf(piece).padded_elements) {
        whole.push_back({src, Destination(piece)});
      } else {
        parts.push_back({src, Destination(piece), piece.unit, piece.begin, piece.end});
      }
    }
    if (!whole.empty()) {
      emit_.Collect(all ? CollectiveKind::kAllReduce : CollectiveKind::kReduceScatter, dtype_,
                    whole, Stream::kReduce);
    }
    if (!parts.empty()) {
      emit_.Collect(CollectiveKind::kReduceToOwners, dtype_, parts, Stream::kReduce);
    }
  }

  // Adds what arrived to the shard's home, where it did not arrive there.
  void EmitToShard(const GradPiece& piece) {
    const bool all = !p_.setup.zero.reduce_scatter && world_ > 1;
    if (Direct() && world_ > 1 && !all) return;
    const Unit& unit = UnitOf(piece);
    uint64_t begin = 0, end = unit.shard_elements;
    Ref src;
    if (world_ == 1) {  // one rank: the piece is its own sum
      src = Source(piece);
      begin = piece.begin;
      end = piece.end;
    } else if (all) {
      const uint64_t shard_bytes = unit.shard_elements * size_;
      src = {whole_[static_cast<size_t>(piece.unit)], 0, shard_bytes, shard_bytes};
    } else {
      src = Destination(piece);
    }
    const bool sums = Accumulates(p_.setup);
    AddToHomes(piece.unit, src, begin, end, sums ? kWritesGrads : kEvery, kNoFlags);
    if (sums) AddToHomes(piece.unit, src, begin, end, kAddsGrads, kAccumulate);
    emit_.When(kEvery);
  }

  // `src` holds elements [begin, end) of the rank's shard.
  void AddToHomes(int unit, const Ref& src, uint64_t begin, uint64_t end, uint8_t when,
                  uint8_t flags) {
    emit_.When(when);
    for (const GradRange& range : homes_.GradHomes(unit, begin, end)) {
      const uint64_t count = range.end - range.begin;
      if (count == 0) continue;
      const Ref part{src.buffer, src.offset + (range.begin - begin) * size_, count * size_,
                     src.rank_stride};
      emit_.Launch(KernelId::kConvert, {static_cast<int64_t>(count)}, flags, {part, range.home},
                   Stream::kReduce);
    }
  }

  Program& p_;
  Emitter emit_;
  const int stage_, world_;
  const bool in_place_;
  const Dtype dtype_;
  const uint64_t size_;
  const std::vector<BufferId> whole_;
  const StateHomes homes_;
  std::vector<BufferId> scratch_;
};

// Whole gradients become transient: what they are reduced to persists.
void MakeTransient(Program& p) {
  for (BufferId id : UnitBuffers(p, Role::kGradFull)) {
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
      if (piece.last_of_unit && reducer.scratch(piece.unit) != kNoBuffer) {
        emit.Release(reducer.scratch(piece.unit));
      }
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
      reducer.Emit(buckets[b], at);
      done = b + 1;
      if (in_place) continue;
      while (!overlap && released < done) release(buckets[released++], at, kEvery);
    }
  }
  // The last buckets are reduced beside the next micro-step's forward pass, where there is one:
  // InsertLifetimes frees them there.
  const uint8_t when = Accumulates(p.setup) ? kCompletesGrads : kEvery;
  while (!in_place && released < buckets.size()) release(buckets[released++], in.back(), when);
  p.section(Section::kMicroStep) = std::move(out);
  return p;
}

}  // namespace zeroplan
