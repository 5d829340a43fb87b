// Fresh weights. A value depends on (seed, tensor, index in the tensor) alone, so every sharding of
// a model starts from the same weights.
#include "executor/kernels/param_init.h"

#include <cmath>
#include <numbers>

#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/kernel_util.h"
#include "executor/kernels/philox.h"
#include "executor/kernels/unit_segments.h"

namespace zeroplan::cpu {
namespace {

// Box-Muller on each pair of the four words of a group.
std::array<float, 4> Normals(uint64_t seed, int tensor, uint64_t group) {
  const PhiloxBlock words = TensorRandom(seed, static_cast<uint32_t>(tensor), group);
  std::array<float, 4> normals;
  for (size_t pair = 0; pair < 4; pair += 2) {
    const float radius = std::sqrt(-2.0f * std::log(OpenUniform(words[pair])));
    const float angle = 2.0f * std::numbers::pi_v<float> * OpenUniform(words[pair + 1]);
    normals[pair] = radius * std::cos(angle);
    normals[pair + 1] = radius * std::sin(angle);
  }
  return normals;
}

}  // namespace

void InitTensor(const ParamTensor& spec, int tensor, uint64_t seed, uint64_t begin, uint64_t end,
                float* dst) {
  const uint64_t real = static_cast<uint64_t>(spec.unpadded_rows * spec.shape[1]);
  const uint64_t stop = std::clamp(real, begin, end);  // beyond: rows that pad the vocabulary
  std::fill(dst + (stop - begin), dst + (end - begin), 0.0f);
  switch (spec.init) {
    case InitKind::kZeros:
      std::fill(dst, dst + (stop - begin), 0.0f);
      return;
    case InitKind::kOnes:
      std::fill(dst, dst + (stop - begin), 1.0f);
      return;
    case InitKind::kUniform:
      for (uint64_t i = begin; i < stop; ++i) {
        const uint32_t word = TensorRandom(seed, static_cast<uint32_t>(tensor), i / 4)[i % 4];
        dst[i - begin] = (2 * OpenUniform(word) - 1) * spec.init_std;
      }
      return;
    case InitKind::kNormal:
      for (uint64_t i = begin; i < stop;) {
        const std::array<float, 4> normals = Normals(seed, tensor, i / 4);
        const uint64_t group_end = std::min(stop, (i / 4 + 1) * 4);
        for (; i < group_end; ++i) dst[i - begin] = normals[i % 4] * spec.init_std;
      }
      return;
  }
}

void ParamInit(const KernelCall& call) {
  const ParamLayout& layout = call.context.program->layout;
  const Unit& unit = layout.units[static_cast<size_t>(call.dims[1])];
  const uint64_t first = FirstUnitElement(call, unit);
  auto* master_n = Arg(call, 0).as<float>();
  if (!call.context.fresh_weights) {
    std::fill(master_n, master_n + call.dims[0], 0.0f);
    return;
  }
  call.context.pool->ParallelFor(call.dims[0], kElementGrain, [&](int64_t b, int64_t e, int) {
    const uint64_t end = first + static_cast<uint64_t>(e);
    ForEachPiece(unit, first + static_cast<uint64_t>(b), end,
                 [&](const TensorSlot* slot, uint64_t begin, uint64_t stop) {
                   float* dst = master_n + (begin - first);
                   if (slot == nullptr) {
                     std::fill(dst, dst + (stop - begin), 0.0f);
                     return;
                   }
                   InitTensor((*layout.tensors)[static_cast<size_t>(slot->tensor)], slot->tensor,
                              call.context.seed, begin - slot->offset, stop - slot->offset, dst);
                 });
  });
}

}  // namespace zeroplan::cpu
