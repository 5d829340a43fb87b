// AdamW, fused with widening the gradient and writing the parameter in the compute dtype. Blocks
// are small enough that what one pass wrote is still in the first-level cache for the next.
#include <cmath>

#include "executor/kernels/adamw_update.h"
#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/kernel_util.h"
#include "executor/kernels/unit_segments.h"

namespace zeroplan::cpu {
namespace {

AdamConstants Constants(const OptimizerConfig& config, const StepState& state, bool decays) {
  const float weight_decay = decays ? static_cast<float>(config.weight_decay) : 0.0f;
  return {.lr = state.lr,
          .beta1 = static_cast<float>(config.betas[0]),
          .beta2 = static_cast<float>(config.betas[1]),
          .eps = static_cast<float>(config.eps),
          .rest1 = static_cast<float>(1 - config.betas[0]),
          .rest2 = static_cast<float>(1 - config.betas[1]),
          .grad_factor = state.grad_factor,
          .inverse_correction1 = 1.0f / state.bias_correction1,
          .inverse_sqrt_correction2 = 1.0f / std::sqrt(state.bias_correction2),
          .decay = config.adam_w_mode ? state.lr * weight_decay : 0.0f,
          .l2 = config.adam_w_mode ? 0.0f : weight_decay};
}

}  // namespace

void AdamW(const KernelCall& call) {
  const KernelArg &grad_n = Arg(call, 0), &param_n = Arg(call, 5);
  const StepState& state = *Arg(call, 1).as<const StepState>();
  auto *master_n = Arg(call, 2).as<float>(), *m_n = Arg(call, 3).as<float>();
  auto* v_n = Arg(call, 4).as<float>();
  const Program& program = *call.context.program;
  const Unit& unit = program.layout.units[static_cast<size_t>(call.dims[1])];
  const uint64_t first = FirstUnitElement(call, unit);
  const AdamConstants decayed = Constants(program.setup.optimizer, state, true);
  const AdamConstants plain = Constants(program.setup.optimizer, state, false);
  const AdamUpdateFn update = BestAdamUpdate();
  const bool skip = state.skip != 0;
  if (skip && !Present(param_n)) return;

  call.context.pool->ParallelFor(call.dims[0], kElementGrain, [&](int64_t b, int64_t e, int) {
    alignas(64) float grad_buffer[kBlock];
    const auto piece = [&](const TensorSlot* slot, uint64_t begin, uint64_t stop) {
      const bool decays =
          slot != nullptr && (*program.layout.tensors)[static_cast<size_t>(slot->tensor)].decay;
      const AdamConstants& constants = decays ? decayed : plain;
      ForEachBlock(static_cast<int64_t>(begin - first), static_cast<int64_t>(stop - first),
                   [&](int64_t i, int64_t count) {
                     if (!skip && slot != nullptr) {
                       const float* grad = ReadBlock(grad_n, i, count, grad_buffer);
                       update(constants, count, grad, master_n + i, m_n + i, v_n + i);
                     }
                     if (Present(param_n)) {
                       Narrow(param_n.dtype, master_n + i, count, ElementAt(param_n, i));
                     }
                   });
    };
    ForEachPiece(unit, first + static_cast<uint64_t>(b), first + static_cast<uint64_t>(e), piece);
  });
}

}  // namespace zeroplan::cpu
