// FP8 matmuls (Fp8Config): their fields, the checks of model and GPU, and the notes about them.
#include "planner/estimate/fp8_products.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/model/lora.h"
#include "core/model/param_table.h"
#include "core/settings/setup_facts.h"
#include "hwprofiles/sanity.h"
#include "planner/request/resolve.h"

namespace zeroplan {
namespace {

// "mlp.down_proj" from "mlp.down_proj.weight"; for a matrix in parts the names of all parts.
std::string NameOfLinear(const ParamRow& row) {
  const auto module = [](const char* name) { return std::string(ModuleOf(name)); };
  if (row.parts.empty()) return module(row.name);
  std::vector<std::string> names;
  for (const ParamPart& part : row.parts) names.push_back(module(part.name));
  return fmt::format("{}", fmt::join(names, "/"));
}

bool HasFp8Sides(const Fp8Config& fp8, const ParamRow& row) {
  return IsFp8Product(fp8, Fp8Multiple(fp8.recipe), row.shape[0], row.shape[1]);
}

int64_t TokensOf(const BatchSpec& batch) { return batch.micro_batch * batch.seq_len; }

}  // namespace

void SetFp8(const AskedSettings& fields, PrecisionConfig& precision) {
  CheckMatmulName(fields, precision.dtype);
  Fp8Config& fp8 = precision.fp8;
  fp8.enabled = fields.asks_fp8();
  fp8.recipe = fields.fp8_recipe.value_or(fp8.recipe);
  fp8.gradients = fields.fp8_gradients.value_or(fp8.gradients);
  const auto without = [&](const char* option, const auto& given) {
    if (fp8.enabled || !given) return;
    ThrowUsage("{}: {} has no effect without ⟦matmul_dtype⟧ fp8; add that, or leave it out", option,
               given.text);
  };
  without("⟦fp8_recipe⟧", fields.fp8_recipe);
  without("⟦fp8_gradients⟧", fields.fp8_gradients);
}

void CheckMatmulName(const AskedSettings& fields, Dtype dtype) {
  const Given<Dtype>& asked = fields.matmul_dtype;
  if (!asked || *asked == Dtype::kE4M3 || *asked == dtype) return;
  ThrowUsage("⟦matmul_dtype⟧: {} is not allowed in {}; use fp8 or {}", asked.text, DtypeName(dtype),
             DtypeName(dtype));
}

void CheckFp8(const Request& request, const PrecisionConfig& precision, const ModelSpec& model,
              const GpuProfile& gpu) {
  const Fp8Config& fp8 = precision.fp8;
  if (!fp8.enabled) return;
  const bool by_option = request.settings.matmul_dtype.has_value();
  const std::string where =
      by_option ? "⟦matmul_dtype⟧: fp8"
                : fmt::format("{}: _zeroplan.fp8.enabled: true", request.config.name());
  const std::string without =
      by_option ? fmt::format("use {}", DtypeName(precision.dtype)) : "use false";
  if (model.experts > 0) {
    ThrowUsage("{} is not allowed: {} is a mixture of experts, whose matmuls are in {}; {}", where,
               model.name, DtypeName(precision.dtype), without);
  }
  if (model.lora_quantized) {
    ThrowUsage(
        "{} is not allowed with ⟦method⟧ qlora, whose weights of 4 bits are multiplied in {}; {}, "
        "or ⟦method⟧ lora",
        where, DtypeName(precision.dtype), without);
  }
  const std::vector<ParamRow> linears = ProductRows(model);
  const int capability = ComputeCapability(gpu.architecture);
  const auto lacks = [&](const Fp8Config& with) {
    return capability == 0 ? "" : Fp8GpuLacks(with, capability);
  };
  const auto has_products = [&](const Fp8Config& with) {
    return std::any_of(linears.begin(), linears.end(),
                       [&](const ParamRow& row) { return HasFp8Sides(with, row); });
  };
  Fp8Config tensor = fp8;
  tensor.recipe = Fp8Recipe::kTensor;
  std::string fix = without;
  if (tensor != fp8 && lacks(tensor).empty() && has_products(tensor)) {
    fix += by_option ? ", or ⟦fp8_recipe⟧ tensor" : ", or recipe \"tensor\"";
  }
  if (const std::string why = lacks(fp8); !why.empty()) {
    ThrowUsage("{} is not allowed on {}: {}; {}", where, gpu.name, why, fix);
  }
  if (!has_products(fp8)) {
    ThrowUsage(
        "{} has no effect: no linear of {} has sides that are multiples of {}{}; {}", where,
        model.name, Fp8Multiple(fp8.recipe),
        fp8.least_side > 0 ? fmt::format(" and at least {} (least_side)", fp8.least_side) : "",
        fix);
  }
}

std::string Fp8Text(const ModelSpec& model, const TrainSetup& setup) {
  const Fp8Config& fp8 = setup.precision.fp8;
  if (!fp8.enabled) return "";
  const std::string_view dtype = DtypeName(setup.precision.dtype);
  const int64_t multiple = Fp8Multiple(fp8.recipe);
  if (!HasFp8Tokens(setup)) {
    return fmt::format(
        "Products: all in {}, none in FP8: the {} tokens of a micro-step are no multiple of {}; "
        "another ⟦micro_batch⟧ or ⟦seq_len⟧ changes that.",
        dtype, TokensOf(setup.batch), multiple);
  }
  std::vector<std::string> uneven, small;
  for (const ParamRow& row : ProductRows(model)) {
    if (HasFp8Sides(fp8, row)) continue;
    const bool fits = row.shape[0] % multiple == 0 && row.shape[1] % multiple == 0;
    (fits ? small : uneven).push_back(NameOfLinear(row));
  }
  std::string text = fmt::format(
      "Products: those of the layers' linears in FP8, forward, backward and in evaluation (a scale "
      "a {}, gradients {}); embedding, head, norms, attention{} and generation in {}",
      fp8.recipe == Fp8Recipe::kTensor ? "tensor" : "block", DtypeName(fp8.gradients),
      HasAdapters(model) ? ", adapters" : "", dtype);
  if (!uneven.empty()) {
    text += fmt::format("; in {} too, as a side is no multiple of {}: {}", dtype, multiple,
                        fmt::join(uneven, ", "));
  }
  if (!small.empty()) {
    text += fmt::format("; in {} too, as a side is below {} (least_side): {}", dtype,
                        fp8.least_side, fmt::join(small, ", "));
  }
  return text + ".";
}

void NoteFp8(const ModelSpec& model, const TrainSetup& setup, Assumptions& assumptions) {
  std::string text = Fp8Text(model, setup);
  if (text.empty()) return;
  if (HasFp8Tokens(setup)) {
    text += fmt::format(" FP8: {}.", AccuracyText(setup.precision.fp8, setup.precision.dtype));
  }
  assumptions.notes.push_back(std::move(text));
}

}  // namespace zeroplan
