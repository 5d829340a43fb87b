#include "planner/search/judge.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {
namespace {

Score MakeScore(Objective objective, const Candidate& candidate, double tokens_per_second,
                double gpu_bytes) {
  switch (objective) {
    case Objective::kThroughput:
      return {tokens_per_second, -gpu_bytes};
    case Objective::kHeadroom:
      return {-gpu_bytes, tokens_per_second};
    case Objective::kFewestGpus:
      return {-static_cast<double>(candidate.gpus), tokens_per_second};
  }
  return {};
}

// From three micro-steps on the program is the same.
int64_t ProgramAccum(int64_t grad_accum) { return std::min<int64_t>(grad_accum, 3); }

}  // namespace

std::array<int, 5> Complexity(const Candidate& c) {
  const Candidate simple;
  const int offloads = static_cast<int>(c.optimizer.device) + 3 * static_cast<int>(c.param);
  constexpr int kMostOffloads = 16;
  const int settings = (c.optimizer.ratio < 1) + (c.recompute.every > 1) +
                       (c.buckets.reduce != simple.buckets.reduce) +
                       (c.buckets.prefetch != simple.buckets.prefetch) +
                       !(c.gathering == simple.gathering) +
                       (c.sub_group_elements != simple.sub_group_elements) + !c.pin_memory +
                       (c.products.least_side > 0);
  constexpr int kMostRanks = 1 << 20;
  const int groups =
      c.grouping.ranks == 0 ? 0 : c.grouping.ranks + (c.grouping.across_stage + 1) * kMostRanks;
  // Kinds that all layers share, then mixes, then what moves activations.
  const RecomputeConfig& r = c.recompute;
  constexpr int kKinds = 4;
  const int recompute =
      static_cast<int>(r.kind) +
      kKinds * ((r.layers > 0) + (r.above != RecomputeKind::kNone) +
                3 * (r.offload.device != OffloadDevice::kNone) + 3 * (r.offload.layers > 0));
  constexpr int kStages = 4;
  const int sharing = kStages * (c.sequence_ranks - 1) + c.stage;
  return {InexactnessOf(c) * kMostOffloads + offloads, sharing, groups, recompute, settings};
}

Score ScoreOf(Objective objective, const Found& found) {
  return MakeScore(objective, found.candidate, found.tokens_per_second,
                   static_cast<double>(found.gpu_bytes));
}

double GapOf(const Score& score, const Score& bound) {
  return bound.primary != score.primary ? std::abs(bound.primary / score.primary - 1)
                                        : std::abs(bound.secondary / score.secondary - 1);
}

ExtraMemory ExtraMemoryOf(const SearchInputs& inputs, const TrainSetup& setup) {
  return inputs.extra_memory ? inputs.extra_memory(setup) : ExtraMemory{};
}

Judge::Judge(SearchInputs inputs, std::shared_ptr<LoweredPrograms> programs)
    : in_(std::move(inputs)),
      programs_(programs ? std::move(programs)
                         : std::make_shared<LoweredPrograms>(in_.model, in_.base, in_.lower)),
      bounds_(in_.model, programs_->tensors(), in_.base, in_.lower) {
  ZEROPLAN_CHECK(in_.clusters.size() == in_.space.gpus.size());
  CheckBatches();
  for (const Candidate& candidate : Groups(in_.space)) AddGroup(candidate);
}

// What the caller has pinned may be more than can be planned.
void Judge::CheckBatches() const {
  const SearchSpace& space = in_.space;
  if (space.micro_batches.empty() || space.grad_accums.empty()) return;
  CheckMicroBatch(space.micro_batches.front(), in_.base.batch.seq_len,
                  space.most_micro_step_tokens);
  TrainSetup least = in_.base;
  least.batch.world_size = space.gpus.back();
  least.batch.micro_batch = space.micro_batches.front();
  least.batch.grad_accum = space.grad_accums.front();
  ValidateSetup(least, "command line");
}

void Judge::AddGroup(const Candidate& candidate) {
  Group group;
  group.candidate = candidate;
  const SearchCluster& at = ClusterOf(candidate);
  group.cluster = static_cast<size_t>(&at - in_.clusters.data());
  const TrainSetup setup = SetupOf(candidate, in_.base);
  if (in_.excluded && in_.excluded(setup)) return;
  group.extra = ExtraMemoryOf(in_, setup);
  group.bound = bounds_.Group(candidate, at.cluster, *at.costs);
  groups_.push_back(group);
}

const SearchCluster& Judge::ClusterOf(const Candidate& candidate) const {
  const auto at = std::find(in_.space.gpus.begin(), in_.space.gpus.end(), candidate.gpus);
  ZEROPLAN_CHECK(at != in_.space.gpus.end());
  return in_.clusters[static_cast<size_t>(at - in_.space.gpus.begin())];
}

const ComputeBound& Judge::ComputeOf(const Group& group, int64_t micro_batch,
                                     const RecomputeConfig& recompute) {
  return bounds_.Compute(micro_batch, recompute, *ClusterOf(group).costs, group.candidate.products,
                         group.candidate.sequence_ranks);
}

Capacity Judge::CapacityFor(const Candidate& candidate, const Question& question) const {
  const Cluster& of = ClusterOf(candidate).cluster;
  if (!question.gpu_capacity_bytes) return CapacityOf(of);
  Cluster cluster = of;
  cluster.gpu_capacity_bytes = *question.gpu_capacity_bytes;
  return CapacityOf(cluster);
}

MemoryTotals Judge::Needs(const Group& group, int64_t micro_batch, MemoryTotals totals) {
  totals.gpu_bytes += group.extra.Of(micro_batch);
  return totals;
}

int64_t Judge::LocalSeq(const Candidate& candidate) const {
  return in_.base.batch.seq_len / candidate.sequence_ranks;
}

uint64_t Judge::LogitsOf(const Candidate& candidate, int64_t micro_batch) const {
  return LogitsChunkBytes(in_.model, in_.base.precision.dtype, micro_batch * LocalSeq(candidate),
                          in_.lower);
}

bool Judge::ProductsHangOnBatch(const Candidate& candidate) const {
  const ProductsKind& products = candidate.products;
  return products.fp8 && LocalSeq(candidate) % Fp8Multiple(products.recipe) != 0;
}

double Judge::Tokens(const Candidate& candidate, const BatchPair& batch) const {
  return static_cast<double>(batch.micro_batch) * static_cast<double>(batch.grad_accum) *
         candidate.data_ranks() * static_cast<double>(in_.base.batch.seq_len);
}

std::vector<BatchPair> Judge::PairsOf(const Question& question, int data_ranks) const {
  if (!question.global_batch) return BatchPairs(in_.space, data_ranks);
  SearchSpace space = in_.space;
  SetBatches(space, question.global_batch, in_.base.batch.seq_len);
  if (space.micro_batch_fixed) space.micro_batches = in_.space.micro_batches;
  if (space.grad_accum_fixed) space.grad_accums = in_.space.grad_accums;
  return BatchPairs(space, data_ranks);
}

Judge::PairsByRanks Judge::Pairs(const Question& question) const {
  PairsByRanks pairs;
  for (const Group& group : groups_) {
    const int ranks = group.candidate.data_ranks();
    if (!pairs.contains(ranks)) pairs.emplace(ranks, PairsOf(question, ranks));
  }
  return pairs;
}

Score Judge::BoundOf(const Question& question, const Group& group, const BatchPair& batch,
                     const ComputeBound& compute, const MemoryBound& memory) const {
  const double seconds = Bounds::StepSeconds(group.bound, compute, batch.grad_accum);
  // Bounds and programs add the same numbers up in another order.
  constexpr double kRounding = 1 + 1e-9;
  const double rate = kRounding * Tokens(group.candidate, batch) / seconds;
  return MakeScore(question.objective, group.candidate, rate,
                   static_cast<double>(memory.gpu_bytes));
}

std::vector<Item> Judge::Open(const Question& question, bool cut) {
  std::vector<Item> items;
  const PairsByRanks all_pairs = Pairs(question);
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (question.among && !question.among(group.candidate)) continue;
    const std::vector<BatchPair>& pairs = all_pairs.at(group.candidate.data_ranks());
    stats.candidates += pairs.size();
    const Capacity capacity = CapacityFor(group.candidate, question);
    for (size_t i = 0; i < pairs.size(); ++i) {
      const ComputeBound& compute = ComputeOf(group, pairs[i].micro_batch);
      const MemoryBound memory = Bounds::Memory(group.bound, compute);
      if (cut && !Fits(Needs(group, pairs[i].micro_batch, memory), capacity)) {
        MemoryBound without_logits = memory;
        without_logits.gpu_bytes -=
            std::min(memory.gpu_bytes, LogitsOf(group.candidate, pairs[i].micro_batch));
        if (Fits(Needs(group, pairs[i].micro_batch, without_logits), capacity)) {
          ++stats.cut_by_memory;  // a larger micro-batch may have smaller chunks of logits
          continue;
        }
        if (ProductsHangOnBatch(group.candidate)) {  // and may take less
          ++stats.cut_by_memory;
          continue;
        }
        stats.cut_by_memory += pairs.size() - i;  // nor does any larger micro-batch
        break;
      }
      items.push_back(
          {BoundOf(question, group, pairs[i], compute, memory), memory.gpu_bytes, g, pairs[i]});
    }
  }
  return items;
}

Judge::JudgedKey Judge::KeyOf(const Item& item, uint16_t member) {
  return {item.group, item.mix, item.batch.micro_batch, ProgramAccum(item.batch.grad_accum),
          member};
}

const Judge::Judged& Judge::JudgedOf(const Item& item, uint16_t member) {
  const auto [entry, fresh] = judged_.try_emplace(KeyOf(item, member));
  if (!fresh) return entry->second;
  const Group& group = groups_[item.group];
  Candidate candidate = CandidateOf(item.group, item.mix, member);
  candidate.micro_batch = item.batch.micro_batch;
  candidate.grad_accum = ProgramAccum(item.batch.grad_accum);
  ++stats.lowered;
  const SearchCluster& at = ClusterOf(group);
  const std::shared_ptr<const LoweredChoice> lowered = programs_->Of(candidate);
  stats.instructions += lowered->instructions;
  Judged& result = entry->second;
  result.totals = TotalsOf(lowered->arena_bytes, lowered->outside, at.cluster);
  std::array<uint64_t, kSpaces> live = lowered->arena_bytes;
  constexpr auto kDevice = static_cast<size_t>(Space::kDevice);
  live[kDevice] = lowered->live_peak_bytes[kDevice];
  result.live = TotalsOf(live, lowered->outside, at.cluster);
  result.parts = StepTimer(*at.costs).Play(lowered->step);
  const MemoryBound bound =
      Bounds::Memory(group.bound, ComputeOf(group, item.batch.micro_batch, candidate.recompute));
  const auto note = [](uint64_t taken, uint64_t of_bound, uint64_t& least) {
    least = std::min(least, taken - std::min(of_bound, taken));
  };
  note(result.live.gpu_bytes, bound.gpu_bytes,
       beyond_bound_.try_emplace(MemoryKindOf(candidate), UINT64_MAX).first->second);
  note(result.live.host_bytes, bound.host_bytes,
       beyond_host_bound_.try_emplace(HostKindOf(candidate), UINT64_MAX).first->second);
  return result;
}

bool Judge::FitsAs(const Question& question, uint32_t group, const BatchPair& batch,
                   const Judged& judged) const {
  const Group& g = groups_[group];
  return Fits(Needs(g, batch.micro_batch, judged.totals), CapacityFor(g.candidate, question));
}

Found Judge::AsFound(const JudgedKey& key, const BatchPair& batch, const Judged& judged) const {
  Candidate candidate = CandidateOf(std::get<0>(key), std::get<1>(key), std::get<4>(key));
  candidate.micro_batch = batch.micro_batch;
  candidate.grad_accum = batch.grad_accum;
  const double seconds = judged.parts.Of(batch.grad_accum).total_seconds;
  const double rate = Tokens(candidate, batch) / seconds;
  return {candidate, rate, seconds, judged.totals.gpu_bytes, rate};
}

std::optional<Found> Judge::FoundOf(const Question& question, const JudgedKey& key,
                                    const BatchPair& batch, const Judged& judged) const {
  if (!FitsAs(question, std::get<0>(key), batch, judged)) return std::nullopt;
  return AsFound(key, batch, judged);
}

std::optional<Found> Judge::Try(const Question& question, const Item& item) {
  if (item.end - item.member > 1) return TryMembers(question, item);
  ++stats.judged;
  return FoundOf(question, KeyOf(item, item.member), item.batch, JudgedOf(item, item.member));
}

bool Judge::Knows(const Item& item) const { return judged_.contains(KeyOf(item, item.member)); }

double Judge::MostOfKernels(const Candidate& candidate) {
  const ComputeBound& compute =
      bounds_.Compute(candidate.micro_batch, candidate.recompute, *ClusterOf(candidate).costs,
                      candidate.products, candidate.sequence_ranks);
  const auto seconds = [](const KernelTime& kernels) {
    return kernels.forward_seconds + kernels.backward_seconds;
  };
  const double least = std::min(seconds(compute.kernels), seconds(compute.gathered_kernels));
  return static_cast<double>(candidate.micro_batch * LocalSeq(candidate)) / least;
}

uint64_t Judge::CapacityNeeded(const Item& item, uint64_t gpu_bytes) const {
  const Group& group = groups_[item.group];
  return gpu_bytes + group.extra.Of(item.batch.micro_batch) +
         ClusterOf(group).cluster.gpu_reserve_bytes;
}

Judge::MemoryKind Judge::MemoryKindOf(const Candidate& c) {
  RecomputeConfig kind = MixOf(c.recompute);
  kind.every = std::min(kind.every, 1);
  return {c.sequence_ranks, c.stage, c.optimizer.device, c.param, kind};
}

Judge::HostKind Judge::HostKindOf(const Candidate& c) {
  return {c.stage, c.optimizer.device, c.param, c.sub_group_elements, c.grad_accum > 1};
}

bool Judge::UnlikelyToFit(const Question& question, const Item& item) {
  const Group& group = groups_[item.group];
  const auto last = static_cast<uint16_t>(item.end - 1);
  Candidate candidate = CandidateOf(item.group, item.mix, last);
  candidate.grad_accum = item.batch.grad_accum;
  const auto gpu = beyond_bound_.find(MemoryKindOf(candidate));
  // Of several members another one may take less of a host.
  const auto host = last == item.member ? beyond_host_bound_.find(HostKindOf(candidate))
                                        : beyond_host_bound_.end();
  const bool of_gpu = gpu != beyond_bound_.end();
  const bool of_host = host != beyond_host_bound_.end() && host->second > 0;
  if (!of_gpu && !of_host) return false;
  const Capacity capacity = CapacityFor(group.candidate, question);
  const int64_t micro_batch = item.batch.micro_batch;
  MemoryBound bound =
      Bounds::Memory(group.bound, ComputeOfMember(group, item.mix, last, micro_batch));
  if (last == item.member) bound.gpu_bytes = item.gpu_bytes;
  const MemoryTotals needs = Needs(group, micro_batch, bound);
  const auto exceeds = [](uint64_t needed, const std::optional<uint64_t>& has) {
    return has && needed > *has;
  };
  return (of_gpu && exceeds(needs.gpu_bytes + gpu->second, capacity.gpu_bytes)) ||
         (of_host && exceeds(needs.host_bytes + host->second, capacity.host_bytes));
}

bool Judge::TooLargeForGpu(const Question& question, const Item& item) const {
  const Group& group = groups_[item.group];
  const Capacity capacity = CapacityFor(group.candidate, question);
  const uint64_t needs = LeastGpuBytes(item) + group.extra.Of(item.batch.micro_batch);
  return capacity.gpu_bytes && needs > *capacity.gpu_bytes;
}

bool Judge::AnySmaller(const Item& item, uint16_t member,
                       const std::function<bool(const MemoryTotals&, int64_t)>& says) const {
  if (ProductsHangOnBatch(CandidateOfGroup(item.group))) return false;
  for (auto at = judged_.lower_bound({item.group, item.mix, 0, 0, 0});
       at != judged_.end() && std::get<0>(at->first) == item.group &&
       std::get<1>(at->first) == item.mix;
       ++at) {
    const int64_t micro_batch = std::get<2>(at->first);
    if (micro_batch > item.batch.micro_batch) break;
    // Gradients that are summed over micro-steps take memory that others do not.
    if (std::get<3>(at->first) != ProgramAccum(item.batch.grad_accum)) continue;
    if (std::get<4>(at->first) != member) continue;
    MemoryTotals least = at->second.live;
    const Candidate& group = CandidateOfGroup(item.group);
    const uint64_t smaller = LogitsOf(group, item.batch.micro_batch);
    const uint64_t logits = LogitsOf(group, micro_batch);
    least.gpu_bytes -= std::min(least.gpu_bytes, logits - std::min(logits, smaller));
    if (says(least, micro_batch)) return true;
  }
  return false;
}

bool Judge::TooLarge(const Question& question, const Item& item) const {
  const Group& group = groups_[item.group];
  const Capacity capacity = CapacityFor(group.candidate, question);
  // Of several members the last one takes least of a GPU, and what is short of a host may be less
  // short of another.
  const bool one = item.end - item.member == 1;
  const auto last = static_cast<uint16_t>(item.end - 1);
  return AnySmaller(item, last, [&](const MemoryTotals& least, int64_t micro_batch) {
    const MemoryTotals needs = Needs(group, micro_batch, least);
    return one ? !Fits(needs, capacity)
               : capacity.gpu_bytes && needs.gpu_bytes > *capacity.gpu_bytes;
  });
}

uint64_t Judge::LeastGpuBytes(const Item& item) const {
  uint64_t most = item.gpu_bytes;
  AnySmaller(item, item.member, [&](const MemoryTotals& least, int64_t) {
    most = std::max(most, least.gpu_bytes);
    return false;
  });
  return most;
}

std::optional<Found> Judge::BestKnown(const Question& question) const {
  const PairsByRanks all_pairs = Pairs(question);
  std::optional<Found> best;
  for (const auto& [key, judged] : judged_) {
    const auto& [group, mix, micro_batch, accum, member] = key;
    const Group& g = groups_[group];
    if (question.among && !question.among(CandidateOf(group, mix, member))) continue;
    const std::vector<BatchPair>& pairs = all_pairs.at(g.candidate.data_ranks());
    auto pair =
        std::lower_bound(pairs.begin(), pairs.end(), micro_batch,
                         [](const BatchPair& p, int64_t micro) { return p.micro_batch < micro; });
    for (; pair != pairs.end() && pair->micro_batch == micro_batch; ++pair) {
      if (ProgramAccum(pair->grad_accum) != accum) continue;
      const std::optional<Found> found = FoundOf(question, key, *pair, judged);
      if (!found) break;
      if (!best || ScoreOf(question.objective, *best) < ScoreOf(question.objective, *found)) {
        best = found;
      }
    }
  }
  return best;
}

std::vector<JudgedChoice> Judge::AllJudged(const Question& question) const {
  const PairsByRanks all_pairs = Pairs(question);
  std::vector<JudgedChoice> all;
  for (const auto& [key, judged] : judged_) {
    const auto& [group, mix, micro_batch, accum, member] = key;
    std::optional<JudgedChoice> best;
    for (const BatchPair& pair : all_pairs.at(groups_[group].candidate.data_ranks())) {
      if (pair.micro_batch != micro_batch || ProgramAccum(pair.grad_accum) != accum) continue;
      const JudgedChoice choice = {AsFound(key, pair, judged),
                                   FitsAs(question, group, pair, judged)};
      if (!best ||
          ScoreOf(question.objective, best->found) < ScoreOf(question.objective, choice.found)) {
        best = choice;
      }
    }
    if (best) all.push_back(*best);
  }
  return all;
}

std::optional<Candidate> Judge::Closest(const Question& question) {
  std::optional<Candidate> closest;
  double least = std::numeric_limits<double>::infinity();
  const PairsByRanks all_pairs = Pairs(question);
  const auto mixes = static_cast<uint16_t>(in_.space.mixes.size());
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    const std::vector<BatchPair>& pairs = all_pairs.at(group.candidate.data_ranks());
    if (pairs.empty()) continue;
    const int64_t micro_batch = pairs.front().micro_batch;
    const uint16_t lists = CarriesMixes(group.candidate, in_.space) ? mixes : 0;
    for (uint16_t mix = 0; mix <= lists; ++mix) {
      // Of a list's members the last one takes least.
      const auto last = static_cast<uint16_t>(MembersOf(mix) - 1);
      if (question.among && !question.among(CandidateOf(g, mix, last))) continue;
      const MemoryBound bound =
          Bounds::Memory(group.bound, ComputeOfMember(group, mix, last, micro_batch));
      const double excess =
          Excess(Needs(group, micro_batch, bound), CapacityFor(group.candidate, question));
      if (excess >= least) continue;
      least = excess;
      closest = CandidateOf(g, mix, last);
      closest->micro_batch = micro_batch;
      closest->grad_accum = pairs.front().grad_accum;
    }
  }
  return closest;
}

std::vector<CutCandidate> Judge::CutByMemory(size_t limit) {
  std::vector<CutCandidate> all;
  const PairsByRanks pairs = Pairs({});
  for (const Group& group : groups_) {
    for (const BatchPair& batch : pairs.at(group.candidate.data_ranks())) {
      const MemoryBound bound = Bounds::Memory(group.bound, ComputeOf(group, batch.micro_batch));
      if (Fits(Needs(group, batch.micro_batch, bound), CapacityFor(group.candidate, {}))) continue;
      Candidate candidate = group.candidate;
      candidate.micro_batch = batch.micro_batch;
      candidate.grad_accum = batch.grad_accum;
      all.push_back({candidate, bound});
    }
  }
  if (all.size() <= limit) return all;
  std::vector<CutCandidate> some;
  some.reserve(limit);
  for (size_t i = 0; i < limit; ++i) some.push_back(all[i * all.size() / limit]);
  return some;
}

ChoiceEstimate Judge::Estimate(const Candidate& candidate) const {
  const SearchCluster& at = ClusterOf(candidate);
  return EstimateProgram(programs_->InFull(candidate), at.cluster, at.costs);
}

}  // namespace zeroplan
