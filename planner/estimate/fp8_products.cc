#include "planner/estimate/fp8_products.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/config/setup_facts.h"
#include "core/model/lora.h"
#include "hwprofiles/sanity.h"

namespace zeroplan {

std::string_view Fp8AllowName(Fp8Recipe recipe) {
  return recipe == Fp8Recipe::kTensor ? "fp8" : "fp8-blocks";
}

std::vector<ParamRow> ProductRows(const ModelSpec& model) {
  std::vector<ParamRow> rows = RowsOf(model).layer;
  std::erase_if(
      rows, [](const ParamRow& row) { return row.use != ParamUse::kProduct || IsAdapter(row); });
  return rows;
}

std::vector<ProductsKind> Fp8Kinds(const ModelSpec& model, Fp8Recipe recipe) {
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

std::optional<ProductsAccuracy> MeasuredAccuracy(const ProductsKind& products, Dtype dtype) {
  // Against products of 16 bits with the same seed, in bf16 (docs/fp8.md): {recipe, percent, what
  // was trained}.
  static const std::vector<ProductsAccuracy> measured = {};
  if (dtype != Dtype::kBF16) return std::nullopt;
  const auto found = std::find_if(
      measured.begin(), measured.end(),
      [&](const ProductsAccuracy& row) { return products.fp8 && row.recipe == products.recipe; });
  return found == measured.end() ? std::nullopt : std::optional(*found);
}

std::string AccuracyText(const ProductsKind& products, Dtype dtype) {
  if (const std::optional<ProductsAccuracy> measured = MeasuredAccuracy(products, dtype)) {
    return fmt::format("validation loss {:+.2g} % against products in {} ({})",
                       measured->loss_change_percent, DtypeName(dtype), measured->trained);
  }
  return "its cost in accuracy is not measured here";
}

}  // namespace zeroplan
