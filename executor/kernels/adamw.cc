// AdamW in one pass over memory, whatever the states are kept as, which also widens the gradient
// and writes the parameter.
#include <algorithm>
#include <cmath>

#include "executor/kernels/adamw_update.h"
#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/dynamic8.h"
#include "executor/kernels/kernel_util.h"
#include "executor/kernels/stochastic_rounding.h"
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

bool IsFloatState(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kBF16 || dtype == Dtype::kF16;
}

void CheckAdamW(const KernelCall& call) {
  const KernelArg &master = Arg(call, 2), &m = Arg(call, 3), &v = Arg(call, 4);
  const KernelArg& param = Arg(call, 5);
  ZEROPLAN_CHECK(IsFloatState(Arg(call, 0).dtype), "a gradient in {}",
                 DtypeName(Arg(call, 0).dtype));
  if (master.dtype == Dtype::kI16) {
    ZEROPLAN_CHECK(Present(param) && param.dtype == Dtype::kBF16 && call.has(kAccumulate),
                   "half a master weight without the parameter");
  } else {
    ZEROPLAN_CHECK(IsFloatState(master.dtype), "master weights in {}", DtypeName(master.dtype));
    ZEROPLAN_CHECK(!Present(param) || master.dtype == Dtype::kF32 || param.dtype == master.dtype,
                   "master weights in {}, parameters in {}", DtypeName(master.dtype),
                   DtypeName(param.dtype));
  }
  if (m.dtype == Dtype::kDynamic8) {
    ZEROPLAN_CHECK(v.dtype == Dtype::kUnsignedDynamic8, "moments in {} and {}", DtypeName(m.dtype),
                   DtypeName(v.dtype));
    CheckWholeDynamic8(m, call.dims[0]);
    CheckWholeDynamic8(v, call.dims[0]);
  } else {
    ZEROPLAN_CHECK(m.dtype == v.dtype && (m.dtype == Dtype::kF32 || m.dtype == Dtype::kBF16),
                   "moments in {} and {}", DtypeName(m.dtype), DtypeName(v.dtype));
  }
}

}  // namespace

void AdamW(const KernelCall& call) {
  const KernelArg &grad_n = Arg(call, 0), &master_n = Arg(call, 2), &m_n = Arg(call, 3);
  const KernelArg &v_n = Arg(call, 4), &param_n = Arg(call, 5);
  const StepState& state = *Arg(call, 1).as<const StepState>();
  const Program& program = *call.context.program;
  const Unit& unit = program.layout.units[static_cast<size_t>(call.dims[1])];
  const uint64_t first = FirstUnitElement(call, unit);
  const AdamConstants decayed = Constants(program.setup.optimizer, state, true);
  const AdamConstants plain = Constants(program.setup.optimizer, state, false);
  CheckAdamW(call);
  const AdamArrays arrays{.grad_dtype = grad_n.dtype,
                          .master_dtype = master_n.dtype,
                          .param_dtype = param_n.dtype,
                          .grad = grad_n.data,
                          .master = master_n.data,
                          .m = m_n.data,
                          .v = v_n.data,
                          .param = param_n.data};
  const AdamUpdateFn update = kAdamLoops.UpdateOf(m_n.dtype);
  const bool split = master_n.dtype == Dtype::kI16;
  const bool writes_param = Present(param_n) && !split;
  const bool skip = state.skip != 0;
  if (skip && !writes_param) return;

  // Threads share no block of moments.
  const auto together = static_cast<int64_t>(DtypeElements(m_n.dtype));
  const int64_t n = call.dims[0], pieces = (n + together - 1) / together;
  call.context.pool->ParallelFor(pieces, kElementGrain / together, [&](int64_t b, int64_t e, int) {
    const auto piece = [&](const TensorSlot* slot, uint64_t begin, uint64_t stop) {
      AdamRange range{static_cast<int64_t>(begin - first), static_cast<int64_t>(stop - begin)};
      if (skip || slot == nullptr) {
        if (writes_param) kAdamLoops.write_param(arrays, range.first, range.n);
        return;
      }
      range.element = static_cast<uint32_t>(begin - slot->offset);
      range.key = RoundingKey(call.context.seed, static_cast<uint32_t>(slot->tensor), state.step);
      const bool decays = (*program.layout.tensors)[static_cast<size_t>(slot->tensor)].decay;
      update(decays ? decayed : plain, arrays, range);
    };
    ForEachPiece(unit, first + static_cast<uint64_t>(b * together),
                 first + static_cast<uint64_t>(std::min(e * together, n)), piece);
  });
}

}  // namespace zeroplan::cpu
