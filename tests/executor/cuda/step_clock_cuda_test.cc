// What a step's waits are made of.
#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "executor/device/cuda/cuda_handles.h"
#include "executor/engine/cuda/step_clock.h"
#include "executor/measure/cuda/spin.h"

namespace zeroplan {
namespace {

TEST_CASE(
    "time blocked in issuing counts where the stream has run dry, and not where it has work") {
  const CudaStream stream = MakeStream(false);
  StepClock clock(stream.get(), false);
  const auto blocked = [&](std::chrono::milliseconds host) {
    clock.BeginIssue(stream.get());
    clock.BeginIssue(stream.get());  // begun once
    std::this_thread::sleep_for(host);
    clock.EndIssue(stream.get());
    clock.EndIssue(stream.get());
    ZEROPLAN_CUDA(cudaStreamSynchronize(stream.get()));
    const StepTimes times = clock.Settle();
    CHECK(*times.exposed_comm_seconds == 0);
    return *times.exposed_offload_seconds;
  };
  const double dry = blocked(std::chrono::milliseconds(30));
  CHECK(dry > 0.025);
  CHECK(dry < 0.2);
  cuda::Spin(100'000'000, stream.get());
  CHECK(blocked(std::chrono::milliseconds(30)) < 0.001);
  // Ended at once: nothing to note.
  clock.BeginIssue(stream.get());
  clock.EndIssue(stream.get());
  CHECK(*clock.Settle().exposed_offload_seconds == 0);
}

TEST_CASE("spans keep their order and their places over many steps") {
  const CudaStream stream = MakeStream(false), other = MakeStream(false);
  StepClock clock(stream.get(), true);
  constexpr int kSteps = 50;
  for (int step = 0; step < kSteps; ++step) {
    // Work carried over the end of a step, which begins before spans that are settled first.
    clock.BeginSpan(other.get(), Section::kOptimizerStep, step);
    if (step == kSteps / 2) cuda::Spin(20'000'000, other.get());
    clock.EndSpan(other.get());
    for (int i = 0; i < 3; ++i) {
      clock.BeginSpan(stream.get(), Section::kMicroStep, i);
      cuda::Spin(1'000'000, stream.get());
      clock.EndSpan(stream.get());
    }
    ZEROPLAN_CUDA(cudaStreamSynchronize(stream.get()));
    clock.Settle();
  }
  ZEROPLAN_CUDA(cudaDeviceSynchronize());
  clock.Settle();
  const double now = clock.HostSeconds();
  double before = 0, carried = 0;
  int spans = 0, carried_spans = 0;
  for (const TraceSpan& span : clock.spans()) {
    if (span.section == Section::kOptimizerStep) {
      CHECK(span.begin_seconds >= carried);
      carried = span.end_seconds;
      ++carried_spans;
      continue;
    }
    CAPTURE(spans);
    CHECK(span.begin_seconds >= before - 1e-6);
    CHECK(span.end_seconds - span.begin_seconds == doctest::Approx(1e-3).epsilon(0.2));
    before = span.end_seconds;
    ++spans;
  }
  CHECK(spans == 3 * kSteps);
  CHECK(carried_spans == kSteps);
  CHECK(before > 3e-3 * kSteps);
  CHECK(before <= now + 1e-3);
}

}  // namespace
}  // namespace zeroplan
