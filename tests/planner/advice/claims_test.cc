// What plan prints is typed back: every range, crossover and batch of its advice against plans of
// their own with that figure, at the ends, inside and beyond.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>

#include "core/base/error.h"
#include "core/base/units.h"
#include "planner/advice/flips.h"
#include "planner/report/report_text.h"
#include "planner/request/plan_answer.h"
#include "planner/request/resolved.h"
#include "tests/has.h"

namespace zeroplan {
namespace {

template <typename T>
void Give(Given<T>& field, T value) {
  static_cast<std::optional<T>&>(field) = std::move(value);
}

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}

  PlanRequest Request() {
    PlanRequest request;
    HardwareFields& hardware = request.common.hardware;
    hardware.profile = Any<const char*>({"hgx-h200", "dgx-h100", "dgx-a100-40gb", "dgx-a100-80gb",
                                         "dgx-2", "8x-a100-80gb-pcie", "4x-rtx4090", "8x-l40s"});
    const int per_node = hardware.profile == "4x-rtx4090" ? 4 : 8;
    const bool nodes = hardware.profile.starts_with("dgx") || hardware.profile == "hgx-h200";
    const int gpus = Any<int>({1, 2, 4, 8, 16, 32, 64});
    Give(request.common.cluster.gpus, nodes ? gpus : std::min(gpus, per_node));
    request.common.model.model =
        Any<const char*>({"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-1.3b", "gpt3-2.7b",
                          "gpt3-6.7b", "llama3.2-1b", "qwen2.5-0.5b"});
    Give(request.common.settings.seq_len, Any<int64_t>({512, 1024}));
    if (Int(0, 2) == 0) {
      Give(request.common.settings.global_batch,
           *request.common.cluster.gpus * Any<int64_t>({1, 4, 8, 16}));
    }
    if (Int(0, 2) == 0) {
      Give(request.common.cluster.gpu_memory, Any<uint64_t>({6, 10, 16, 24}) * 1'000'000'000);
    }
    if (Int(0, 2) == 0) {
      Give(request.common.settings.offload_optimizer, {OffloadDevice::kNone});
      Give(request.common.settings.offload_param, {OffloadDevice::kNone});
    }
    return request;
  }
  double Share() { return std::uniform_real_distribution<double>(0, 1)(random_); }

 private:
  int64_t Int(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  template <typename T>
  T Any(const std::vector<T>& list) {
    return list[static_cast<size_t>(Int(0, static_cast<int64_t>(list.size()) - 1))];
  }
  std::mt19937 random_;
};

std::string Text(const PlanRequest& request) {
  const Request& r = request.common;
  return fmt::format(
      "--model {} --hw {} --gpus {} --seq-len {} --global-batch {} --gpu-memory {} {}",
      r.model.model, r.hardware.profile, *r.cluster.gpus, *r.settings.seq_len,
      r.settings.global_batch.value_or(0), r.cluster.gpu_memory.value_or(0),
      r.settings.offload_optimizer ? "no offload" : "");
}

// A plan of its own.
struct Typed {
  std::optional<Found> found;  // none: nothing fits
  double gap = 0;
};

Typed Type(PlanRequest request, const std::vector<int>& stages = {}) {
  if (!stages.empty()) Give(request.common.settings.stage, stages);
  Assumptions assumptions;
  ResolvedPlan resolved(request, assumptions);
  const std::unique_ptr<ChoiceSearch> searcher = MakeSearch(resolved.inputs());
  const SearchResult result = searcher->Run();
  if (!result.best) return {};
  const StageBest& best = result.stages[*result.best];
  const TimeEstimate& time = best.estimate.time;
  return {
      Found{*best.candidate, *time.tokens_per_second, *time.total_seconds,
            best.estimate.footprint.gpu_total(), resolved.inputs().runtime->Merit(best.estimate)},
      result.gap};
}

// `request` with what a claim changes set to `value`.
PlanRequest With(PlanRequest request, const Claim& claim, double value, bool network) {
  if (claim.gpu_memory_bytes) {
    Give(request.common.cluster.gpu_memory, static_cast<uint64_t>(value));
  } else if (claim.global_batch) {
    Give(request.common.settings.global_batch, static_cast<int64_t>(value));
  } else {
    const std::string rate = FormatBandwidth(value, network);
    std::string& option =
        network ? request.common.hardware.network : request.common.hardware.intra_node_bandwidth;
    option = rate;
    std::erase(option, ' ');
  }
  return request;
}

bool IsOf(const Claim& claim, const Found& found, const SearchSpace& space) {
  const auto same = [&](const Found& other) {
    return claim.bandwidth_scale
               ? ShardingOf(other.candidate, space) == ShardingOf(found.candidate, space)
               : SameKind(other.candidate, found.candidate);
  };
  return (claim.found && same(*claim.found)) ||
         std::any_of(claim.or_else.begin(), claim.or_else.end(), same);
}

struct Tally {
  int scenarios = 0, claims = 0, typed = 0, not_proven = 0, wrong = 0;
};

class Playback {
 public:
  Playback(PlanRequest request, Draw& draw, Tally& tally)
      : request_(std::move(request)), draw_(draw), tally_(tally) {}

  void Run() {
    Assumptions assumptions;
    ResolvedPlan resolved(request_, assumptions);
    const std::unique_ptr<ChoiceSearch> searcher = MakeSearch(resolved.inputs());
    space_ = resolved.inputs().space;
    std::optional<PlanAnswer> answer;
    try {
      answer = FindAnswer(resolved, *searcher, {});
    } catch (const Error& error) {
      if (error.code() != ExitCode::kNothingFits) throw;
      return;
    }
    ++tally_.scenarios;
    network_ = answer->plan.cluster.nodes() > 1;
    present_ = ScarcestLinkOf(answer->plan.cluster, resolved.hardware()).bytes_per_second;
    for (const AdviceLine& line : answer->report.advice) {
      for (const Claim& claim : line.claims) {
        if (claim.holds_from) Check(line, claim);
        if (claim.gpus) CheckGpus(line, claim, *answer->plan.choice.time.tokens_per_second);
      }
    }
  }

 private:
  void Check(const AdviceLine& line, const Claim& claim) {
    ++tally_.claims;
    const double from = *claim.holds_from, to = *claim.holds_to;
    // The end that the text has figures of.
    if (claim.found && claim.or_else.empty()) {
      const double end = claim.gpu_memory_bytes ? static_cast<double>(*claim.gpu_memory_bytes)
                         : claim.flips_at       ? *claim.flips_at
                                                : to;
      const std::optional<Typed> typed = Try(claim, end);
      if (typed && typed->found && claim.gap == 0 && typed->gap == 0 && !claim.bandwidth_scale) {
        const double ratio = typed->found->tokens_per_second / claim.found->tokens_per_second;
        if (std::abs(ratio - 1) > 0.001) Wrong(line, claim, end, "another speed");
      }
    }
    std::vector<double> values = {from};
    if (to > from) {
      values.push_back(to);
      for (int i = 0; i < 3; ++i) values.push_back(Inside(claim, from, to));
      if (claim.bandwidth_scale) values = Doubled(from, to);
    }
    for (const double value : values) {
      if (value <= 0) continue;
      const std::optional<Typed> typed = Try(claim, value);
      if (!typed) continue;
      if (typed->found.has_value() != claim.found.has_value()) {
        Wrong(line, claim, value, "fits or not");
      } else if (claim.found && !IsOf(claim, *typed->found, space_)) {
        Doubt(line, claim, value, *typed);
      }
    }
    // Beyond a change there is another answer; beyond a crossover somewhere within 3 %.
    if (!claim.flips_at || to == from) return;
    const double end = *claim.flips_at;
    const bool low = end == from;
    if (claim.bandwidth_scale) {
      for (const double factor : {1.01, 1.02, 1.03}) {
        const std::optional<Typed> near = Try(claim, low ? end / factor : end * factor);
        if (claim.gap > 0 || near->gap > 0 || !claim.found || !claim.or_else.empty() ||
            !IsOf(claim, *near->found, space_)) {
          return;
        }
      }
      Wrong(line, claim, end, "the same answer beyond");
      return;
    }
    double beyond = end;
    if (claim.gpu_memory_bytes) {
      const auto bytes = static_cast<uint64_t>(end);
      beyond = static_cast<double>(low ? TypedBytes(bytes - 1, Rounding::kDown)
                                       : TypedBytes(bytes + 1, Rounding::kUp));
    }
    const std::optional<Typed> typed = Try(claim, beyond);
    if (typed && typed->found && claim.found && claim.gap == 0 && typed->gap == 0 &&
        claim.or_else.empty() && IsOf(claim, *typed->found, space_)) {
      Wrong(line, claim, beyond, "the same answer beyond");
    }
  }

  // Fewer GPUs answer what is said of them, and are as fast as the plan's `tokens_per_second`.
  void CheckGpus(const AdviceLine& line, const Claim& claim, double tokens_per_second) {
    ++tally_.claims;
    ++tally_.typed;
    PlanRequest request = request_;
    Give(request.common.cluster.gpus, *claim.gpus);
    if (claim.global_batch) Give(request.common.settings.global_batch, *claim.global_batch);
    const Typed typed = Type(request);
    const double rate = typed.found ? typed.found->tokens_per_second : 0;
    CHECK_MESSAGE(*claim.gpus < *request_.common.cluster.gpus, line.text);
    CHECK_MESSAGE(rate == doctest::Approx(claim.found->tokens_per_second), line.text);
    CHECK_MESSAGE(rate >= TieFloor(tokens_per_second), line.text);
  }

  // Both ends, and the rates between that the text says were looked at.
  std::vector<double> Doubled(double from, double to) const {
    std::vector<double> rates = {from, to};
    for (int octave = -6; octave <= 4; ++octave) {
      const double rate = present_ * std::exp2(octave);
      if (from < rate && rate < to) rates.push_back(rate);
    }
    return rates;
  }

  double Inside(const Claim& claim, double from, double to) {
    const double low = std::max(from, to / 1000);
    const double value = low * std::pow(to / low, draw_.Share());
    return claim.gpu_memory_bytes ? std::floor(value) : std::clamp(value, from, to);
  }

  // None: it is refused.
  std::optional<Typed> Try(const Claim& claim, double value) {
    ++tally_.typed;
    try {
      return Type(With(request_, claim, value, network_), claim.stages);
    } catch (const Error& error) {
      // Memory that the reserve takes all of is refused before anything is searched.
      CHECK(error.code() == ExitCode::kUsage);
      CHECK_MESSAGE(claim.gpu_memory_bytes.has_value(), error.what());
      return std::nullopt;
    }
  }

  // Of what is not proven it is known how far off it may be.
  void Doubt(const AdviceLine& line, const Claim& claim, double value, const Typed& typed) {
    if (claim.gap == 0 && typed.gap == 0) {
      Wrong(line, claim, value, "another answer");
      return;
    }
    ++tally_.not_proven;
    if (claim.bandwidth_scale) {
      PlanRequest pinned = With(request_, claim, value, network_);
      std::vector<int> stages = claim.stages;
      if (space_.groupings.size() > 1) {
        Give(pinned.common.settings.shard_group, claim.found->candidate.grouping.ranks);
      } else {
        stages = {claim.found->candidate.stage};
      }
      const Typed own = Type(pinned, stages);
      const double allowed = 1 + claim.gap + typed.gap + own.gap + kTieMargin;
      if (!own.found || typed.found->merit > own.found->merit * allowed) {
        Wrong(line, claim, value, "another answer, faster by more than the gap");
      }
    }
  }

  void Wrong(const AdviceLine& line, const Claim& claim, double value, const char* why) {
    ++tally_.wrong;
    FAIL_CHECK(fmt::format("{}\n{}\n{} at {:.6g} (claimed {:.6g} to {:.6g}, gap {})",
                           Text(request_), line.text, why, value, *claim.holds_from,
                           *claim.holds_to, claim.gap));
  }

  const PlanRequest request_;
  Draw& draw_;
  Tally& tally_;
  bool network_ = false;
  SearchSpace space_;
  double present_ = 0;  // bytes a second of the scarcest link
};

TEST_CASE("plan: what it prints holds when it is typed back, at the ends, inside and beyond") {
  const char* given = std::getenv("ZEROPLAN_CLAIMS");  // how many scenarios
  const int wanted = given != nullptr ? std::atoi(given) : 1;
  const char* first = std::getenv("ZEROPLAN_CLAIMS_SEED");
  unsigned seed = first != nullptr ? static_cast<unsigned>(std::atoi(first)) : 1;
  Tally tally;
  for (; tally.scenarios < wanted; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    Playback(draw.Request(), draw, tally).Run();
  }
  MESSAGE(fmt::format("{} scenarios, {} claims, typed back {} times, {} not proven, {} wrong",
                      tally.scenarios, tally.claims, tally.typed, tally.not_proven, tally.wrong));
  CHECK(tally.claims >= wanted);
  CHECK(tally.wrong == 0);
}

// gpt2-xl on eight A100 over PCIe: stage 1 at 3.2 GB/s, stage 0 at 6.45, stage 3 and 1 between
// them.
TEST_CASE("plan: between two bandwidths that differ there may be a third answer, and a fourth") {
  Tally tally;
  Draw draw(30);
  Playback(draw.Request(), draw, tally).Run();
  CHECK(tally.claims > 0);
  CHECK(tally.wrong == 0);
}

}  // namespace
}  // namespace zeroplan
