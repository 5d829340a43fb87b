#include "executor/checkpoint/stored_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/base/error.h"

namespace zeroplan {

std::string_view EntryKindName(size_t kind) {
  if (!IsScaleKind(kind)) return StateKindName(kStateKinds[kind]);
  return kind == ScaleKind(StateKind::kAdamM) ? "adam_m_scale" : "adam_v_scale";
}

std::string ShardEntryName(std::string_view tensor, size_t kind, uint64_t begin) {
  return fmt::format("{}|{}|{}", tensor, EntryKindName(kind), begin);
}

Dtype StoredDtype(const ParamLayout& layout, const ParamTensor& tensor, StateKind state) {
  return tensor.trainable ? layout.states[static_cast<size_t>(state)] : Dtype::kF32;
}

void EncodeDynamic8(Dtype dtype, std::span<const float> values, std::span<uint8_t> codes,
                    std::span<float> scales) {
  ZEROPLAN_CHECK(codes.size() == values.size() && scales.size() == ScaleCount(values.size()));
  const Dynamic8Map& map = Dynamic8MapOf(dtype);
  const bool has_sign = dtype == Dtype::kDynamic8;
  for (size_t g = 0; g < scales.size(); ++g) {
    const size_t begin = g * kDynamic8Group;
    const auto group =
        values.subspan(begin, std::min<size_t>(kDynamic8Group, values.size() - begin));
    uint32_t positive = 0, negative = 0;  // bits of the largest magnitudes
    for (const float x : group) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(x) & 0x7fffffffu;
      uint32_t& largest = has_sign && std::signbit(x) ? negative : positive;
      largest = std::max(largest, magnitude);
    }
    const auto scale = std::bit_cast<float>(Dynamic8ScaleBits(positive, negative));
    const float inverse = InverseDynamic8Scale(scale);
    for (size_t i = 0; i < group.size(); ++i) {
      codes[begin + i] = Dynamic8Code(map, group[i] * inverse);
    }
    scales[g] = scale;
  }
}

void DecodeDynamic8(Dtype dtype, std::span<const uint8_t> codes, uint64_t begin,
                    std::span<const float> scales, std::span<float> out) {
  ZEROPLAN_CHECK(out.size() == codes.size() && ScaleCount(begin + codes.size()) <= scales.size());
  const Dynamic8Map& map = Dynamic8MapOf(dtype);
  for (size_t i = 0; i < codes.size(); ++i) {
    out[i] = map.value[codes[i]] * scales[(begin + i) / kDynamic8Group];
  }
}

}  // namespace zeroplan
