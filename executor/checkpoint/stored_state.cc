#include "executor/checkpoint/stored_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "executor/kernels/cpu_levels.h"

namespace zeroplan {

std::string_view EntryKindName(size_t kind) {
  if (!IsScaleKind(kind)) return StateKindName(kStateKinds[kind]);
  return kind == ScaleKind(StateKind::kFirst) ? "adam_m_scale" : "adam_v_scale";
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
  const AdamLoops& loops = *BestCpuKernels().adam;
  for (float& scale : scales) {
    if (const size_t count = values.size(); count < kDynamic8Group) {
      std::array<float, kDynamic8Group> padded{};
      std::array<uint8_t, kDynamic8Group> made;
      std::copy(values.begin(), values.end(), padded.begin());
      loops.encode(dtype, padded.data(), made.data(), &scale);
      std::copy_n(made.begin(), count, codes.begin());
      return;
    }
    loops.encode(dtype, values.data(), codes.data(), &scale);
    values = values.subspan(kDynamic8Group);
    codes = codes.subspan(kDynamic8Group);
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
