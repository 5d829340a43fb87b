// The words for why one choice is slower than another, of made-up times.
#include "planner/advice/loss_reason.h"

#include <doctest/doctest.h>

namespace zeroplan {
namespace {

// A choice of 1000 tokens a step, its seconds as given.
ChoiceEstimate Made(double compute, double comm, double offload, double optimizer) {
  ChoiceEstimate choice;
  TimeEstimate& t = choice.time;
  t.compute_seconds = compute;
  t.exposed_comm_seconds = comm;
  t.exposed_offload_seconds = offload;
  t.optimizer_seconds = optimizer;
  t.total_seconds = compute + comm + offload + optimizer;
  t.tokens_per_second = 1000 / *t.total_seconds;
  return choice;
}

std::string Reason(const ChoiceEstimate& other, const ChoiceEstimate& best) {
  return LossReason(other, best, {});
}

TEST_CASE("the largest differences are named, and no small ones") {
  const ChoiceEstimate best = Made(1, 0, 0, 0);
  ChoiceEstimate other = Made(1, 0.1, 0, 0.02);
  other.setup.zero.stage = 3;
  CHECK(Reason(other, best) ==
        "12 % slower: parameters are gathered twice in every micro-step (+10 % of a step)");
  CHECK(Reason(Made(1, 0, 0.2, 0.1), best) ==
        "30 % slower: it waits for the host's optimizer and PCIe (+20 % of a step); and each GPU "
        "updates more of the states (+10 % of a step)");
  CHECK(Reason(Made(1.0001, 0, 0, 0), best) == "as fast");
}

TEST_CASE("what is faster and was not chosen says why") {
  ChoiceEstimate best = Made(1.01, 0, 0, 0), other = Made(1, 0, 0, 0);
  CHECK(Reason(other, best) == "1 % faster");
  other.setup.zero.stage = best.setup.zero.stage = 2;
  other.setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  CHECK(Reason(other, best) == "1 % faster, which is less than offload has to gain");
  SearchInputs headroom;
  headroom.objective = Objective::kHeadroom;
  CHECK(LossReason(other, best, headroom) == "1 % faster");
  best.setup.zero.offload_optimizer.device = OffloadDevice::kNvme;
  CHECK(Reason(other, best) == "1 % faster");
}

}  // namespace
}  // namespace zeroplan
