#include "core/program/communicators.h"

#include <algorithm>

namespace zeroplan {

bool RunsCollectives(const Program& program, Stream stream) {
  const auto runs = [stream](const Instruction& instruction) {
    return instruction.stream == stream && std::holds_alternative<Collective>(instruction.op);
  };
  return std::any_of(program.sections.begin(), program.sections.end(),
                     [&](const auto& list) { return std::any_of(list.begin(), list.end(), runs); });
}

int CommunicatorCount(const Program& program) {
  return static_cast<int>(RunsCollectives(program, Stream::kGather)) +
         static_cast<int>(RunsCollectives(program, Stream::kReduce));
}

}  // namespace zeroplan
