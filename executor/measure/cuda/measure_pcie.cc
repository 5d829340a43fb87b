// Copies between page-locked host memory and GPUs: one GPU alone, then all of them at once.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "core/base/thread.h"
#include "executor/device/arena.h"
#include "executor/measure/cuda/device_parts.h"
#include "executor/measure/cuda/rank_timer.h"
#include "executor/measure/measure_host.h"
#include "executor/measure/measurement.h"
#include "executor/measure/part_runner.h"
#include "machine/detect.h"

namespace zeroplan {
namespace {

constexpr uint64_t kLargest = 256 * kMib;

// Host memory as an engine's pinned arena is: touched by this process, then page-locked.
class HostMemory {
 public:
  explicit HostMemory(int rank) : arena_(Space::kPageable, kLargest, rank) {
    for (uint64_t at = 0; at < kLargest; at += 4096) arena_.data()[at] = std::byte{1};
    lock_ = PageLock(arena_.data(), kLargest, rank);
  }
  std::byte* data() const { return arena_.data(); }

 private:
  MemoryArena arena_;
  PageLock lock_;
};

class Copies {
 public:
  explicit Copies(ProcessGroup& group)
      : host_up_(group.rank()),
        host_down_(group.rank()),
        up_(AllocateDeviceMemory(kLargest)),
        down_(AllocateDeviceMemory(kLargest)),
        other_(MakeStream(true)),
        fork_(MakeEvent(false)),
        join_(MakeEvent(false)),
        timer_(group) {
    ZEROPLAN_CUDA(cudaMemset(down_.get(), 1, kLargest));
  }

  double ToDevice(uint64_t bytes, int rounds) {
    return timer_.SlowestSeconds(rounds, Calls(bytes), [&] { Up(bytes, timer_.stream()); });
  }
  double FromDevice(uint64_t bytes, int rounds) {
    return timer_.SlowestSeconds(rounds, Calls(bytes), [&] { Down(bytes, timer_.stream()); });
  }
  // Seconds until both directions have moved `bytes`.
  double Both(uint64_t bytes, int rounds) {
    return timer_.SlowestSeconds(rounds, 1, [&] {
      ZEROPLAN_CUDA(cudaEventRecord(fork_.get(), timer_.stream()));
      ZEROPLAN_CUDA(cudaStreamWaitEvent(other_.get(), fork_.get(), 0));
      for (int i = 0; i < kBothCalls; ++i) {
        Up(bytes, timer_.stream());
        Down(bytes, other_.get());
      }
      ZEROPLAN_CUDA(cudaEventRecord(join_.get(), other_.get()));
      ZEROPLAN_CUDA(cudaStreamWaitEvent(timer_.stream(), join_.get(), 0));
    }) / kBothCalls;
  }
  // Bytes a second of copies to the device while `work` runs, issued by a thread of their own.
  double ToDeviceBeside(const std::function<void()>& work) {
    constexpr uint64_t kBytes = 32 * kMib;
    std::atomic<bool> over{false};
    double bytes = 0, seconds = 0;
    std::exception_ptr failure;
    int device = 0;
    ZEROPLAN_CUDA(cudaGetDevice(&device));
    std::jthread copies = StartThread("copies to the GPU", [&] {
      try {
        ZEROPLAN_CUDA(cudaSetDevice(device));
        const auto begin = std::chrono::steady_clock::now();
        while (!over.load(std::memory_order_relaxed)) {
          Up(kBytes, other_.get());
          Up(kBytes, other_.get());
          ZEROPLAN_CUDA(cudaStreamSynchronize(other_.get()));
          bytes += 2.0 * kBytes;
        }
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      } catch (...) {
        failure = std::current_exception();
      }
    });
    work();
    over.store(true, std::memory_order_relaxed);
    copies.join();
    if (failure) std::rethrow_exception(failure);
    return bytes / seconds;
  }
  CopyRates Rates(int rounds) {
    constexpr auto kBytes = static_cast<double>(kLargest);
    return {kBytes / ToDevice(kLargest, rounds), kBytes / FromDevice(kLargest, rounds),
            2 * kBytes / Both(kLargest, rounds)};
  }

 private:
  static constexpr int kBothCalls = 4;
  static int Calls(uint64_t bytes) {
    return static_cast<int>(std::clamp<uint64_t>(64 * kMib / bytes, 2, 32));
  }
  void Up(uint64_t bytes, cudaStream_t stream) {
    ZEROPLAN_CUDA(
        cudaMemcpyAsync(up_.get(), host_up_.data(), bytes, cudaMemcpyHostToDevice, stream));
  }
  void Down(uint64_t bytes, cudaStream_t stream) {
    ZEROPLAN_CUDA(
        cudaMemcpyAsync(host_down_.data(), down_.get(), bytes, cudaMemcpyDeviceToHost, stream));
  }

  HostMemory host_up_, host_down_;
  DeviceMemory up_, down_;
  CudaStream other_;
  CudaEvent fork_, join_;
  RankTimer timer_;  // goes first: it ends what would wait for other ranks for ever
};

// What AdamW on all cores and copies to one GPU cost each other.
void MeasureBesideHost(Copies& copies, bool quick, PcieMeasurement& result) {
  constexpr int64_t kElements = int64_t{1} << 26, kCall = int64_t{1} << 24;
  const int calls = quick ? 8 : 24;
  ThreadPool pool(std::max(1, QueryHost().cores));
  HostKernels host(pool, kElements);
  const auto adam = [&] { return host.Seconds(KernelId::kAdamW, kCall, calls); };
  adam();  // warms up
  const double alone = adam();
  double beside = 0;
  const double copied = copies.ToDeviceBeside([&] { beside = adam(); });
  result.overlapped_host = std::clamp(alone / beside, 0.01, 1.0);
  result.overlapped_copy = std::clamp(copied / result.single.to_device, 0.01, 1.0);
}

}  // namespace

PcieMeasurement MeasurePcie(ProcessGroup& group, bool quick) {
  PcieMeasurement result;
  const int rounds = quick ? 5 : 9;
  SubGroup alone(group, 1);
  if (alone.is_member()) {
    Copies copies(alone);
    const std::vector<uint64_t> sizes =
        quick ? std::vector<uint64_t>{1, 16} : std::vector<uint64_t>{1, 4, 16, 64};
    for (const uint64_t mib : sizes) {
      const uint64_t bytes = mib * kMib;
      result.copies.push_back({static_cast<double>(bytes), copies.ToDevice(bytes, rounds),
                               copies.FromDevice(bytes, rounds)});
    }
    result.single = copies.Rates(rounds);
    constexpr auto kBytes = static_cast<double>(kLargest);
    result.copies.push_back(
        {kBytes, kBytes / result.single.to_device, kBytes / result.single.from_device});
    MeasureBesideHost(copies, quick, result);
    alone.Dismiss();
  } else {
    alone.Follow();
  }
  if (group.world_size() == 1) return result;
  const double ranks = group.world_size();
  CopyRates all = Copies(group).Rates(rounds);
  result.all = CopyRates{ranks * all.to_device, ranks * all.from_device, ranks * all.both};
  return result;
}

}  // namespace zeroplan
