// Answers of step programs by the bandwidth of a link.
#include <algorithm>

#include "planner/search/search.h"

namespace zeroplan {
namespace {

// The budget of the few whole searches beside a crossover of bandwidth, where communication makes
// bounds loose.
constexpr uint64_t kLinkBudget = kInstructionBudget / 10;

// Choices of every stage, lowered once, whose times are played again for other links.
class ProgramBandwidths : public OtherBandwidths {
 public:
  ProgramBandwidths(Searcher& searcher, const Found& now, const ScaledLink& link)
      : searcher_(searcher), now_(now), link_(link) {
    Learn(now.candidate);
    const auto coarse = CoarseChoices(searcher.inputs().space, now.candidate);
    for (int stage : searcher.inputs().space.stages) {
      for (OffloadDevice device : {OffloadDevice::kNone, OffloadDevice::kCpu}) {
        for (RecomputeKind recompute :
             {RecomputeKind::kNone, RecomputeKind::kSelective, RecomputeKind::kFull}) {
          Question question;
          question.instruction_budget = kLinkBudget;
          question.among = [&](const Candidate& c) {
            return coarse(c) && c.gpus == now.candidate.gpus && c.stage == stage &&
                   c.optimizer.device == device && c.param == OffloadDevice::kNone &&
                   c.recompute.kind == recompute;
          };
          const Answer answer = searcher.Best(question);
          if (answer.found) Learn(answer.found->candidate);
        }
      }
    }
  }

  bool Learn(const Candidate& candidate) override {
    if (std::find(candidates_.begin(), candidates_.end(), candidate) != candidates_.end()) {
      return false;
    }
    candidates_.push_back(candidate);
    lowered_.push_back(searcher_.Lowered(candidate));
    return true;
  }

  // The fastest; of those as fast the simplest, as a search has it.
  Found BestKnown(double scale) override {
    const CostModel costs = CostsAt(scale);
    StepTimer timer(costs);
    std::vector<Found> all;
    double most = 0;
    const int64_t seq_len = searcher_.inputs().base.batch.seq_len;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const Candidate& c = candidates_[i];
      const LoweredChoice& lowered = *lowered_[i];
      const double seconds = timer.Play(lowered.step).Of(c.grad_accum).total_seconds;
      const int64_t tokens = c.micro_batch * c.grad_accum * c.gpus * seq_len;
      const Cluster& cluster = searcher_.ClusterOf(c).cluster;
      const double rate = static_cast<double>(tokens) / seconds;
      all.push_back({c, rate, seconds,
                     TotalsOf(lowered.arena_bytes, lowered.outside, cluster).gpu_bytes,
                     Merit(c, rate)});
      most = std::max(most, Merit(all.back()));
    }
    std::erase_if(all, [&](const Found& f) { return Merit(f) < most / (1 + kTieMargin); });
    return *std::min_element(all.begin(), all.end(), [](const Found& a, const Found& b) {
      const auto x = Complexity(a.candidate), y = Complexity(b.candidate);
      return x != y ? x < y : Merit(a) > Merit(b);
    });
  }

  // Either may know more.
  Answer Best(double scale) override {
    const Found known = BestKnown(scale);
    const CostModel costs = CostsAt(scale);
    SearchInputs scaled = searcher_.inputs();
    SearchCluster cluster = searcher_.ClusterOf(now_.candidate);
    cluster.costs = &costs;
    scaled.space.gpus = {now_.candidate.gpus};
    scaled.clusters = {cluster};
    Question question;
    question.objective = scaled.objective;
    question.instruction_budget = kLinkBudget;
    Answer answer = Searcher(std::move(scaled), searcher_).Best(question);
    const bool knows_best =
        answer.gap == 0 || !answer.found || Merit(*answer.found) * (1 + kTieMargin) >= Merit(known);
    if (answer.found && knows_best) {
      searcher_.Consider(answer.found->candidate);
      return answer;
    }
    answer.found = known;
    return answer;
  }

 private:
  CostModel CostsAt(double scale) const {
    const int gpus = now_.candidate.gpus;
    const int per_node = searcher_.ClusterOf(now_.candidate).cluster.gpus_per_node;
    return CostModel(link_.Profile(scale), {gpus, std::min(gpus, per_node)},
                     link_.GpuLinkScale(scale));
  }

  Searcher& searcher_;
  const Found now_;
  const ScaledLink link_;
  std::vector<Candidate> candidates_;
  std::vector<std::shared_ptr<const LoweredChoice>> lowered_;
};

}  // namespace

std::unique_ptr<OtherBandwidths> Searcher::AtOtherBandwidths(const Found& now,
                                                             const ScaledLink& link) {
  return std::make_unique<ProgramBandwidths>(*this, now, link);
}

}  // namespace zeroplan
