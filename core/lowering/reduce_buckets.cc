#include "core/lowering/reduce_buckets.h"

#include <algorithm>
#include <map>

#include "core/base/error.h"
#include "core/config/setup_facts.h"
#include "core/lowering/emitter.h"
#include "core/lowering/passes.h"
#include "core/program/bucket_sizes.h"

namespace zeroplan {
namespace {

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

}  // namespace

std::vector<ReduceBucket> PlanReduceBuckets(const Program& p,
                                            const std::vector<Instruction>& list) {
  const uint64_t bucket_elements = ReduceBucketElements(p);
  const bool each_tensor = !p.setup.zero.contiguous_gradients && !GradsInPlace(p.setup);
  const std::vector<SlotWrites> writes = FindWrites(p, list);
  std::vector<TimedPiece> pieces;
  for (size_t u = 0; u < p.layout.units.size(); ++u) {
    const Unit& unit = p.layout.units[u];
    if (!unit.trainable) continue;
    CutUnit(unit, static_cast<int>(u), writes[u], bucket_elements, each_tensor, pieces);
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

}  // namespace zeroplan
