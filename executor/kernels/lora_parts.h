// The linears of a product that adapters add to: kernel rows lora_up and its backward.
#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan {

// Dims of these rows, taken apart.
struct LoraShape {
  int64_t M, r, N, R = 0;  // R: rank of all adapted linears together

  struct Part {
    int64_t begin, end;  // columns of the product
    int64_t rank_begin;  // first column of xa
    int64_t up_begin;    // first row of B
    int64_t columns() const { return end - begin; }
  };

  explicit LoraShape(const KernelDims& d) : M(d[0]), r(d[1]), N(d[2]), dims_(d) {
    ForEach([this](const Part&) { R += r; });
  }

  template <typename Fn>
  void ForEach(Fn&& fn) const {
    const int64_t ends[] = {dims_[3], dims_[4], N};
    int64_t begin = 0, rank = 0, up = 0;
    for (int i = 0; i < 3; ++i) {
      if ((dims_[5] >> i & 1) != 0) {
        fn(Part{begin, ends[i], rank, up});
        rank += r;
        up += ends[i] - begin;
      }
      begin = ends[i];
    }
  }

 private:
  KernelDims dims_;
};

// The argument from element `first` on.
inline KernelArg From(const KernelArg& arg, int64_t first) {
  const uint64_t bytes = static_cast<uint64_t>(first) * DtypeBytes(arg.dtype);
  return {arg.as<std::byte>() + bytes, arg.bytes - bytes, arg.dtype};
}

}  // namespace zeroplan
