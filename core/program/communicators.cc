#include "core/program/communicators.h"

#include <array>

namespace zeroplan {

std::vector<CommunicatorKey> CommunicatorsOf(const Program& program) {
  std::array<std::array<bool, kStreams>, kAxes> needed{};
  for (const std::vector<Instruction>& section : program.sections) {
    for (const Instruction& instruction : section) {
      const auto* collective = std::get_if<Collective>(&instruction.op);
      if (collective == nullptr) continue;
      needed[static_cast<size_t>(collective->axis)][static_cast<size_t>(instruction.stream)] = true;
    }
  }
  std::vector<CommunicatorKey> keys;
  for (size_t axis = 0; axis < kAxes; ++axis) {
    for (size_t stream = 0; stream < kStreams; ++stream) {
      if (needed[axis][stream]) {
        keys.push_back({static_cast<RankAxis>(axis), static_cast<Stream>(stream)});
      }
    }
  }
  return keys;
}

}  // namespace zeroplan
