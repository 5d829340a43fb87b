// The tensors of published weights, and where each lies in a model's parameters.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/model/param_table.h"

namespace zeroplan {

struct HfTensor {
  std::string name;
  std::vector<uint64_t> shape;  // unpadded; vectors have one dimension
  size_t param = 0;             // index into the table
  uint64_t begin = 0;           // elements [begin, begin + elements) of the parameter
  uint64_t elements = 0;
};

// In the order of the table, each parameter's from its first row down.
std::vector<HfTensor> HfTensors(std::span<const ParamTensor> table);

}  // namespace zeroplan
