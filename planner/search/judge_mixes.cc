// Items of SearchSpace::mixes: lists of choices of which one number of layers is open.
#include <algorithm>

#include "planner/search/judge.h"

namespace zeroplan {
namespace {

bool GpuFits(uint64_t gpu_bytes, const Capacity& capacity) {
  return !capacity.gpu_bytes || gpu_bytes <= *capacity.gpu_bytes;
}

// Of [first, end) the first of which `holds` is true, or `end`. REQUIRES: so it is of all behind.
template <typename Holds>
uint16_t FirstOf(uint16_t first, uint16_t end, const Holds& holds) {
  while (first < end) {
    const auto middle = static_cast<uint16_t>(first + (end - first) / 2);
    if (holds(middle)) {
      end = middle;
    } else {
      first = static_cast<uint16_t>(middle + 1);
    }
  }
  return first;
}

}  // namespace

uint16_t Judge::MembersOf(uint16_t mix) const {
  return mix == 0 ? 1 : static_cast<uint16_t>(in_.space.mixes[mix - 1u].size());
}

Candidate Judge::CandidateOf(uint32_t group, uint16_t mix, uint16_t member) const {
  Candidate candidate = groups_[group].candidate;
  if (mix > 0) candidate.recompute = in_.space.mixes[mix - 1u][member];
  return candidate;
}

const ComputeBound& Judge::ComputeOfMember(const Group& group, uint16_t mix, uint16_t member,
                                           int64_t micro_batch) {
  if (mix == 0) return ComputeOf(group, micro_batch);
  std::vector<const ComputeBound*>& all = mix_computes_[{
      mix, micro_batch, group.candidate.products, group.candidate.sequence_ranks, group.cluster}];
  if (all.empty()) all.resize(MembersOf(mix));
  if (all[member] == nullptr) {
    all[member] = &ComputeOf(group, micro_batch, in_.space.mixes[mix - 1u][member]);
  }
  return *all[member];
}

// From one member to the next less is on the GPU, and no more on hosts.
uint16_t Judge::FirstThatFits(const Group& group, uint16_t mix, int64_t micro_batch,
                              const Capacity& capacity) {
  const auto needs = [&](uint16_t member) {
    return Needs(group, micro_batch,
                 Bounds::Memory(group.bound, ComputeOfMember(group, mix, member, micro_batch)));
  };
  return FirstOf(0, MembersOf(mix), [&](uint16_t m) { return Fits(needs(m), capacity); });
}

std::vector<Item> Judge::OpenMixes(const Question& question, bool cut, const Score& floor,
                                   bool each) {
  std::vector<Item> items;
  const bool for_memory = question.any || question.objective == Objective::kHeadroom;
  const PairsByRanks all_pairs = Pairs(question);
  const auto mixes = static_cast<uint16_t>(in_.space.mixes.size());
  for (uint32_t g = 0; g < groups_.size() && mixes > 0; ++g) {
    const Group& group = groups_[g];
    if (!CarriesMixes(group.candidate, in_.space)) continue;
    const Capacity capacity = CapacityFor(group.candidate, question);
    // None is faster than what keeps all.
    std::vector<BatchPair> pairs = all_pairs.at(group.candidate.data_ranks());
    const size_t all = pairs.size();
    const bool keeps_all = group.candidate.recompute == kNoRecompute;
    std::erase_if(pairs, [&](const BatchPair& batch) {
      if (!keeps_all) return false;
      const ComputeBound& compute = ComputeOf(group, batch.micro_batch);
      return BoundOf(question, group, batch, compute, Bounds::Memory(group.bound, compute)) < floor;
    });
    for (uint16_t mix = 1; mix <= mixes; ++mix) {
      if (question.among && !question.among(CandidateOf(g, mix, 0))) continue;
      const uint16_t end = MembersOf(mix);
      uint16_t first = 0;
      int64_t micro_batch = 0;
      stats.candidates += all * end;
      stats.cut_by_score += (all - pairs.size()) * end;
      for (const BatchPair& batch : pairs) {
        if (cut && batch.micro_batch != micro_batch) {
          first = FirstThatFits(group, mix, batch.micro_batch, capacity);
          micro_batch = batch.micro_batch;
        }
        uint16_t member = first;
        if (member >= end) {
          stats.cut_by_memory += end;
          continue;
        }
        if (for_memory && !each) member = static_cast<uint16_t>(end - 1);
        stats.cut_by_memory += member;
        for (; member < end; ++member) {
          const ComputeBound& compute = ComputeOfMember(group, mix, member, batch.micro_batch);
          const MemoryBound memory = Bounds::Memory(group.bound, compute);
          const Score bound = BoundOf(question, group, batch, compute, memory);
          if (bound < floor) {  // nor is what keeps less
            stats.cut_by_score += static_cast<uint64_t>(end - member);
            break;
          }
          const auto behind = static_cast<uint16_t>(each ? member + 1 : end);
          items.push_back({bound, memory.gpu_bytes, g, batch, mix, member, behind});
          if (!each) break;
        }
      }
    }
  }
  return items;
}

std::optional<Item> Judge::Behind(const Question& question, const Item& item, const Found& found) {
  if (item.end - item.member == 1) return std::nullopt;
  const std::vector<RecomputeConfig>& members = in_.space.mixes[item.mix - 1u];
  const auto at = std::find(members.begin() + item.member, members.begin() + item.end,
                            found.candidate.recompute);
  Item behind = item;
  behind.member = static_cast<uint16_t>(at - members.begin() + 1);
  if (behind.member >= item.end) return std::nullopt;
  const Group& group = groups_[item.group];
  const ComputeBound& compute =
      ComputeOfMember(group, item.mix, behind.member, item.batch.micro_batch);
  const MemoryBound memory = Bounds::Memory(group.bound, compute);
  behind.bound = BoundOf(question, group, item.batch, compute, memory);
  behind.gpu_bytes = memory.gpu_bytes;
  return behind;
}

uint16_t Judge::LikelyMember(const Question& question, const Item& item, uint16_t first,
                             uint16_t end) {
  const Group& group = groups_[item.group];
  const auto last = static_cast<uint16_t>(end - 1);
  // As lists of the same kinds took beyond their bounds, or, before any did, as the kind of the
  // layers above did, whose backward pass is at the peak.
  auto beyond = beyond_bound_.find(MemoryKindOf(CandidateOf(item.group, item.mix, first)));
  if (beyond == beyond_bound_.end()) {
    Candidate above = CandidateOf(item.group, item.mix, first);
    above.recompute = above.recompute.layers > 0
                          ? RecomputeConfig{above.recompute.above}
                          : RecomputeConfig{above.recompute.kind, above.recompute.every};
    beyond = beyond_bound_.find(MemoryKindOf(above));
  }
  if (beyond == beyond_bound_.end()) return first;
  const Capacity capacity = CapacityFor(group.candidate, question);
  return FirstOf(first, last, [&](uint16_t m) {
    MemoryTotals needs = Needs(
        group, item.batch.micro_batch,
        Bounds::Memory(group.bound, ComputeOfMember(group, item.mix, m, item.batch.micro_batch)));
    return GpuFits(needs.gpu_bytes + beyond->second, capacity);
  });
}

// Of layers that compute less again, or stay on the GPU, one more takes no less of it: at the peak,
// in the last layer's backward pass, it has saved more, and while a lower layer runs backward there
// is no more than there was then. So a member that is too large for the GPU rules out those before
// it, and one that fits those behind it, which run what it runs and more.
std::optional<Found> Judge::TryMembers(const Question& question, const Item& item) {
  const Group& group = groups_[item.group];
  const Capacity capacity = CapacityFor(group.candidate, question);
  uint16_t first = item.member, end = item.end;
  // What smaller micro-batches and the same one have said.
  for (uint16_t m = first; m < end; ++m) {
    if (AnySmaller(item, m, [&](const MemoryTotals& least, int64_t micro_batch) {
          return !GpuFits(Needs(group, micro_batch, least).gpu_bytes, capacity);
        })) {
      first = static_cast<uint16_t>(m + 1);
    }
  }
  uint64_t looked = 0;
  std::optional<Found> found;
  // Where gaps of placement alone are too much, others may fit all the same.
  std::vector<uint8_t> passed(item.end, 0);
  for (int step = 1;; ++looked) {
    int at = looked == 0 && first < end ? LikelyMember(question, item, first, end)
             : found                    ? std::max<int>(first, end - step)
                                        : std::min<int>(first + step, end) - 1;
    if (looked > 0) step *= 2;
    while (at >= first && at < end && passed[static_cast<size_t>(at)] != 0) --at;
    if (at < first) at = first;
    while (at < end && passed[static_cast<size_t>(at)] != 0) ++at;
    if (at >= end) break;
    const auto m = static_cast<uint16_t>(at);
    const Judged& judged = JudgedOf(item, m);
    const MemoryTotals live = Needs(group, item.batch.micro_batch, judged.live);
    if (const std::optional<Found> fits = FoundOf(question, KeyOf(item, m), item.batch, judged)) {
      found = fits;
      end = m;
    } else if (Fits(live, capacity)) {
      passed[m] = 1;
    } else {
      first = static_cast<uint16_t>(m + 1);
    }
  }
  // `looked` are judged; of the others those before `end` do not fit, those behind it are slower.
  const auto members = static_cast<uint64_t>(item.end - item.member);
  const uint64_t slower = found ? static_cast<uint64_t>(item.end - end - 1) : 0;
  stats.judged += looked;
  stats.cut_by_score += std::min(slower, members - looked);
  stats.cut_by_memory += members - looked - std::min(slower, members - looked);
  return found;
}

}  // namespace zeroplan
