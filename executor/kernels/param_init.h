// Fresh weights of one tensor.
#pragma once

#include <cstdint>

#include "core/model/param_table.h"

namespace zeroplan::cpu {

// dst = elements [begin, end) of tensor number `tensor` of a model's table, as drawn by kParamInit.
void InitTensor(const ParamTensor& spec, int tensor, uint64_t seed, uint64_t begin, uint64_t end,
                float* dst);

}  // namespace zeroplan::cpu
