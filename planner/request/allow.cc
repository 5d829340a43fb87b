// Applies ⟦allow⟧ to a search: it adds optimizer states and matmul dtypes that change a run's
// numbers.
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/settings/setup_facts.h"
#include "planner/estimate/fp8_products.h"
#include "planner/estimate/light_states.h"
#include "planner/request/resolved.h"

namespace zeroplan {

void ResolvedPlan::AllowStates(bool by_config) {
  const PrecisionConfig& precision = inputs_.base.precision;
  const StatesKind said = StatesOf(precision);
  const Given<Allowed>& allow = asked_.allow;
  const AskedSettings& given = request_.settings;
  const bool is_given = given.master_weights || given.optimizer_states || by_config;
  full_.states = {said};
  full_.states_fixed = is_given || (allow && !allow->states.empty());
  if (!allow) return;
  if (!inputs_.runtime->facts().searches_states) {
    const std::string instead =
        allow->states.empty()
            ? ""
            : fmt::format(", or say what ⟦runtime⟧ {} is to use{}", inputs_.runtime->key(),
                          inputs_.runtime->reads_deepspeed_config()
                              ? " (⟦master_weights⟧, ⟦optimizer_states⟧)"
                              : " (⟦param_dtype⟧, ⟦optim⟧)");
    ThrowUsage("⟦allow⟧: {} is searched for zeroplan's own executor alone; leave it out{}",
               allow.text, instead);
  }
  if (allow->states.empty()) return;
  if (is_given) {
    ThrowUsage(
        "⟦allow⟧: {} has no effect where states are said (⟦master_weights⟧, ⟦optimizer_states⟧ or "
        "the config); leave one of the two out",
        allow.text);
  }
  for (const LightStates light : allow->states) {
    if (HasLightStates(light, precision.dtype) || allow.text == "all") continue;
    ThrowUsage("⟦allow⟧: {} is not allowed in {}; use {}", LightStatesName(light),
               DtypeName(precision.dtype),
               precision.dtype == Dtype::kF32 ? "8bit-states, or ⟦dtype⟧ bf16"
                                              : "8bit-states, bf16-states, or ⟦dtype⟧ bf16");
  }
  full_.states = KindsOf(allow->states, precision.dtype);
}

std::string WhyNoFp8(const ModelSpec& model, Dtype dtype, const GpuProfile& gpu, Fp8Recipe recipe) {
  if (dtype == Dtype::kF32) return "is not allowed in fp32; use ⟦dtype⟧ bf16, or leave it out";
  if (model.lora_quantized) {
    return fmt::format(
        "is not allowed with ⟦method⟧ qlora, whose weights of 4 bits are multiplied in {}; leave "
        "it out, or use ⟦method⟧ lora",
        DtypeName(dtype));
  }
  if (const std::string lacks = Fp8ProfileLacks(gpu, recipe); !lacks.empty()) {
    return fmt::format("is not allowed on {}: {}; leave it out", gpu.name, lacks);
  }
  if (model.experts > 0) {
    return fmt::format(
        "is not allowed with {}, a mixture of experts, which is trained in {}; leave it out",
        model.name, DtypeName(dtype));
  }
  if (Fp8Kinds(model, recipe).empty()) {
    return fmt::format(
        "has no effect: no linear of {} has sides that are multiples of {}; leave it out",
        model.name, Fp8Multiple(recipe));
  }
  return "";
}

void ResolvedPlan::AllowProducts(bool by_config) {
  const PrecisionConfig& precision = inputs_.base.precision;
  const ModelSpec& model = inputs_.model;
  const Given<Allowed>& allow = asked_.allow;
  const bool is_given = request_.settings.matmul_dtype || by_config;
  std::vector<ProductsKind>& products = full_.products;
  products = {ProductsOf(precision)};
  full_.products_fixed = is_given;
  if (precision.fp8.enabled && !by_config && inputs_.runtime->facts().own_fp8) {
    if (auto kinds = Fp8Kinds(model, precision.fp8.recipe); !kinds.empty()) products = kinds;
  }
  if (!allow || allow->products.empty()) return;
  const bool all = allow.text == "all";
  full_.products_fixed = true;
  if (is_given) {
    if (all) return;
    ThrowUsage(
        "⟦allow⟧: {} has no effect where products are said (⟦matmul_dtype⟧ or the config); leave "
        "one of the two out",
        allow.text);
  }
  for (const Fp8Recipe recipe : allow->products) {
    const std::string why_not = WhyNoFp8(model, precision.dtype, hardware_.gpu, recipe);
    if (why_not.empty()) {
      for (const ProductsKind& kind : Fp8Kinds(model, recipe)) products.push_back(kind);
    } else if (!all) {
      ThrowUsage("⟦allow⟧: {} {}", Fp8AllowName(recipe), why_not);
    }
  }
}

}  // namespace zeroplan
