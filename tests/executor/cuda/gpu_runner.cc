#include "tests/executor/cuda/gpu_runner.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "core/program/kernel.h"
#include "executor/kernels/cuda/cuda_launch.h"
#if __has_include("executor/kernels/cuda/gemm/gemm_plans.h")
#include "executor/kernels/cuda/gemm/gemm_plans.h"
#define ZEROPLAN_TEST_GEMM_PLANS 1
#endif
#if __has_include("executor/kernels/cuda/attention/attention_plans.h")
#include "executor/kernels/cuda/attention/attention_plans.h"
#define ZEROPLAN_TEST_ATTENTION_PLANS 1
#endif

namespace zeroplan::kernel_test {
namespace {

constexpr uint64_t kGuardBytes = 256;  // keeps every argument at the alignment of cudaMalloc
constexpr unsigned char kGuard = 0xA5, kScratchFill = 0xFF;  // the latter: NaN in every dtype

struct DeviceBlock {
  explicit DeviceBlock(uint64_t bytes) {
    CheckGpu(cudaMalloc(&data, bytes), "cudaMalloc");
    CheckGpu(cudaMemset(data, kGuard, bytes), "cudaMemset");
  }
  ~DeviceBlock() { cudaFree(data); }
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;
  char* bytes() const { return static_cast<char*>(data); }
  void* data = nullptr;
};

// guard, argument, guard up to the next multiple of kGuardBytes and one more.
uint64_t Room(uint64_t bytes) {
  return kGuardBytes + (bytes + kGuardBytes - 1) / kGuardBytes * kGuardBytes + kGuardBytes;
}

std::string Name(const KernelCall& call) {
  return fmt::format("{} ({})", KernelInfo(call.id).name,
                     FormatDims(call.id, call.dims, call.scalars));
}

// The index of the first byte that is not a guard's, or -1.
int64_t FirstChanged(const char* begin, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; ++i) {
    if (static_cast<unsigned char>(begin[i]) != kGuard) return static_cast<int64_t>(i);
  }
  return -1;
}

// What a program sets aside for the launch.
uint64_t ScratchBytes(const KernelCall& call) {
  const KernelRow& row = KernelInfo(call.id);
  const auto starts = static_cast<size_t>(row.starts);
  const bool documents =
      row.starts >= 0 && starts < call.args.size() && call.args[starts].data != nullptr;
#ifdef ZEROPLAN_TEST_ATTENTION_PLANS
  const bool deterministic = TestLaunch().attention->deterministic();
#else
  const bool deterministic = false;
#endif
  return LaunchWorkspaceBytes(call.id, call.dims, Backend::kCuda, documents, deterministic);
}

}  // namespace

void CheckGpu(int error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(
      fmt::format("{}: {}", what, cudaGetErrorString(static_cast<cudaError_t>(error))));
}

CudaLaunch& TestLaunch() {
  // Left alone at exit, when the CUDA runtime may be gone.
  static CudaLaunch* const launch = [] {
    auto* made = new CudaLaunch;
    CheckGpu(cudaStreamCreateWithFlags(&made->stream, cudaStreamNonBlocking), "stream");
    CheckGpu(cudaDeviceGetAttribute(&made->sm_count, cudaDevAttrMultiProcessorCount, 0), "device");
#ifdef ZEROPLAN_TEST_GEMM_PLANS
    made->gemm = new GemmPlans(0);
#endif
#ifdef ZEROPLAN_TEST_ATTENTION_PLANS
    made->attention = new AttentionPlans(0);
#endif
    return made;
  }();
  return *launch;
}

void RunOnGpu(const KernelCall& host, KernelFn fn) {
  const KernelRow& row = KernelInfo(host.id);
  std::vector<KernelArg> host_args(host.args.begin(), host.args.end());
  const uint64_t scratch_bytes = ScratchBytes(host);
  const auto scratch_at = static_cast<size_t>(
      std::find(row.args.begin(), row.args.end(), ArgMode::kScratch) - row.args.begin());
  if (scratch_bytes > 0) {
    host_args.resize(std::max(host_args.size(), scratch_at + 1));
    host_args[scratch_at] = {nullptr, scratch_bytes, Dtype::kU8};
  }
  const size_t count = host_args.size();
  const bool has_scratch = scratch_bytes > 0;
  const auto is_scratch = [&](size_t i) { return has_scratch && i == scratch_at; };
  const auto present = [&](size_t i) { return host_args[i].data != nullptr || is_scratch(i); };

  std::vector<uint64_t> offsets(count);
  uint64_t total = kGuardBytes;
  for (size_t i = 0; i < count; ++i) {
    if (!present(i)) continue;
    offsets[i] = total + kGuardBytes;
    total += Room(host_args[i].bytes);
  }
  const DeviceBlock block(total);
  std::vector<KernelArg> args(count);
  for (size_t i = 0; i < count; ++i) {
    if (!present(i)) continue;
    args[i] = {block.bytes() + offsets[i], host_args[i].bytes, host_args[i].dtype};
  }

  CudaLaunch& launch = TestLaunch();
  KernelContext gpu = host.context;
  gpu.cuda = &launch;
  const KernelCall call{host.id, host.flags, host.dims, args, gpu, host.scalars};
  const auto upload = [&] {
    for (size_t i = 0; i < count; ++i) {
      if (!present(i)) continue;
      if (is_scratch(i)) {
        CheckGpu(cudaMemset(args[i].data, kScratchFill, args[i].bytes), "cudaMemset");
      } else {
        CheckGpu(cudaMemcpy(args[i].data, host_args[i].data, args[i].bytes, cudaMemcpyDefault),
                 "upload");
      }
    }
    CheckGpu(cudaDeviceSynchronize(), "upload");  // the test's stream does not wait for others
  };
  upload();
  const KernelTable& table = CudaKernels();
  const auto wait = [&](const char* stage) {
    const cudaError_t launched = cudaGetLastError();
    const cudaError_t ran = cudaStreamSynchronize(launch.stream);
    CheckGpu(launched, fmt::format("{}: {}: launch", Name(host), stage).c_str());
    CheckGpu(ran, fmt::format("{}: {}: run", Name(host), stage).c_str());
  };
  const KernelFn prepare = table.prepare[static_cast<size_t>(host.id)];
  if (fn == nullptr && prepare != nullptr) {
    prepare(call);
    wait("prepare");
    upload();  // preparing may have scribbled on the arguments
  }
  (fn != nullptr ? fn : table.rows[static_cast<size_t>(host.id)])(call);
  wait("kernel");

  std::vector<char> after(total);
  CheckGpu(cudaMemcpy(after.data(), block.data, total, cudaMemcpyDefault), "download");
  uint64_t at = 0;  // up to here all is checked
  for (size_t i = 0; i <= count; ++i) {
    if (i < count && !present(i)) continue;
    const uint64_t end = i < count ? offsets[i] : total;
    if (const int64_t changed = FirstChanged(after.data() + at, end - at); changed >= 0) {
      throw std::runtime_error(
          fmt::format("{}: wrote {} bytes behind an argument's end, {} before "
                      "argument {} of {}",
                      Name(host), changed, end - at - static_cast<uint64_t>(changed), i, count));
    }
    if (i == count) break;
    at = end + args[i].bytes;
    if (is_scratch(i)) continue;
    char* got = after.data() + offsets[i];
    const ArgMode mode = AccessMode(host.id, static_cast<int>(i), host.flags);
    if (Writes(mode)) {
      std::memcpy(host_args[i].data, got, args[i].bytes);
    } else if (std::memcmp(host_args[i].data, got, args[i].bytes) != 0) {
      throw std::runtime_error(fmt::format("{}: changed argument {}, an input", Name(host), i));
    }
  }
}

}  // namespace zeroplan::kernel_test
