#include "executor/measure/cuda/kernel_bench.h"

#include <algorithm>
#include <vector>

#include "core/base/error.h"
#include "core/base/timing.h"
#include "core/base/units.h"
#include "core/program/step_state.h"
#include "executor/device/cuda/cuda_handles.h"
#include "executor/kernels/cuda/gemm/gemm_cache_file.h"
#include "executor/kernels/cuda/gemm/gemm_kernels.h"
#include "executor/measure/cuda/spin.h"
#include "executor/measure/measure_host.h"

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

namespace {

constexpr uint64_t kAlign = 512;
// Sets together take so many times the cache, so that each comes from memory again.
constexpr uint64_t kCaches = 3;
constexpr uint64_t kMostSets = 64;
// Part of the cache that a set may take and still be there when a step comes to it.
constexpr uint64_t kStays = 8;
constexpr int64_t kAdamElements = int64_t{1} << 27;  // the most that AdamW is timed with

bool OfEachSet(ArgKind kind) {
  return kind == ArgKind::kRandom || kind == ArgKind::kZero || kind == ArgKind::kOutput;
}

int IntAttribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  ZEROPLAN_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

}  // namespace

DeviceMemory AllocateDeviceMemory(uint64_t bytes) {
  void* memory = nullptr;
  ZEROPLAN_CUDA(cudaMalloc(&memory, std::max<uint64_t>(bytes, 1)));
  return DeviceMemory(static_cast<std::byte*>(memory));
}

KernelBench::KernelBench(int device, uint64_t memory_bytes, bool quick)
    : timer_(quick),
      state_(AllocateDeviceMemory(sizeof(StepState))),
      cache_bytes_(static_cast<uint64_t>(IntAttribute(cudaDevAttrL2CacheSize, device))),
      program_(AdamProgram(kAdamElements)),
      gemm_(device, DefaultCacheFolder()),
      attention_(device) {
  size_t free_bytes = 0, total_bytes = 0;
  ZEROPLAN_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  memory_bytes_ = std::min<uint64_t>(memory_bytes, free_bytes / 2) / kAlign * kAlign;
  memory_ = AllocateDeviceMemory(memory_bytes_);
  StepState state;
  state.lr = 1e-4f;
  ZEROPLAN_CUDA(cudaMemcpy(state_.get(), &state, sizeof state, cudaMemcpyHostToDevice));
  launch_.stream = timer_.stream();
  launch_.sm_count = IntAttribute(cudaDevAttrMultiProcessorCount, device);
  launch_.gemm = &gemm_;
  launch_.attention = &attention_;
  context_.program = &program_;
  context_.cuda = &launch_;
}

std::optional<std::vector<KernelBench::Set>> KernelBench::Place(const std::vector<BenchArg>& args,
                                                                Caches caches) const {
  uint64_t set_bytes = 0, shared_bytes = 0;
  for (const BenchArg& arg : args) {
    if (OfEachSet(arg.kind)) set_bytes += AlignUp(arg.bytes(), kAlign);
    if (arg.kind == ArgKind::kScratch) shared_bytes += AlignUp(arg.bytes(), kAlign);
  }
  if (shared_bytes + set_bytes > memory_bytes_) return std::nullopt;
  uint64_t count = 1;
  if (set_bytes > 0) {
    const uint64_t room = (memory_bytes_ - shared_bytes) / set_bytes;
    const uint64_t wanted = std::min(kMostSets, CeilDiv(kCaches * cache_bytes_, set_bytes));
    const bool stays = caches == Caches::kWarm && set_bytes <= cache_bytes_ / kStays;
    if (!stays) count = std::clamp<uint64_t>(wanted, 1, std::max<uint64_t>(room, 1));
  }
  std::vector<Set> sets(count);
  std::byte* scratch = memory_.get();
  std::byte* next = scratch + shared_bytes;
  for (Set& set : sets) {
    for (const BenchArg& arg : args) {
      KernelArg& to = set.emplace_back(KernelArg{nullptr, arg.bytes(), arg.dtype});
      if (arg.kind == ArgKind::kState) {
        to = {state_.get(), sizeof(StepState), Dtype::kU8};
      } else if (arg.kind == ArgKind::kScratch) {
        to.data = scratch;  // rows have one at most
      } else if (arg.kind == ArgKind::kNone) {
        to = {};
      } else {
        to.data = next;
        next += AlignUp(arg.bytes(), kAlign);
      }
    }
  }
  return sets;
}

void KernelBench::Fill(const std::vector<BenchArg>& args, const std::vector<Set>& sets) {
  uint32_t seed = 1;
  for (const Set& set : sets) {
    for (size_t i = 0; i < args.size(); ++i) {
      if (args[i].kind == ArgKind::kRandom) {
        cuda::FillUniform(set[i].data, args[i].dtype, args[i].elements, seed++, timer_.stream());
      } else if (args[i].kind == ArgKind::kZero) {
        ZEROPLAN_CUDA(cudaMemsetAsync(set[i].data, 0, set[i].bytes, timer_.stream()));
      } else if (args[i].kind == ArgKind::kInts) {
        ZEROPLAN_CUDA(cudaMemcpyAsync(set[i].data, args[i].ints.data(), args[i].bytes(),
                                      cudaMemcpyHostToDevice, timer_.stream()));
      }
    }
  }
  ZEROPLAN_CUDA(cudaPeekAtLastError());
  ZEROPLAN_CUDA(cudaStreamSynchronize(timer_.stream()));
}

std::vector<BenchArg> KernelBench::WithWorkspace(KernelId id, const KernelDims& dims,
                                                 std::vector<BenchArg> args) const {
  const KernelRow& row = KernelInfo(id);
  const uint64_t bytes =
      LaunchWorkspaceBytes(id, dims, Backend::kCuda, false, attention_.deterministic());
  if (bytes == 0) return args;
  const auto* place = std::find(row.args.begin(), row.args.end(), ArgMode::kScratch);
  args.resize(static_cast<size_t>(place - row.args.begin()), BenchArg{});
  args.push_back({ArgKind::kScratch, Dtype::kU8, static_cast<int64_t>(bytes)});
  return args;
}

void KernelBench::Prepare(KernelId id, const KernelDims& dims, uint8_t flags,
                          const std::vector<BenchArg>& args, const std::vector<Set>& sets) {
  Fill(args, sets);
  const KernelFn prepare = CudaKernels().prepare[static_cast<size_t>(id)];
  if (prepare == nullptr) return;
  prepare(
      {id, flags, dims, sets.front(), context_, UsualScalars(id)});  // may write to its arguments
  ZEROPLAN_CUDA(cudaDeviceSynchronize());
  Fill(args, sets);
}

std::optional<double> KernelBench::Seconds(KernelId id, const KernelDims& dims,
                                           const std::vector<BenchArg>& given, uint8_t flags,
                                           Caches caches) {
  const std::vector<BenchArg> args = WithWorkspace(id, dims, given);
  const auto sets = Place(args, caches);
  if (!sets) return std::nullopt;
  Prepare(id, dims, flags, args, *sets);
  const KernelFn row = CudaKernels().rows[static_cast<size_t>(id)];
  const double seconds = timer_.MedianSeconds(static_cast<int>(sets->size()), [&](int i) {
    const Set& set = (*sets)[static_cast<size_t>(i) % sets->size()];
    row({id, flags, dims, set, context_, UsualScalars(id)});
  });
  ZEROPLAN_CUDA(cudaPeekAtLastError());
  return seconds;
}

void KernelBench::WithLaunch(KernelId id, const KernelDims& dims,
                             const std::vector<BenchArg>& given,
                             const std::function<void(const std::function<void()>&)>& body) {
  const std::vector<BenchArg> args = WithWorkspace(id, dims, given);
  const auto sets = Place(args);
  ZEROPLAN_CHECK(sets.has_value(), "{} does not fit the memory to measure in", KernelInfo(id).name);
  Prepare(id, dims, kNoFlags, args, *sets);
  const KernelFn row = CudaKernels().rows[static_cast<size_t>(id)];
  body([&] { row({id, kNoFlags, dims, sets->front(), context_, UsualScalars(id)}); });
}

double KernelBench::ChainSeconds(KernelId id, const KernelDims& dims,
                                 const std::vector<BenchArg>& args, int launches, int rounds) {
  const auto sets = Place(args);
  ZEROPLAN_CHECK(sets.has_value(), "a chain of small launches");
  Fill(args, *sets);
  const KernelFn row = CudaKernels().rows[static_cast<size_t>(id)];
  const auto run = [&](int) {
    row({id, kNoFlags, dims, sets->front(), context_, UsualScalars(id)});
  };
  return StreamSeconds(launches, rounds, run);
}

double KernelBench::StreamSeconds(int calls, int rounds, const std::function<void(int)>& run) {
  std::vector<double> seconds;
  for (int i = 0; i < rounds; ++i) {
    seconds.push_back(timer_.RoundSeconds(calls, run) / calls);
  }
  return Median(std::move(seconds));
}

std::optional<double> KernelBench::Seconds(
    const std::vector<BenchArg>& args, const std::function<void(std::span<const KernelArg>)>& run) {
  const auto sets = Place(args);
  if (!sets) return std::nullopt;
  Fill(args, *sets);
  constexpr int kRounds = 9;
  const auto run_set = [&](int i) { run((*sets)[static_cast<size_t>(i) % sets->size()]); };
  const int calls = static_cast<int>(sets->size());
  timer_.RoundSeconds(calls, run_set);  // warms up
  return StreamSeconds(calls, kRounds, run_set);
}

}  // namespace zeroplan
