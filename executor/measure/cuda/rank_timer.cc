#include "executor/measure/cuda/rank_timer.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include "core/base/error.h"
#include "core/base/timing.h"
#include "executor/measure/cuda/spin.h"
#include "executor/measure/part_runner.h"

namespace zeroplan {
namespace {

// Issuing a collective takes some microseconds; the barrier before lets ranks go some hundred
// apart.
constexpr uint64_t kRanksApartNanoseconds = 400'000, kIssueCollectiveNanoseconds = 20'000;
constexpr uint64_t kTokenElements = 64;

}  // namespace

RankTimer::RankTimer(ProcessGroup& group)
    : group_(group),
      exceptions_(std::uncaught_exceptions()),
      stream_(MakeStream(true)),
      begin_(MakeEvent(true)),
      end_(MakeEvent(true)),
      token_(AllocateDeviceMemory(kTokenElements * sizeof(float))) {
  ZEROPLAN_CUDA(cudaMemset(token_.get(), 0, kTokenElements * sizeof(float)));
  if (group.world_size() > 1) communicator_.emplace(group);
}

RankTimer::~RankTimer() {
  // What is under way may wait for a rank that will not come.
  if (!communicator_) return;
  if (!group_.failed() && std::uncaught_exceptions() <= exceptions_) return;
  if (part_) part_->Abort();
  communicator_->Abort();
}

NcclCommunicator& RankTimer::Split(const RankAxes& axes, RankAxis axis) {
  constexpr double kLimitSeconds = 300;
  return part_.emplace(group_, *communicator_, axes, axis, kLimitSeconds);
}

void RankTimer::WaitFor(cudaEvent_t event) {
  constexpr int kSpins = 2000, kLook = 256;
  for (int asked = 1;; ++asked) {
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaSuccess) return;
    if (status != cudaErrorNotReady) ZEROPLAN_CUDA(status);
    if (asked % kLook == 0) {
      group_.ThrowIfFailed();
      if (communicator_) communicator_->CheckAsyncError();
      if (part_) part_->CheckAsyncError();
    }
    if (asked < kSpins) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

double RankTimer::SecondsBetween(cudaEvent_t begin, cudaEvent_t end) {
  WaitFor(end);
  return zeroplan::SecondsBetween(begin, end);
}

void RankTimer::Align(int calls) {
  group_.Barrier();
  cuda::Spin(kRanksApartNanoseconds + kIssueCollectiveNanoseconds * static_cast<uint64_t>(calls),
             stream());
  ZEROPLAN_CUDA(cudaPeekAtLastError());
  if (!communicator_) return;
  const CommSegment token{token_.get(), token_.get(), kTokenElements};
  communicator_->Issue({CollectiveKind::kAllReduce, Dtype::kF32, {&token, 1}}, stream());
}

double RankTimer::SlowestOf(int rounds, const std::function<double()>& round) {
  std::vector<double> seconds;
  for (int i = 0; i < rounds; ++i) {
    const std::vector<double> all = GatherNumbers(group_, round());
    seconds.push_back(*std::max_element(all.begin(), all.end()));
  }
  return Median(std::move(seconds));
}

double RankTimer::SlowestSeconds(int rounds, int calls, const std::function<void()>& run) {
  // Loads kernels and connects ranks, both of which wait: never behind a spin.
  for (int i = 0; i < 2; ++i) run();
  ZEROPLAN_CUDA(cudaEventRecord(end_.get(), stream()));
  WaitFor(end_.get());
  return SlowestOf(rounds, [&] {
    Align(calls);
    ZEROPLAN_CUDA(cudaEventRecord(begin_.get(), stream()));
    for (int i = 0; i < calls; ++i) run();
    ZEROPLAN_CUDA(cudaEventRecord(end_.get(), stream()));
    return SecondsBetween(begin_.get(), end_.get()) / calls;
  });
}

}  // namespace zeroplan
