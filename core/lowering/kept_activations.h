// What is kept of a forward pass for the backward pass.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

// A tensor of a layer that the forward pass makes and the backward pass reads, and the instructions
// of micro_step between which it lies idle.
struct KeptActivation {
  BufferId buffer = kNoBuffer;
  uint32_t made = 0;  // its last write
  uint32_t last_forward = 0, first_backward = 0;
};

// In the order of buffers, which is that in which a layer makes them.
std::vector<KeptActivation> KeptActivations(const Program& program);

}  // namespace zeroplan
