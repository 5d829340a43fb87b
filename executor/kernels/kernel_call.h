// What a backend's kernel gets when the engine launches it, and the table of a backend's kernels.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/program/program.h"

namespace zeroplan {

class ThreadPool;

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
  uint64_t seed = 0;           // of kParamInit
  ThreadPool* pool = nullptr;  // CPU backend: the rank's threads and their scratch
};

// Arguments are in the order of KernelId's comment; dims too.
struct KernelCall {
  KernelId id;
  uint8_t flags;
  KernelDims dims;
  std::span<const KernelArg> args;
  const KernelContext& context;

  bool has(KernelFlag flag) const { return (flags & flag) != 0; }
};

using KernelFn = void (*)(const KernelCall&);

// One row per KernelId.
struct KernelTable {
  std::array<KernelFn, kKernelCount> rows;
};

const KernelTable& CpuKernels();

}  // namespace zeroplan
