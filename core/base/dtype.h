// Element types of tensors, master weights and scalars.
#pragma once

#include <cstdint>
#include <string_view>

namespace zeroplan {

enum class Dtype : uint8_t { kF32, kBF16, kF16, kF64, kI32, kU8 };

constexpr uint64_t DtypeBytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return 4;
    case Dtype::kBF16:
      return 2;
    case Dtype::kF16:
      return 2;
    case Dtype::kF64:
      return 8;
    case Dtype::kI32:
      return 4;
    case Dtype::kU8:
      return 1;
  }
  return 0;
}

// "fp32", "bf16", "fp16", "fp64", "int32", "uint8".
std::string_view DtypeName(Dtype dtype);

// Reads a training dtype as the command line spells it: bf16, fp16 or fp32 (also bfloat16, float16,
// half, float32, float). Throws Error(kUsage) that names `what` and the allowed values otherwise.
Dtype ParseDtype(std::string_view text, std::string_view what);

}  // namespace zeroplan
