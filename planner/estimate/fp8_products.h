// Products of eight bits: which of them a request lets a search take, and what is known of their
// cost in accuracy.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/zero_config.h"
#include "core/model/model_spec.h"
#include "core/model/param_table.h"
#include "hwprofiles/profile.h"
#include "planner/estimate/choices.h"
#include "planner/estimate/light_states.h"

namespace zeroplan {

// What ⟦allow⟧ calls such products: "fp8", "fp8-blocks".
std::string_view Fp8AllowName(Fp8Recipe recipe);
inline constexpr Fp8Recipe kFp8Recipes[] = {Fp8Recipe::kTensor, Fp8Recipe::kBlocks};
// What ⟦allow⟧ takes for `light` too, where it already allows these products: "fp8,8bit-states".
std::string AllowText(const std::vector<ProductsKind>& products, LightStates light);

// The matrices of a layer that tokens are multiplied with; adapters, whose products are never of
// eight bits, apart.
std::vector<ParamRow> ProductRows(const ModelSpec& model);

// Such products of all linears whose sides go with them, and of those alone whose smaller side is
// at least each of the other smaller sides that the model has, three at most. Empty: no linear has
// such sides.
std::vector<ProductsKind> Fp8Kinds(const ModelSpec& model, Fp8Recipe recipe);

// Why a search does not take them on such a GPU: "products in FP8 start at compute capability 8.9,
// and it has 8.0"; "" where it may.
std::string Fp8ProfileLacks(const GpuProfile& gpu, Fp8Recipe recipe);

// Whether the tokens of a micro-step go with such products; where not, none is of eight bits.
bool HasFp8Tokens(const TrainSetup& setup);

// What they cost in accuracy, as measured: the one place for such figures.
struct ProductsAccuracy {
  Fp8Recipe recipe;
  Dtype gradients;
  bool fast_gradients;
  double loss_change_percent = 0;  // of the validation loss, against products of 16 bits
  std::string_view trained;        // the model, its tokens, how far seeds lie apart
};
// Of a run in `dtype`. Nothing: it was not measured.
std::optional<ProductsAccuracy> MeasuredAccuracy(const Fp8Config& fp8, Dtype dtype);
// "its cost in accuracy is not measured here".
std::string AccuracyText(const Fp8Config& fp8, Dtype dtype);

}  // namespace zeroplan
