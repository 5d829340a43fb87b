#include "executor/measure/cuda/stream_timer.h"

#include <algorithm>
#include <vector>

#include "core/base/timing.h"
#include "executor/device/cuda/graph_capture.h"
#include "executor/measure/cuda/spin.h"

namespace zeroplan {
namespace {

// What issuing a call takes at most, usually; a slower one makes its round a little long.
constexpr uint64_t kIssueNanoseconds = 16'000, kStartNanoseconds = 50'000;
constexpr double kLeastRound = 400e-6;  // of a round, so that the events' own cost does not show
constexpr int kMostCalls = 64, kLeastRounds = 5, kMostRounds = 25;

}  // namespace

double SecondsBetween(cudaEvent_t begin, cudaEvent_t end) {
  ZEROPLAN_CUDA(cudaEventSynchronize(end));
  float milliseconds = 0;
  ZEROPLAN_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
  return static_cast<double>(milliseconds) * 1e-3;
}

StreamTimer::StreamTimer(bool quick)
    : round_seconds_(quick ? 10e-3 : 30e-3),
      warm_seconds_(quick ? 30e-3 : 100e-3),
      stream_(MakeStream(false)),
      begin_(MakeEvent(true)),
      end_(MakeEvent(true)) {}

double StreamTimer::RoundSeconds(int calls, const std::function<void(int)>& run) {
  cuda::Spin(kStartNanoseconds + kIssueNanoseconds * static_cast<uint64_t>(calls), stream());
  ZEROPLAN_CUDA(cudaPeekAtLastError());
  ZEROPLAN_CUDA(cudaEventRecord(begin_.get(), stream()));
  for (int i = 0; i < calls; ++i) run(i);
  ZEROPLAN_CUDA(cudaEventRecord(end_.get(), stream()));
  return SecondsBetween(begin_.get(), end_.get());
}

double StreamTimer::GraphSeconds(cudaGraphExec_t graph) {
  ZEROPLAN_CUDA(cudaGraphLaunch(graph, stream()));
  return SecondsBetween(begin_.get(), end_.get());
}

double StreamTimer::MedianSeconds(int buffers, const std::function<void(int)>& run) {
  // The first call loads kernels, which waits for the GPU: never behind a spin, nor in a graph.
  run(0);
  ZEROPLAN_CUDA(cudaStreamSynchronize(stream()));
  RoundSeconds(3, run);
  const double once = std::max(1e-7, RoundSeconds(3, run) / 3);
  // All buffers, so that no call finds its own in the caches.
  const int calls =
      std::clamp(std::max(buffers, static_cast<int>(kLeastRound / once) + 1), 1, kMostCalls);
  const double round = once * calls;
  const int rounds =
      std::clamp(static_cast<int>(round_seconds_ / round), kLeastRounds, kMostRounds);
  BeginCapture(stream());
  ZEROPLAN_CUDA(cudaEventRecordWithFlags(begin_.get(), stream(), cudaEventRecordExternal));
  for (int i = 0; i < calls; ++i) run(i);
  ZEROPLAN_CUDA(cudaEventRecordWithFlags(end_.get(), stream(), cudaEventRecordExternal));
  const CudaGraphExec graph = EndCapture(stream());
  for (double warm = 0; warm < warm_seconds_;) warm += GraphSeconds(graph.get());
  std::vector<double> seconds;
  for (int i = 0; i < rounds; ++i) seconds.push_back(GraphSeconds(graph.get()) / calls);
  return Median(std::move(seconds));
}

}  // namespace zeroplan
