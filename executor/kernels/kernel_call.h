// The arguments of a backend's kernel, and the table of a backend's kernels.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/program/program.h"

namespace zeroplan {

class ThreadPool;
struct CudaLaunch;  // executor/kernels/cuda/cuda_launch.h

// One argument, resolved to an address. data == nullptr: absent (a null Ref).
struct KernelArg {
  void* data = nullptr;
  uint64_t bytes = 0;
  Dtype dtype = Dtype::kU8;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

struct KernelContext {
  const Program* program = nullptr;  // units (decay, init), optimizer and precision settings
  int rank = 0;
  uint64_t seed = 0;           // for kParamInit and kDropout
  ThreadPool* pool = nullptr;  // CPU kernels: the rank's threads and their scratch
  CudaLaunch* cuda = nullptr;  // CUDA kernels: stream and libraries
  bool fresh_weights = true;   // kParamInit of CPU kernels; false: zeros suffice
};

// Arguments, dims and scalars are in the order of the row.
struct KernelCall {
  KernelId id;
  uint8_t flags;
  KernelDims dims;
  std::span<const KernelArg> args;
  const KernelContext& context;
  KernelScalars scalars{};

  bool has(KernelFlag flag) const { return (flags & flag) != 0; }
};

// The argument, or an absent one if a call has fewer.
inline constexpr KernelArg kAbsent{};
inline const KernelArg& Arg(const KernelCall& call, size_t index) {
  return index < call.args.size() ? call.args[index] : kAbsent;
}
inline bool Present(const KernelArg& arg) { return arg.data != nullptr; }

using KernelFn = void (*)(const KernelCall&);

// A backend's functions by KernelId, kExtraKernel included.
struct KernelTable {
  std::array<KernelFn, kKernelSlots> rows{};
  // Functions that an engine calls once for each launch before the first step; null: nothing to
  // prepare.
  std::array<KernelFn, kKernelSlots> prepare{};
};

const KernelTable& CpuKernels();
const KernelTable& CudaKernels();  // in a build with CUDA

// Sets the function of SetExtraKernel's row; nullptr clears it.
void SetExtraCpuKernel(KernelFn fn);
void SetExtraCudaKernel(KernelFn fn, KernelFn prepare = nullptr);  // in a build with CUDA

}  // namespace zeroplan
