// The activations of a forward pass that the backward pass reads.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

// A layer's tensor that the forward pass makes and the backward pass reads, and the instructions of
// micro_step between which nothing uses it.
struct KeptActivation {
  BufferId buffer = kNoBuffer;
  uint32_t made = 0;  // its last write
  uint32_t last_forward = 0, first_backward = 0;
};

// In order of buffers: the order in which a layer makes them.
std::vector<KeptActivation> KeptActivations(const Program& program);

}  // namespace zeroplan
