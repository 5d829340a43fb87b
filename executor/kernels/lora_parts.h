// The linears of a matmul that adapters add to: kernel rows lora_up and its backward.
#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "core/model/lora.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan {

// The dims of those rows.
struct LoraShape {
  int64_t M, r, N, R = 0;  // R: rank of all adapted linears together

  struct Part : AdaptedColumns::Part {
    int64_t rank_begin;  // first column of xa
  };

  explicit LoraShape(const KernelDims& d)
      : M(d[0]), r(d[1]), N(d[2]), adapted_{{d[3], d[4]}, d[5]} {
    ForEach([this](const Part&) { R += r; });
  }

  template <typename Fn>
  void ForEach(Fn&& fn) const {
    adapted_.ForEach(N, [&](const AdaptedColumns::Part& part) { fn(Part{part, part.place * r}); });
  }

 private:
  AdaptedColumns adapted_;
};

// The argument from element `first` on.
inline KernelArg From(const KernelArg& arg, int64_t first) {
  const uint64_t bytes = static_cast<uint64_t>(first) * DtypeBytes(arg.dtype);
  return {arg.as<std::byte>() + bytes, arg.bytes - bytes, arg.dtype};
}

}  // namespace zeroplan
