// Element types of tensors, master weights and scalars.
#pragma once

#include <cstdint>
#include <string_view>

namespace zeroplan {

// kNf4: four bits an element, in blocks that share their scales (core/base/nf4.h).
// kInt8Blocks, kInt4Blocks: values that quantized collectives send (core/base/int_blocks.h).
// kI16: the lower half of a split master weight (core/base/split_master.h).
// kDynamic8, kUnsignedDynamic8: 8-bit moments (core/base/dynamic8.h).
// kE4M3, kE5M2: operands of 8-bit matmuls (core/base/fp8.h).
enum class Dtype : uint8_t {
  kF32,
  kBF16,
  kF16,
  kF64,
  kI32,
  kU8,
  kNf4,
  kInt8Blocks,
  kInt4Blocks,
  kI16,
  kDynamic8,
  kUnsignedDynamic8,
  kE4M3,
  kE5M2
};

// The least number of elements that can be stored alone: 1, or a block's.
constexpr uint64_t DtypeElements(Dtype dtype) {
  switch (dtype) {
    case Dtype::kNf4:
      return 16384;
    case Dtype::kInt8Blocks:
    case Dtype::kInt4Blocks:
    case Dtype::kDynamic8:
    case Dtype::kUnsignedDynamic8:
      return 1024;
    default:
      return 1;
  }
}

// Bytes of one such unit: an element or a block.
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
    case Dtype::kNf4:
      return 8464;
    case Dtype::kInt8Blocks:
      return 1040;
    case Dtype::kInt4Blocks:
      return 528;
    case Dtype::kI16:
      return 2;
    case Dtype::kDynamic8:
    case Dtype::kUnsignedDynamic8:
      return 1040;
    case Dtype::kE4M3:
    case Dtype::kE5M2:
      return 1;
  }
  return 0;
}

// Bytes that store `elements` elements: whole blocks.
constexpr uint64_t StoredBytes(Dtype dtype, uint64_t elements) {
  const uint64_t together = DtypeElements(dtype);
  return (elements + together - 1) / together * DtypeBytes(dtype);
}

// The dtype that collectives use which only move elements.
constexpr Dtype SentDtype(Dtype dtype) { return DtypeElements(dtype) > 1 ? Dtype::kU8 : dtype; }

// "fp32", "bf16", "fp16", "fp64", "int32", "uint8", "nf4", "int8_blocks", "int4_blocks",
// "int16", "dynamic8", "unsigned_dynamic8", "e4m3", "e5m2".
std::string_view DtypeName(Dtype dtype);

// Parses a training dtype as the command line spells it: bf16, fp16 or fp32 (also bfloat16,
// float16, half, float32, float). Otherwise throws Error(kUsage) that names `what` and the allowed
// values.
Dtype ParseDtype(std::string_view text, std::string_view what);

}  // namespace zeroplan
