// What stands before an answer, fewer GPUs or another batch that are as fast or faster, against
// plans of their own.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <vector>

#include "core/base/error.h"
#include "planner/advice/flips.h"
#include "planner/request/plan_answer.h"
#include "planner/request/resolved.h"
#include "tests/has.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

struct FirstQuestion {
  std::string model, hardware, network;
  int gpus, gpus_per_node;  // 0: the hardware's
  int64_t global_batch;     // 0: open

  PlanRequest Request() const {
    PlanRequest request;
    request.common.model.model = model;
    request.common.hardware.profile = hardware;
    request.common.hardware.network = network;
    const auto give = [](auto& field, auto value) {
      if (value == 0) return;
      field.emplace(value);
      field.text = std::to_string(value);
    };
    give(request.common.cluster.gpus, gpus);
    give(request.common.cluster.gpus_per_node, gpus_per_node);
    give(request.common.settings.global_batch, global_batch);
    return request;
  }
  std::string Text() const {
    return fmt::format(
        "--model {} --hw {} --network {} --gpus {} --gpus-per-node {} --global-batch {}", model,
        hardware, network, gpus, gpus_per_node, global_batch);
  }
};

// A plan, and what stands before it.
struct FirstAnswer {
  std::optional<Plan> plan;  // none: nothing fits, or it is refused
  std::vector<AdviceLine> first;

  explicit FirstAnswer(const PlanRequest& request, bool with_first = false) {
    Assumptions assumptions;
    try {
      ResolvedPlan resolved(request, assumptions);
      const std::unique_ptr<ChoiceSearch> searcher = MakeSearch(resolved.inputs());
      const SearchResult result = searcher->Run();
      if (!result.best) return;
      plan = MakePlan(*searcher, result);
      if (!with_first) return;
      std::optional<KnownBatches> batches;
      first = FirstLines(resolved, *searcher, *plan,
                         FoundOf(result.stages[*result.best], *plan->runtime), batches);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUsage) throw;
    }
  }
  double rate() const { return plan ? *plan->choice.time.tokens_per_second : 0; }
  const AdviceLine* Of(AdviceKind kind) const {
    const auto at = std::find_if(first.begin(), first.end(),
                                 [kind](const AdviceLine& line) { return line.kind == kind; });
    return at == first.end() ? nullptr : &*at;
  }
};

// Types back what was said.
void CheckFirstClaims(const FirstQuestion& asked, const FirstAnswer& answer) {
  for (const AdviceLine& line : answer.first) {
    INFO(line.text);
    for (const Claim& claim : line.claims) {
      FirstQuestion other = asked;
      if (claim.gpus) other.gpus = *claim.gpus;
      if (claim.global_batch) other.global_batch = *claim.global_batch;
      const FirstAnswer typed(other.Request());
      REQUIRE(typed.plan);
      const double said = claim.found->tokens_per_second;
      // What is not proven may be better where more is searched.
      CHECK(typed.rate() >= said * (1 - 1e-9) / (1 + kTieMargin));
      CHECK(typed.rate() <= said * (1 + claim.gap + kTieMargin));
      if (claim.gap == 0 && claim.gpus) CHECK(typed.rate() == doctest::Approx(said));
      if (claim.gap == 0) CHECK(SameKind(CandidateOf(typed.plan->setup), claim.found->candidate));
      const double times = typed.rate() / answer.rate();
      CHECK(times * (1 + kTieMargin) * (1 + claim.gap) >=
            (line.kind == AdviceKind::kBatch ? kMuchFaster : 1));
      CHECK(Has(line.text, RateText(said)));
    }
  }
}

TEST_CASE("first lines: eight A10G on two nodes of a slow network, where four are faster") {
  const FirstQuestion asked = {"gpt2-xl", "a10g", "1Gb", 8, 4, 128};
  const FirstAnswer answer(asked.Request(), true);
  const AdviceLine* fewer = answer.Of(AdviceKind::kFewer);
  REQUIRE(fewer != nullptr);
  CHECK(fewer->text.starts_with("4 GPUs of one node are "));
  CHECK(Has(fewer->text, wording::kTimesAsFastAsThese));
  CHECK(Has(fewer->text, "; ⟦gpus⟧ 4 plans them."));
  CHECK(fewer->claims.front().gpus == 4);
  CHECK(answer.Of(AdviceKind::kBatch) != nullptr);
  CheckFirstClaims(asked, answer);
}

TEST_CASE("first lines: where more GPUs are faster nothing is said, nor where nothing is asked") {
  CHECK(FirstAnswer(FirstQuestion{"gpt2-xl", "hgx-h200", "", 8, 0, 256}.Request(), true)
            .first.empty());
  PlanRequest request = FirstQuestion{"gpt2-xl", "a10g", "1Gb", 8, 4, 128}.Request();
  request.quick = true;
  CHECK(FirstAnswer(request, true).first.empty());
  request.quick = false;
  request.objective.emplace(Objective::kHeadroom);
  CHECK(FirstAnswer(request, true).first.empty());
}

TEST_CASE("first lines: a batch that fewer GPUs cannot have is another one, which is said") {
  const FirstQuestion asked = {"gpt2-medium", "a10g", "1Gb", 12, 4, 60};
  const FirstAnswer answer(asked.Request(), true);
  const AdviceLine* fewer = answer.Of(AdviceKind::kFewer);
  REQUIRE(fewer != nullptr);
  CheckFirstClaims(asked, answer);
  // 60 is no multiple of 8, and is one of 4.
  for (const Claim& claim : fewer->claims) {
    CHECK(claim.global_batch.has_value() == (*claim.gpus == 8));
    if (claim.global_batch) CHECK(Has(fewer->text, "⟦gpus⟧ 8 ⟦global_batch⟧ 64 plans them"));
  }
}

TEST_CASE("first lines: of random questions what is said is true, and what is true is said") {
  std::mt19937 random(7);
  const auto any = [&](const auto& list) {
    return list[std::uniform_int_distribution<size_t>(0, list.size() - 1)(random)];
  };
  int said = 0;
  for (int i = 0; i < 20; ++i) {
    FirstQuestion asked;
    asked.model = any(std::vector<std::string>{"gpt2", "gpt2-medium", "gpt2-large", "llama3.2-1b"});
    asked.hardware =
        any(std::vector<std::string>{"a10g", "t4", "4x-rtx4090", "8x-l40s", "dgx-a100-40gb"});
    const bool card = asked.hardware == "a10g" || asked.hardware == "t4";
    asked.network = any(std::vector<std::string>{"1Gb", "10Gb", "100Gb"});
    asked.gpus_per_node = card ? any(std::vector<int>{1, 2, 4}) : 0;
    asked.gpus = any(std::vector<int>{4, 8, 16});
    asked.global_batch = asked.gpus * any(std::vector<int64_t>{0, 1, 4, 16});
    CAPTURE(asked.Text());
    const FirstAnswer answer(asked.Request(), true);
    if (!answer.plan) continue;
    CheckFirstClaims(asked, answer);
    const AdviceLine* fewer = answer.Of(AdviceKind::kFewer);
    said += fewer != nullptr;
    if (fewer != nullptr) continue;
    for (const int gpus : {asked.gpus / 2, answer.plan->cluster.ranks_per_node()}) {
      if (gpus >= asked.gpus) continue;
      FirstQuestion half = asked;
      half.gpus = gpus;
      CAPTURE(gpus);
      CHECK(FirstAnswer(half.Request()).rate() < TieFloor(answer.rate()));
    }
  }
  MESSAGE(fmt::format("of 20 questions {} have fewer GPUs that are as fast", said));
  CHECK(said >= 4);
  CHECK(said <= 16);
}

}  // namespace
}  // namespace zeroplan
