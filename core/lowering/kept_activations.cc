#include "core/lowering/kept_activations.h"

namespace zeroplan {

std::vector<KeptActivation> KeptActivations(const Program& program) {
  constexpr uint32_t kNowhere = UINT32_MAX;
  const std::vector<Instruction>& list = program.section(Section::kMicroStep);
  std::vector<KeptActivation> uses(program.buffers.size(), {0, kNowhere, kNowhere, kNowhere});
  for (uint32_t i = 0; i < list.size(); ++i) {
    if (std::holds_alternative<Alloc>(list[i].op) || std::holds_alternative<Free>(list[i].op)) {
      continue;
    }
    ForEachAccess(program, list[i], [&](const Ref& ref, ArgMode mode) {
      KeptActivation& of = uses[ref.buffer];
      if (list[i].phase == Phase::kForward) {
        of.last_forward = i;
        if (Writes(mode)) of.made = i;
      } else if (of.first_backward == kNowhere) {
        of.first_backward = i;
      }
    });
  }
  std::vector<KeptActivation> kept;
  for (BufferId id = 0; id < uses.size(); ++id) {
    const Buffer& buffer = program.buffers[id];
    KeptActivation& of = uses[id];
    of.buffer = id;
    const bool of_layer = buffer.role == Role::kActivation && buffer.space == Space::kDevice &&
                          !buffer.persistent && buffer.layer >= 0 &&
                          buffer.layer < program.model.layers;
    if (of_layer && of.made != kNowhere && of.first_backward != kNowhere) kept.push_back(of);
  }
  return kept;
}

}  // namespace zeroplan
