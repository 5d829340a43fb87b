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

}  // namespace
}  // namespace zeroplan
