// Compiled without contraction to fused multiply-adds (CMakeLists.txt): a maximum is a product and
// a sum, each rounded.
#include "executor/kernels/nf4.h"

#include <cmath>

#include "executor/kernels/kernel_util.h"

namespace zeroplan {
namespace {

using simd::kLanes;
using simd::VecF;
using simd::VecI;
using simd::VecU;

static_assert(kNf4Group % kLanes == 0 && kBlock % kNf4Group == 0 && kNf4Block % kBlock == 0);

// The values of the two codes in a byte.
constexpr auto kValuePairs = [] {
  std::array<std::array<float, 2>, 256> pairs{};
  for (size_t byte = 0; byte < 256; ++byte) {
    pairs[byte] = {kNf4Values[byte >> 4], kNf4Values[byte & 15]};
  }
  return pairs;
}();

// Writes the codes of a group and returns its maximum.
float QuantizeGroup(const float* x, uint8_t* bytes) {
  VecF most{};
  for (int i = 0; i < kNf4Group; i += kLanes) {
    most = simd::Max((VecF)((VecU)simd::Load(x + i) & 0x7fffffffu), most);
  }
  const float maximum = simd::Max(most);
  if (maximum == 0) {
    std::memset(bytes, kNf4Zero << 4 | kNf4Zero, kNf4Group / 2);
    return 0;
  }
  const float reciprocal = 1.0f / maximum;
  alignas(64) int32_t codes[kNf4Group];
  for (int i = 0; i < kNf4Group; i += kLanes) {
    const VecF scaled = simd::Load(x + i) * reciprocal;
    VecI code{};
    for (const float middle : kNf4Middles) code -= scaled > middle;  // -1 where true
    simd::StoreTo(codes + i, code, simd::Full{});
  }
  for (int i = 0; i < kNf4Group / 2; ++i) {
    bytes[i] = static_cast<uint8_t>(codes[2 * i] << 4 | codes[2 * i + 1]);
  }
  return maximum;
}

uint8_t MaximumCode(float scaled) {
  size_t below = 0;
  for (size_t half = 128; half > 0; half /= 2) {
    below += scaled > kNf4MaximumMiddles[below + half - 1] ? half : 0;
  }
  return static_cast<uint8_t>(below);
}

void QuantizeMaxima(const float (&maxima)[kNf4Groups], Nf4Block& block) {
  double sum = 0;
  int count = 0;
  for (const float m : maxima) {
    sum += static_cast<double>(m);
    count += m != 0;
  }
  const float offset = count == 0 ? 0 : static_cast<float>(sum / count);
  float scale = 0;
  for (const float m : maxima) {
    const float left = m == 0 ? 0 : std::abs(m - offset);
    scale = left > scale ? left : scale;
  }
  const float reciprocal = 1.0f / scale;
  for (int g = 0; g < kNf4Groups; ++g) {
    const float m = maxima[g];
    block.maxima[g] =
        m == 0 || scale == 0 ? kNf4ZeroMaximum : MaximumCode((m - offset) * reciprocal);
  }
  block.scale = scale;
  block.offset = offset;
  block.unused[0] = block.unused[1] = 0;
}

}  // namespace

void QuantizeNf4(const float* x_n, int64_t n, Nf4Block& block) {
  float maxima[kNf4Groups];
  for (int g = 0; g < kNf4Groups; ++g) {
    uint8_t* bytes = block.codes + g * (kNf4Group / 2);
    const int64_t first = g * kNf4Group, left = n - first;
    if (left >= kNf4Group) {
      maxima[g] = QuantizeGroup(x_n + first, bytes);
      continue;
    }
    float padded[kNf4Group] = {};
    if (left > 0) std::memcpy(padded, x_n + first, static_cast<size_t>(left) * sizeof(float));
    maxima[g] = QuantizeGroup(padded, bytes);
  }
  QuantizeMaxima(maxima, block);
}

void DequantizeNf4(const Nf4Block& block, int64_t n, Dtype dtype, void* dst_n) {
  // As many elements as stay in the first-level cache; whole groups, also the last.
  alignas(64) float x[kBlock];
  ForEachBlock(0, n, [&](int64_t first, int64_t count) {
    const uint8_t* bytes = block.codes + first / 2;
    for (int64_t i = 0; i < kBlock / 2; ++i) {
      std::memcpy(x + 2 * i, &kValuePairs[bytes[i]], sizeof(kValuePairs[0]));
    }
    const uint8_t* maxima = block.maxima + first / kNf4Group;
    for (int64_t g = 0; g < kBlock / kNf4Group; ++g) {
      const float maximum = kNf4MaximumValues[maxima[g]] * block.scale + block.offset;
      float* group = x + g * kNf4Group;
      for (int i = 0; i < kNf4Group; i += kLanes) {
        simd::Store(group + i, simd::Load(group + i) * maximum);
      }
    }
    Narrow(dtype, x, count,
           static_cast<char*>(dst_n) + static_cast<uint64_t>(first) * DtypeBytes(dtype));
  });
}

bool HasNf4(const KernelCall& convert) {
  return Arg(convert, 0).dtype == Dtype::kNf4 || Arg(convert, 1).dtype == Dtype::kNf4;
}

void CheckNf4(const KernelCall& convert) {
  const KernelArg &src = Arg(convert, 0), &dst = Arg(convert, 1);
  const bool writes = dst.dtype == Dtype::kNf4;
  const Dtype other = writes ? src.dtype : dst.dtype;
  ZEROPLAN_CHECK(
      other == Dtype::kF32 || (!writes && (other == Dtype::kBF16 || other == Dtype::kF16)),
      "{} to {}", DtypeName(src.dtype), DtypeName(dst.dtype));
  ZEROPLAN_CHECK(!convert.has(kAccumulate), "{} added to {}", DtypeName(src.dtype),
                 DtypeName(dst.dtype));
  const KernelArg& blocks = writes ? dst : src;
  const auto n = static_cast<uint64_t>(convert.dims[0]);
  ZEROPLAN_CHECK(blocks.bytes >= StoredBytes(Dtype::kNf4, n), "{} elements of nf4 in {} bytes", n,
                 blocks.bytes);
  ZEROPLAN_CHECK(reinterpret_cast<uintptr_t>(blocks.data) % alignof(Nf4Block) == 0,
                 "nf4 blocks at {}", blocks.data);
}

namespace cpu {

void ConvertNf4(const KernelCall& call) {
  CheckNf4(call);
  const KernelArg &src_n = Arg(call, 0), &dst_n = Arg(call, 1);
  const int64_t n = call.dims[0];
  static_assert(kNf4Block >= kElementGrain);
  call.context.pool->ParallelFor(Nf4Blocks(n), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kNf4Block, count = std::min<int64_t>(n - first, kNf4Block);
      if (dst_n.dtype == Dtype::kNf4) {
        QuantizeNf4(src_n.as<const float>() + first, count, dst_n.as<Nf4Block>()[b]);
      } else {
        DequantizeNf4(src_n.as<const Nf4Block>()[b], count, dst_n.dtype, ElementAt(dst_n, first));
      }
    }
  });
}

}  // namespace cpu
}  // namespace zeroplan
