#include "executor/device/cuda/stream_flags.h"

#include <cuda.h>

#include <new>

#include "core/base/error.h"
#include "executor/device/cuda/cuda_handles.h"

namespace zeroplan {
namespace {

// Past every count of a run, and still "reached" under the driver's signed comparison.
constexpr uint32_t kReleased = 0x7fffffff;

using WaitFn = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);

WaitFn Lookup(const char* symbol) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  ZEROPLAN_CUDA(
      cudaGetDriverEntryPointByVersion(symbol, &function, 12000, cudaEnableDefault, &found));
  if (function == nullptr || found != cudaDriverEntryPointSuccess) {
    ThrowRuntime("the NVIDIA driver has no {}; it is too old for this build (CUDA 12 or newer)",
                 symbol);
  }
  return reinterpret_cast<WaitFn>(function);
}

void CheckDriver(CUresult status, const char* call) {
  if (status == CUDA_SUCCESS) return;
  ThrowRuntime("{} failed with CUDA driver error {}", call, static_cast<int>(status));
}

}  // namespace

struct StreamFlags::Driver {
  WaitFn wait = Lookup("cuStreamWaitValue32");
  WaitFn write = Lookup("cuStreamWriteValue32");
};

StreamFlags::StreamFlags(uint32_t count)
    : count_(count),
      memory_(Space::kPageable, uint64_t{count} * sizeof(Flag), 0),
      lock_(memory_.data(), memory_.bytes(), 0),
      flags_(reinterpret_cast<Flag*>(memory_.data())),
      driver_(std::make_unique<Driver>()) {
  for (uint32_t i = 0; i < count; ++i) new (flags_ + i) Flag(0);
}

StreamFlags::~StreamFlags() = default;

void StreamFlags::WriteOn(cudaStream_t stream, uint32_t flag, uint32_t value) {
  CheckDriver(driver_->write(stream, reinterpret_cast<CUdeviceptr>(flags_ + flag), value,
                             CU_STREAM_WRITE_VALUE_DEFAULT),
              "cuStreamWriteValue32");
}

void StreamFlags::WaitOn(cudaStream_t stream, uint32_t flag, uint32_t value) {
  CheckDriver(driver_->wait(stream, reinterpret_cast<CUdeviceptr>(flags_ + flag), value,
                            CU_STREAM_WAIT_VALUE_GEQ),
              "cuStreamWaitValue32");
}

void StreamFlags::Write(uint32_t flag, uint32_t value) noexcept {
  flags_[flag].store(value, std::memory_order_release);
}

bool StreamFlags::Reached(uint32_t flag, uint32_t value) const noexcept {
  return static_cast<int32_t>(flags_[flag].load(std::memory_order_acquire) - value) >= 0;
}

void StreamFlags::ReleaseAll() noexcept {
  for (uint32_t i = 0; i < count_; ++i) Write(i, kReleased);
}

}  // namespace zeroplan
