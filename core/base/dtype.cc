#include "core/base/dtype.h"

#include <string>

#include "core/base/error.h"
#include "core/base/strings.h"

namespace zeroplan {

std::string_view DtypeName(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return "fp32";
    case Dtype::kBF16:
      return "bf16";
    case Dtype::kF16:
      return "fp16";
    case Dtype::kF64:
      return "fp64";
    case Dtype::kI32:
      return "int32";
    case Dtype::kU8:
      return "uint8";
    case Dtype::kNf4:
      return "nf4";
    case Dtype::kInt8Blocks:
      return "int8_blocks";
    case Dtype::kInt4Blocks:
      return "int4_blocks";
    case Dtype::kI16:
      return "int16";
    case Dtype::kDynamic8:
      return "dynamic8";
    case Dtype::kUnsignedDynamic8:
      return "unsigned_dynamic8";
    case Dtype::kE4M3:
      return "e4m3";
    case Dtype::kE5M2:
      return "e5m2";
  }
  return "unknown";
}

Dtype ParseDtype(std::string_view text, std::string_view what) {
  const std::string lower = LowerAscii(text);
  if (lower == "bf16" || lower == "bfloat16") return Dtype::kBF16;
  if (lower == "fp16" || lower == "float16" || lower == "half") return Dtype::kF16;
  if (lower == "fp32" || lower == "float32" || lower == "float") return Dtype::kF32;
  ThrowUsage("{}: '{}' is not allowed; use bf16, fp16 or fp32", what, text);
}

}  // namespace zeroplan
