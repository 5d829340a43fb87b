// Fresh weights of one tensor.
#pragma once

#include <cstdint>

#include "core/model/param_table.h"

namespace zeroplan {

// Elements [begin, end) of the table's tensor `index` as kParamInit draws them, in fp32.
void InitialValues(const ParamTensor& tensor, int index, uint64_t seed, uint64_t begin,
                   uint64_t end, float* values);

}  // namespace zeroplan
