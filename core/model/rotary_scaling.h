// Methods that extend rotary positions beyond the context that a model was first trained at. Plain
// C++, because CUDA sources include this.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace zeroplan {

// In texts by its name in a config.json ("rope_type").
enum class RotaryScaling : int { kNone = 0, kLinear = 1, kLlama3 = 2, kYarn = 3 };

constexpr std::string_view RotaryScalingName(RotaryScaling scaling) {
  constexpr std::string_view kNames[] = {"default", "linear", "llama3", "yarn"};
  return kNames[static_cast<int>(scaling)];
}

inline std::optional<RotaryScaling> RotaryScalingNamed(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(RotaryScaling::kYarn); ++i) {
    const auto scaling = static_cast<RotaryScaling>(i);
    if (RotaryScalingName(scaling) == name) return scaling;
  }
  return std::nullopt;
}

}  // namespace zeroplan
