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
  ChoiceEstimate best = Made(1, 0, 0, 0);
  ChoiceEstimate other = Made(1, 0.1, 0, 0.02);
  other.setup.zero.stage = 3;
  CHECK(Reason(other, best) ==
        "12 % slower: parameters are gathered twice in every micro-step (+10 % of a step)");
  best.setup.zero.stage = 1;
  best.setup.batch.world_size = 4;
  other.setup = best.setup;
  other.setup.zero.stage = 0;
  other.setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  other.time = Made(1, 0, 0.2, 0.1).time;
  CHECK(Reason(other, best) ==
        "30 % slower: it waits for the host's optimizer and PCIe (+20 % of a step); and each GPU "
        "updates more of the states (+10 % of a step)");
  CHECK(Reason(Made(1.0001, 0, 0, 0), best) == "as fast");
}

TEST_CASE("a reason that is larger than the loss stands beside what offsets it") {
  const ChoiceEstimate best = Made(1, 0.25, 0, 0);
  ChoiceEstimate other = Made(1.2, 0.1, 0, 0);
  other.setup.recompute = FullRecompute();
  CHECK(
      Reason(other, best) ==
      "4 % slower: it recomputes activations (+16 % of a step), offset in part by less waiting for "
      "communication (-12 % of a step)");
  // Differences that offset one another explain nothing where no time is lost.
  CHECK(Reason(Made(1.2, 0.05, 0, 0), best) == "as fast");
}

TEST_CASE("who updates no more of the states takes longer for another reason") {
  ChoiceEstimate best = Made(1, 0, 0, 0.1), other = Made(1, 0, 0, 0.2);
  best.setup.batch.world_size = other.setup.batch.world_size = 4;
  best.setup.zero.stage = other.setup.zero.stage = 2;
  CHECK(Reason(other, best) == "9.1 % slower: its optimizer takes longer (+9.1 % of a step)");
  other.setup.zero.stage = 0;
  CHECK(Reason(other, best) ==
        "9.1 % slower: each GPU updates more of the states (+9.1 % of a step)");
}

TEST_CASE("what is faster and was not chosen says why") {
  ChoiceEstimate best = Made(1.01, 0, 0, 0), other = Made(1, 0, 0, 0);
  CHECK(Reason(other, best) == "1 % faster");
  best = Made(1.003, 0, 0, 0);
  CHECK(Reason(other, best) == "0.3 % faster: a tie, and the simpler choice is preferred");
  SearchInputs headroom;
  headroom.objective = Objective::kHeadroom;
  CHECK(LossReason(other, best, headroom) == "0.3 % faster");
}

}  // namespace
}  // namespace zeroplan
