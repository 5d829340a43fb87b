// The advice before an answer: fewer GPUs, or another batch, that are as fast or faster.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/base/units.h"
#include "planner/advice/flips.h"
#include "planner/estimate/choices.h"
#include "planner/request/plan_answer.h"
#include "planner/search/search_space.h"

namespace zeroplan {
namespace {

// An upper limit of the tokens a second of one GPU: the speed of the kernels of `now`, with the
// micro-batch and settings that maximize it. The speed of kernels grows with their rows and levels
// off. Therefore the first doubling that gains less than kLevel is the last, and none beyond gains
// more than kBeyond.
double MostPerGpu(const ChoiceSearch& searcher, const Candidate& now) {
  constexpr double kLevel = 1.01, kBeyond = 1.02;
  const SearchSpace& space = searcher.inputs().space;
  Candidate c = now;
  c.optimizer = {};
  c.param = OffloadDevice::kNone;
  const int64_t seq_len = searcher.inputs().base.batch.seq_len / now.sequence_ranks;
  const int64_t most = std::min<int64_t>(1024, space.most_micro_step_tokens / seq_len);
  double best = 0;
  for (const RecomputeConfig& recompute : space.recompute) {
    // No recompute computes least.
    const bool without = std::count(space.recompute.begin(), space.recompute.end(), kNoRecompute);
    c.recompute = without ? kNoRecompute : recompute;
    for (const ProductsKind& products : space.products) {
      c.products = products;
      double before = 0;
      for (c.micro_batch = 1; c.micro_batch <= most; c.micro_batch *= 2) {
        const double rate = searcher.MostOfKernels(c);
        if (!std::isfinite(rate)) break;  // no such choice in the runtime, or no known time
        best = std::max(best, rate);
        if (rate < kLevel * before) break;
        before = rate;
      }
    }
    if (without) break;
  }
  return best > 0 ? kBeyond * best : std::numeric_limits<double>::infinity();
}

// The smaller numbers of GPUs to search, in descending order.
std::vector<int> FewerGpus(const Cluster& cluster) {
  const int node = cluster.ranks_per_node();
  std::vector<int> counts;
  const auto add = [&](int gpus) {
    if (gpus > 0 && gpus < cluster.gpus && (gpus <= node || gpus % node == 0)) {
      counts.push_back(gpus);
    }
  };
  if (cluster.nodes() > 1) {
    add(cluster.gpus - node);
    add(node);
  }
  for (int gpus = cluster.gpus; gpus % 2 == 0;) add(gpus /= 2);
  std::sort(counts.begin(), counts.end(), std::greater<>());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

// "16 GPUs of 2 nodes", "1 GPU".
std::string GpusText(int gpus, const Cluster& all) {
  const int node = all.ranks_per_node();
  std::string text = fmt::format("{} GPU{}", gpus, gpus == 1 ? "" : "s");
  if (gpus == 1 || all.nodes() == 1) return text;
  const int nodes = (gpus + node - 1) / node;
  return text + (nodes == 1 ? " of one node" : fmt::format(" of {} nodes", nodes));
}

// "as fast", "3.91 times as fast". Rounds down, so that the claim holds.
std::string TimesText(double times) {
  if (times <= 1 + kTieMargin) return "as fast";
  return fmt::format("{:.2f} times as fast", std::floor(100 * times) / 100);
}

// A choice on fewer GPUs.
struct Fewer {
  Found found;
  double gap = 0;
  std::optional<int64_t> global_batch;  // set if the request's batch cannot stay
  std::string choice;                   // the choice in words
};

class FewerSearch {
 public:
  FewerSearch(const ResolvedPlan& request, ChoiceSearch& searcher, const Plan& plan,
              const Found& now)
      : request_(request), searcher_(searcher), plan_(plan), now_(now) {}

  std::optional<AdviceLine> Line(double most_per_gpu) {
    const double least = TieFloor(now_.tokens_per_second);
    std::optional<Fewer> best, fewest;
    for (const int gpus : FewerGpus(plan_.cluster)) {
      if (gpus * most_per_gpu < least) break;
      const std::optional<Fewer> fewer = With(gpus, least);
      const bool reaches = fewer && fewer->found.tokens_per_second >= least;
      if (reaches) {
        fewest = fewer;
        if (!best || fewer->found.tokens_per_second >= TieFloor(best->found.tokens_per_second)) {
          best = fewer;
        }
      } else if (gpus <= plan_.cluster.ranks_per_node()) {
        break;  // all numbers of GPUs within a node have the same links
      }
    }
    if (!best) return std::nullopt;
    AdviceLine line{AdviceKind::kFewer, Sentence(*best), {ClaimOf(*best)}};
    line.text += '.';
    if (fewest->found.candidate.gpus < best->found.candidate.gpus) {
      line.text += ' ' + Sentence(*fewest) + '.';
      line.claims.push_back(ClaimOf(*fewest));
    }
    return line;
  }

 private:
  // The answer of a plan for `gpus`; unset if it cannot reach `least`, or if it is refused.
  std::optional<Fewer> With(int gpus, double least) {
    PlanRequest asked = request_.asked();
    Set(asked.common.cluster.gpus, gpus);
    Fewer fewer;
    AskedSettings& batch = asked.common.settings;
    const BatchSpec& own = plan_.setup.batch;
    const bool said = batch.global_batch || batch.global_batch_tokens;
    const int64_t unit = gpus / std::min(gpus, own.sequence_ranks) * batch.micro_batch.value_or(1) *
                         batch.grad_accum.value_or(1);
    if (said && own.global_batch() % unit != 0) {
      if (asked.common.config.given()) return std::nullopt;
      const int64_t units = std::max<int64_t>(1, (own.global_batch() + unit / 2) / unit);
      fewer.global_batch = units * unit;
      batch.global_batch_tokens = {};
      Set(batch.global_batch, *fewer.global_batch);
    }
    Assumptions unused;
    try {
      ResolvedPlan resolved(asked, request_, unused);
      SearchInputs inputs = resolved.inputs();
      inputs.effort = searcher_.inputs().effort;
      inputs.progress = searcher_.inputs().progress;
      if (!AnyBatch(inputs.space) || Groups(inputs.space).empty()) return std::nullopt;
      const std::unique_ptr<ChoiceSearch> search = searcher_.Like(std::move(inputs));
      Question question;
      if (!search->MayReach(question, Merit(now_) * least / now_.tokens_per_second)) {
        return std::nullopt;
      }
      const SearchResult result = search->Run();
      if (!result.best) return std::nullopt;
      const StageBest& found = result.stages[*result.best];
      fewer.found = FoundOf(found, *plan_.runtime);
      fewer.gap = result.gap;
      fewer.choice = plan_.runtime->ChoiceText(found.estimate.setup);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUsage) throw;
      return std::nullopt;
    }
    return fewer;
  }

  std::string Sentence(const Fewer& fewer) const {
    const int gpus = fewer.found.candidate.gpus;
    const double times = fewer.found.tokens_per_second / now_.tokens_per_second;
    const std::string batch =
        fewer.global_batch ? fmt::format(" with {} sequences a step", *fewer.global_batch) : "";
    return fmt::format(
        "{}{} {} {} as these {}: {}, {}{}; ⟦gpus⟧ {}{} plans {}", GpusText(gpus, plan_.cluster),
        batch, gpus == 1 ? "is" : "are", TimesText(times), now_.candidate.gpus,
        RateText(fewer.found.tokens_per_second), fewer.choice, WithinText(fewer.gap), gpus,
        fewer.global_batch ? fmt::format(" ⟦global_batch⟧ {}", *fewer.global_batch) : "",
        gpus == 1 ? "it" : "them");
  }

  static Claim ClaimOf(const Fewer& fewer) {
    Claim claim;
    claim.gpus = fewer.found.candidate.gpus;
    claim.global_batch = fewer.global_batch;
    claim.found = fewer.found;
    claim.gap = fewer.gap;
    return claim;
  }

  const ResolvedPlan& request_;
  ChoiceSearch& searcher_;
  const Plan& plan_;
  const Found& now_;
};

// Considers the batches that make the same GPUs kMuchFaster times as fast. Returns the one nearest
// to the present batch, and the fastest.
std::optional<AdviceLine> OtherBatch(const ChoiceSearch& searcher, const Found& now,
                                     KnownBatches& batches) {
  const SearchInputs& inputs = searcher.inputs();
  const auto present = static_cast<double>(now.candidate.micro_batch * now.candidate.grad_accum *
                                           now.candidate.data_ranks());
  const auto distance = [&](const AnswerRange& range) {
    return std::abs(std::log(range.from / present));
  };
  const AnswerRange *nearest = nullptr, *fastest = nullptr;
  for (const AnswerRange& range : batches.answers.ranges) {
    if (range.found.empty()) continue;
    const double rate = range.found.front().tokens_per_second;
    if (rate < kMuchFaster * now.tokens_per_second) continue;
    if (nearest == nullptr || distance(range) < distance(*nearest)) nearest = &range;
    const bool more =
        fastest == nullptr || TieFloor(rate) > fastest->found.front().tokens_per_second;
    if (more) fastest = &range;
  }
  if (nearest == nullptr) return std::nullopt;
  AdviceLine line{AdviceKind::kBatch, "", {}};
  const auto add = [&](const AnswerRange& range, const std::string& who, const char* end) {
    const Found& found = range.found.front();
    const auto sequences = static_cast<int64_t>(range.from);
    line.text +=
        fmt::format("{}With {} sequences a step ({} tokens) {} {}: {}, {}{}; ⟦global_batch⟧ {} {}.",
                    line.text.empty() ? "" : " ", sequences,
                    FormatCount(static_cast<uint64_t>(sequences * inputs.base.batch.seq_len)), who,
                    TimesText(found.tokens_per_second / now.tokens_per_second),
                    RateText(found.tokens_per_second),
                    inputs.runtime->ChoiceText(SetupOf(found.candidate, inputs.base)),
                    WithinText(range.gap), sequences, end);
    Claim& claim = line.claims.emplace_back();
    claim.global_batch = sequences;
    claim.found = found;
    claim.gap = range.gap;
    claim.holds_from = claim.holds_to = range.from;
    if (!SameKind(found.candidate, now.candidate)) claim.flips_at = range.from;
    batches.said.push_back(sequences);
  };
  const int gpus = now.candidate.gpus;
  add(*nearest,
      fmt::format("instead of {} {}", static_cast<int64_t>(present),
                  gpus == 1 ? "this GPU is" : fmt::format("these {} GPUs are", gpus)),
      "plans that");
  if (fastest != nearest && fastest->found.front().tokens_per_second >
                                nearest->found.front().tokens_per_second * (1 + kTieMargin)) {
    add(*fastest, gpus == 1 ? "it is" : "they are", "that");
  }
  return line;
}

}  // namespace

std::vector<AdviceLine> FirstLines(const ResolvedPlan& request, ChoiceSearch& searcher,
                                   const Plan& plan, const Found& found,
                                   std::optional<KnownBatches>& batches) {
  std::vector<AdviceLine> lines;
  const PlanRequest& asked = request.asked();
  if (asked.quick || asked.largest || plan.objective != Objective::kThroughput) return lines;
  const double per_gpu = MostPerGpu(searcher, found.candidate);
  if (auto line = FewerSearch(request, searcher, plan, found).Line(per_gpu)) {
    lines.push_back(*std::move(line));
  }
  const double most = found.candidate.gpus * per_gpu;
  if (most >= kMuchFaster * found.tokens_per_second && !asked.common.config.given()) {
    batches = KnownBatches{AnswersByBatch(searcher, found), {}};
    if (auto line = OtherBatch(searcher, found, *batches)) lines.push_back(*std::move(line));
  }
  return lines;
}

}  // namespace zeroplan
