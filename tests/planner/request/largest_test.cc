// plan --largest at any number of GPUs: the answer fits, the next does not, and finding it costs no
// more than so many instructions lowered, whatever is asked.
#include <doctest/doctest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "planner/request/plan_answer.h"
#include "planner/request/resolve.h"
#include "planner/runtimes/runtimes.h"
#include "tests/has.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

// "7.51T" of "... ⟦params⟧ 7.51T (...".
std::string Named(const std::string& text, const std::string& mark) {
  const size_t at = text.find(mark);
  if (at == std::string::npos) return "";
  const size_t begin = at + mark.size();
  return text.substr(begin, text.find(' ', begin) - begin);
}

PlanRequest Asked(const std::string& hardware, int gpus) {
  PlanRequest request;
  request.common.hardware.profile = hardware;
  request.common.cluster.gpus.emplace(gpus);
  request.common.cluster.gpus.text = std::to_string(gpus);
  request.largest.emplace(Largest::kModel);
  return request;
}

// Whether anything fits with that model, as the plan that follows asks.
bool AnythingFits(PlanRequest request, uint64_t params) {
  request.common.model.params.emplace(params);
  Assumptions unused;
  const ResolvedPlan resolved(request, unused);
  Question question;
  question.instruction_budget /= 2;
  return MakeSearch(resolved.inputs())->Best(question).found.has_value();
}

TEST_CASE("largest: at any number of GPUs and memory, within bounded work, and it fits") {
  const char* given = std::getenv("ZEROPLAN_SCENARIOS");  // "SEED" of the first
  const unsigned seed =
      given != nullptr ? static_cast<unsigned>(std::atoi(given)) : std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto any = [&](const std::vector<int>& of) { return of[random() % of.size()]; };
  // Half of these, so that all of them come up in a few runs.
  for (const int gpus :
       {1, 7, 8, 24, 56, 256, 1000, 1024, 2048, 8056, 100'000, 131'072, 400'000, 1'000'000}) {
    if (random() % 2 == 0) continue;
    CAPTURE(gpus);
    PlanRequest request = Asked(any({0, 1}) == 0 ? "hgx-h200" : "dgx-a100-80gb", gpus);
    const int gpu_gigabytes = any({0, 4, 24, 500});
    CAPTURE(gpu_gigabytes);
    if (gpu_gigabytes > 0) {
      request.common.cluster.gpu_memory.emplace(uint64_t{1'000'000'000} *
                                                static_cast<uint64_t>(gpu_gigabytes));
    }
    const int offload = any({0, 1});
    CAPTURE(offload);
    if (offload == 0) {
      request.common.settings.offload_optimizer.emplace(std::vector{OffloadDevice::kNone});
      request.common.settings.offload_param.emplace(std::vector{OffloadDevice::kNone});
    }
    const PlanRequest asked = request;
    const LargestAnswer answer = FindLargest(request);
    CAPTURE(answer.text);
    // Four times a search's budget, and the steps that end it.
    CHECK(answer.instructions <= 8 * kInstructionBudget);
    REQUIRE(request.common.model.params);
    CHECK(AnythingFits(asked, *request.common.model.params));
    if (answer.text.find(" does not: ") == std::string::npos) continue;
    if (answer.text.find("Not proven") != std::string::npos) continue;
    const std::string next = Named(answer.text, " fits; ⟦params⟧ ");
    CAPTURE(next);
    CHECK_FALSE(AnythingFits(asked, ParseCount(next, "next")));
  }
}

TEST_CASE("largest: of other runtimes too") {
  for (const int gpus : {8, 100'000}) {
    CAPTURE(gpus);
    PlanRequest request = Asked("hgx-h200", gpus);
    request.common.runtime.runtime.emplace(&Fsdp2Runtime());
    const LargestAnswer answer = FindLargest(request);
    CAPTURE(answer.text);
    CHECK(answer.instructions <= 8 * kInstructionBudget);
    CHECK(request.common.model.params);
  }
}

TEST_CASE("largest: what comes closest may keep some layers' activations on the host") {
  PlanRequest request = Asked("h200-141gb-sxm", 1);
  request.largest.emplace(Largest::kSeqLen);
  request.common.model.model = "llama3.1-8b";
  Set<int64_t>(request.common.settings.micro_batch, 1);
  Set<int64_t>(request.common.settings.grad_accum, 1);
  Set<uint64_t>(request.common.cluster.gpu_memory, 80'000'000'000);
  Set<uint64_t>(request.common.cluster.host_memory, 150'000'000'000);
  const LargestAnswer answer = FindLargest(request);
  CAPTURE(answer.text);
  // Without them it would be 8 GB short.
  const size_t closest = answer.text.find("closest is stage 3, optimizer and parameters on cpu, ");
  REQUIRE(closest != std::string::npos);
  const std::string why = answer.text.substr(closest);
  CHECK(Has(why, wording::kActivationsOfLayersOnCpu));
  CHECK(Has(why, " MB: needs"));
}

}  // namespace
}  // namespace zeroplan
