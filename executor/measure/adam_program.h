// A program with all that AdamW's row needs: one decayed tensor, one unit, one rank.
#pragma once

#include <memory>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

inline Program AdamProgram(int64_t n) {
  const auto elements = static_cast<uint64_t>(n);
  Program program;
  program.setup.optimizer.weight_decay = 0.1;
  program.layout.tensors = std::make_shared<std::vector<ParamTensor>>(std::vector<ParamTensor>{
      {{.name = "all", .shape = {n, 1}, .decay = true, .init_std = 0.02f, .unpadded_rows = n}}});
  program.layout.shards = 1;
  Unit unit{.layer = 0, .slots = {{0, 0, elements}}};
  unit.elements = unit.param_elements = unit.shard_elements = unit.padded_elements = elements;
  program.layout.units.push_back(unit);
  return program;
}

}  // namespace zeroplan
