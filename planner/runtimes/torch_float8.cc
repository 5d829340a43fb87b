#include "planner/runtimes/torch_float8.h"

#include <array>

#include "core/base/error.h"
#include "core/settings/zero_config.h"

namespace zeroplan {
namespace {

// In the order of kFloat8Products. Counted: torchao 0.18's linears in a Llama layer go through
// AOTAutograd's partitioner, with parameters as static inputs, and inductor's scheduler of PyTorch
// 2.15, whose fused kernels say what they read and write; the same layer with 16-bit linears is
// taken off (docs/runtimes.md, "FP8 by torchao").
constexpr std::array kFloat8Products = {TorchOp::kQkv, TorchOp::kKey,  TorchOp::kOutProj,
                                        TorchOp::kUp,  TorchOp::kGate, TorchOp::kDown};

// Queries, keys and values have a copy of their input each; gate and up have one. Backward makes
// norms and SwiGLU again to cast what they make, in both layouts where it is a gradient.
constexpr std::array<Float8Moves, kFloat8Products.size()> kTensorwise = {{{"3e", "2e", 2, 4},
                                                                          {"", "3k", 0, 2},
                                                                          {"5q", "4e 5q", 3, 5},
                                                                          {"3e", "8e", 2, 2},
                                                                          {"", "", 0, 0},
                                                                          {"3f", "6e 7f", 2, 9}}};

// A reduction and a cast are one kernel forward. Products of gradients, which do not sum fast, are
// of one scale: each is multiplied with its rows' and columns' scales behind it.
constexpr std::array<Float8Moves, kFloat8Products.size()> kRowwise = {{{"1e", "6e 6q", 0, 6},
                                                                       {"", "4k", 0, 4},
                                                                       {"3q", "6e 5q", 1, 8},
                                                                       {"", "10e", 0, 8},
                                                                       {"", "", 0, 5},
                                                                       {"", "6e 27f", 0, 15}}};

}  // namespace

Float8Moves Float8InputMoves(TorchFloat8 recipe, TorchOp op) {
  for (size_t i = 0; i < kFloat8Products.size(); ++i) {
    if (kFloat8Products[i] == op)
      return (recipe == TorchFloat8::kRowwise ? kRowwise : kTensorwise)[i];
  }
  return {};
}

// Backward casts weights again: partitioners take parameters to be kept for nothing. Those in fp32
// have gradients whose cast is a kernel of its own, with a copy.
Float8Moves Float8WeightMoves(TorchFloat8 recipe, Float8Weights weights) {
  const bool rows = recipe == TorchFloat8::kRowwise;
  switch (weights) {
    case Float8Weights::k16Bit:
      return rows ? Float8Moves{"3w", "9w", 1, 1} : Float8Moves{"5w", "3w", 3, 1};
    case Float8Weights::kFp32:
      return rows ? Float8Moves{"5w", "13w", 1, 1} : Float8Moves{"9w", "9w", 3, 1};
    case Float8Weights::kGathered:
      return {"", "2w", 0, 1};  // laid out anew
  }
  ZEROPLAN_CHECK(false);
}

bool IsFloat8(const TorchModel& model, const TorchRun& run, int module) {
  const TorchModule& of = model.modules[static_cast<size_t>(module)];
  if (!of.product || module < model.first_layer_module || module >= model.final_norm())
    return false;
  const TorchParam& weight = model.params[static_cast<size_t>(of.params.front())];
  const auto inputs = static_cast<int64_t>(weight.columns);
  return run.TakesFloat8(inputs, static_cast<int64_t>(weight.elements) / inputs);
}

// Forward the input and the weight; backward these again, and the gradient in two layouts.
int64_t TorchStep::Float8CastBytes(int module, bool backward) const {
  if (!IsFloat8(model_, run_, module)) return 0;
  const std::vector<int>& params = model_.modules[static_cast<size_t>(module)].params;
  const TorchParam& weight = model_.params[static_cast<size_t>(params.front())];
  const auto elements = static_cast<int64_t>(weight.elements);
  const auto inputs = static_cast<int64_t>(weight.columns);
  const int64_t outputs = backward ? elements / inputs : 0;
  const int64_t weight_bytes = run_.float8_gathers && !backward ? 0 : elements;
  return weight_bytes + tokens_ * (inputs + 2 * outputs);
}

void TorchKernels::AddFloat8(TorchOp op, int64_t k, int64_t n) {
  const bool from_hidden = op != TorchOp::kOutProj && op != TorchOp::kDown;
  TorchElements elements = ElementsOf(run_.micro_batch, run_.seq_len, heads_, q_columns_,
                                      kv_columns_, tokens_ * (from_hidden ? k : n));
  elements.f = tokens_ * (from_hidden ? n : k);
  elements.w = k * n;
  const Float8Weights weights = run_.float8_gathers ? Float8Weights::kGathered
                                : run_.fp32_params  ? Float8Weights::kFp32
                                                    : Float8Weights::k16Bit;
  for (const Float8Moves& moves :
       {Float8InputMoves(*run_.float8, op), Float8WeightMoves(*run_.float8, weights)}) {
    AddMemory(op, MovedBytes(moves.forward, elements), moves.forward_launches,
              MovedBytes(moves.backward, elements), moves.backward_launches, /*compiled=*/true);
  }
}

std::optional<TorchFloat8> Float8Of(const PrecisionConfig& precision, const TorchRecipe& recipe) {
  if (!precision.fp8.enabled) return std::nullopt;
  return recipe.float8.value_or(TorchFloat8::kTensorwise);
}

}  // namespace zeroplan
