#include "executor/measure/cuda/rank_timer.h"

#include <algorithm>
#include <cstdlib>

#include "core/base/error.h"
#include "executor/measure/cuda/spin.h"
#include "executor/measure/median.h"

namespace zeroplan {
namespace {

// Issuing a collective takes some microseconds; the barrier before lets ranks go some hundred
// apart.
constexpr uint64_t kStartNanoseconds = 400'000, kIssueNanoseconds = 12'000;
constexpr uint64_t kTokenElements = 64;

}  // namespace

std::vector<double> GatherNumbers(ProcessGroup& group, double own) {
  std::vector<double> numbers;
  for (const std::string& text : group.AllGather(fmt::format("{:.17g}", own))) {
    numbers.push_back(std::strtod(text.c_str(), nullptr));
  }
  return numbers;
}

RankTimer::RankTimer(ProcessGroup& group)
    : group_(group),
      stream_(MakeStream(true)),
      begin_(MakeEvent(true)),
      end_(MakeEvent(true)),
      token_(AllocateDeviceMemory(kTokenElements * sizeof(float))) {
  ZEROPLAN_CUDA(cudaMemset(token_.get(), 0, kTokenElements * sizeof(float)));
  if (group.world_size() > 1) communicator_.emplace(group);
}

void RankTimer::Align(int calls) {
  group_.Barrier();
  cuda::Spin(kStartNanoseconds + kIssueNanoseconds * static_cast<uint64_t>(calls), stream());
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
  ZEROPLAN_CUDA(cudaStreamSynchronize(stream()));
  return SlowestOf(rounds, [&] {
    Align(calls);
    ZEROPLAN_CUDA(cudaEventRecord(begin_.get(), stream()));
    for (int i = 0; i < calls; ++i) run();
    ZEROPLAN_CUDA(cudaEventRecord(end_.get(), stream()));
    return SecondsBetween(begin_.get(), end_.get()) / calls;
  });
}

}  // namespace zeroplan
