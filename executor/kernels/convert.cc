#include "executor/kernels/convert.h"

#include <array>
#include <cstring>

#include "core/base/error.h"
#include "core/base/fp8.h"

namespace zeroplan {
namespace {

using simd::LoadAs;
using simd::Store;
using simd::StoreTo;
using simd::VecH;

template <typename Decode>
constexpr std::array<float, 256> ValuesOf(Decode decode) {
  std::array<float, 256> values{};
  for (size_t code = 0; code < values.size(); ++code) {
    values[code] = decode(static_cast<uint8_t>(code));
  }
  return values;
}
constexpr std::array<float, 256> kE4M3Values = ValuesOf(FromE4M3);
constexpr std::array<float, 256> kE5M2Values = ValuesOf(FromE5M2);

}  // namespace

void Widen(Dtype dtype, const void* src, int64_t n, float* dst) {
  const auto* half = static_cast<const uint16_t*>(src);
  switch (dtype) {
    case Dtype::kF32:
      std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
      return;
    case Dtype::kBF16:
      simd::VectorLoop(n, [&](int64_t i, auto part) {
        Store(dst + i, simd::FromBf16(LoadAs<VecH>(half + i, part)), part);
      });
      return;
    case Dtype::kF16:
      simd::VectorLoop(n, [&](int64_t i, auto part) {
        Store(dst + i, simd::FromF16(LoadAs<VecH>(half + i, part)), part);
      });
      return;
    case Dtype::kF64:
    case Dtype::kI32:
    case Dtype::kU8:
    case Dtype::kNf4:
    case Dtype::kInt8Blocks:
    case Dtype::kInt4Blocks:
    case Dtype::kI16:
    case Dtype::kDynamic8:
    case Dtype::kUnsignedDynamic8:
      break;
    case Dtype::kE4M3:
    case Dtype::kE5M2: {
      const auto* codes = static_cast<const uint8_t*>(src);
      const auto& values = dtype == Dtype::kE4M3 ? kE4M3Values : kE5M2Values;
      for (int64_t i = 0; i < n; ++i) dst[i] = values[codes[i]];
      return;
    }
  }
  ZEROPLAN_CHECK(false, "no kernel reads {}", DtypeName(dtype));
}

void Narrow(Dtype dtype, const float* src, int64_t n, void* dst) {
  auto* half = static_cast<uint16_t*>(dst);
  switch (dtype) {
    case Dtype::kF32:
      std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
      return;
    case Dtype::kBF16:
      simd::VectorLoop(n, [&](int64_t i, auto part) {
        StoreTo(half + i, simd::ToBf16(simd::Load(src + i, part)), part);
      });
      return;
    case Dtype::kF16:
      simd::VectorLoop(n, [&](int64_t i, auto part) {
        StoreTo(half + i, simd::ToF16(simd::Load(src + i, part)), part);
      });
      return;
    case Dtype::kF64:
    case Dtype::kI32:
    case Dtype::kU8:
    case Dtype::kNf4:
    case Dtype::kInt8Blocks:
    case Dtype::kInt4Blocks:
    case Dtype::kI16:
    case Dtype::kDynamic8:
    case Dtype::kUnsignedDynamic8:
    case Dtype::kE4M3:  // only with a scale: the kernel that quantizes
    case Dtype::kE5M2:
      break;
  }
  ZEROPLAN_CHECK(false, "no kernel writes {}", DtypeName(dtype));
}

void NarrowHalfAway(const float* src, int64_t n, uint16_t* dst) {
  simd::VectorLoop(n, [&](int64_t i, auto part) {
    StoreTo(dst + i, simd::SplitMaster(simd::Load(src + i, part)).param, part);
  });
}

float ReadScalar(Dtype dtype, const void* data, int64_t index) {
  float value = 0;
  Widen(dtype, static_cast<const char*>(data) + static_cast<uint64_t>(index) * DtypeBytes(dtype), 1,
        &value);
  return value;
}

void WriteScalar(Dtype dtype, void* data, int64_t index, float value) {
  Narrow(dtype, &value, 1,
         static_cast<char*>(data) + static_cast<uint64_t>(index) * DtypeBytes(dtype));
}

}  // namespace zeroplan
