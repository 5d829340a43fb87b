#include "planner/estimate/fp8_products.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/model/lora.h"
#include "core/settings/setup_facts.h"
#include "hwprofiles/sanity.h"

namespace zeroplan {

std::string_view Fp8AllowName(Fp8Recipe recipe) {
  return recipe == Fp8Recipe::kTensor ? "fp8" : "fp8-blocks";
}

std::string AllowText(const std::vector<ProductsKind>& products, LightStates light) {
  std::string text;
  for (const Fp8Recipe recipe : kFp8Recipes) {
    const auto has = [recipe](const ProductsKind& kind) {
      return kind.fp8 && kind.recipe == recipe;
    };
    // Where all are of eight bits they were said, not allowed.
    if (products.front().fp8 || std::none_of(products.begin(), products.end(), has)) continue;
    text += fmt::format("{},", Fp8AllowName(recipe));
  }
  return text + std::string(LightStatesName(light));
}

std::vector<ParamRow> ProductRows(const ModelSpec& model) {
  std::vector<ParamRow> rows = RowsOf(model).layer;
  std::erase_if(
      rows, [](const ParamRow& row) { return row.use != ParamUse::kProduct || IsAdapter(row); });
  return rows;
}

std::vector<ProductsKind> Fp8Kinds(const ModelSpec& model, Fp8Recipe recipe) {
  if (model.experts > 0) return {};
  constexpr size_t kMost = 3;
  const Fp8Config fp8 = {.enabled = true, .recipe = recipe};
  std::set<int64_t> sides;
  for (const ParamRow& row : ProductRows(model)) {
    const auto [a, b] = row.shape;
    if (!row.quantized && IsFp8Product(fp8, Fp8Multiple(recipe), a, b))
      sides.insert(std::min(a, b));
  }
  if (sides.empty()) return {};
  std::vector<ProductsKind> kinds = {{true, recipe, 0}};
  for (auto side = std::next(sides.begin()); side != sides.end() && kinds.size() <= kMost; ++side) {
    kinds.push_back({true, recipe, *side});
  }
  return kinds;
}

std::string Fp8ProfileLacks(const GpuProfile& gpu, Fp8Recipe recipe) {
  const int capability = ComputeCapability(gpu.architecture);
  const Fp8Config fp8 = {.enabled = true, .recipe = recipe};
  if (capability > 0) {
    if (std::string lacks = Fp8GpuLacks(fp8, capability); !lacks.empty()) return lacks;
  }
  return gpu.dense_peaks.contains(Dtype::kE4M3) ? "" : "its profile has no peak of FP8 products";
}

bool HasFp8Tokens(const TrainSetup& setup) {
  const BatchSpec& batch = setup.batch;
  return batch.micro_batch * batch.local_seq() % Fp8Multiple(setup.precision.fp8.recipe) == 0;
}

std::optional<ProductsAccuracy> MeasuredAccuracy(const Fp8Config& fp8, Dtype dtype) {
  // All linears in FP8, against bf16 of the same seed (docs/fp8.md).
  constexpr std::string_view kTrained =
      "GPT-2 124M, 64M tokens of text, one seed; seeds of bf16 lie 2.8 % apart";
  static const std::vector<ProductsAccuracy> measured = {
      {Fp8Recipe::kTensor, Dtype::kE4M3, true, 1.27, kTrained},
      {Fp8Recipe::kTensor, Dtype::kE4M3, false, 1.68, kTrained},
      {Fp8Recipe::kTensor, Dtype::kE5M2, false, 1.56, kTrained},
      {Fp8Recipe::kBlocks, Dtype::kE4M3, false, 1.03, kTrained},
  };
  if (dtype != Dtype::kBF16 || !fp8.enabled || fp8.least_side > 0) return std::nullopt;
  // Products with scales of blocks never have fast sums.
  const bool fast = fp8.fast_gradients && fp8.recipe == Fp8Recipe::kTensor;
  const auto found =
      std::find_if(measured.begin(), measured.end(), [&](const ProductsAccuracy& row) {
        return row.recipe == fp8.recipe && row.gradients == fp8.gradients &&
               row.fast_gradients == fast;
      });
  return found == measured.end() ? std::nullopt : std::optional(*found);
}

std::string AccuracyText(const Fp8Config& fp8, Dtype dtype) {
  if (const std::optional<ProductsAccuracy> measured = MeasuredAccuracy(fp8, dtype)) {
    return fmt::format("validation loss {:+.3g} % against products in {} ({})",
                       measured->loss_change_percent, DtypeName(dtype), measured->trained);
  }
  return "its cost in accuracy is not measured here";
}

}  // namespace zeroplan
