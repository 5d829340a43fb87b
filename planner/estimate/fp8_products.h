// FP8 matmuls: the kinds that a request allows a search to use, and their measured cost in
// accuracy.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model_spec.h"
#include "core/model/param_table.h"
#include "core/settings/zero_config.h"
#include "hwprofiles/profile.h"
#include "planner/estimate/choices.h"
#include "planner/estimate/light_states.h"

namespace zeroplan {

// The value of ⟦allow⟧ for such matmuls: "fp8", "fp8-blocks".
std::string_view Fp8AllowName(Fp8Recipe recipe);
inline constexpr Fp8Recipe kFp8Recipes[] = {Fp8Recipe::kTensor, Fp8Recipe::kBlocks};
// The value of ⟦allow⟧ that allows `light` in addition to these matmuls: "fp8,8bit-states".
std::string AllowText(const std::vector<ProductsKind>& products, LightStates light);

// The matrices of a layer that multiply tokens, without adapters, whose matmuls are never in FP8.
std::vector<ParamRow> ProductRows(const ModelSpec& model);

// The kinds of FP8 matmuls of a model: all linears whose sides FP8 supports; and only those whose
// smaller side is at least s, for each other smaller side s in the model, three at most. Empty: FP8
// supports no linear.
std::vector<ProductsKind> Fp8Kinds(const ModelSpec& model, Fp8Recipe recipe);

// The reason why a search does not use them on such a GPU: "products in FP8 start at compute
// capability 8.9, and it has 8.0"; "" if it may.
std::string Fp8ProfileLacks(const GpuProfile& gpu, Fp8Recipe recipe);

// Whether FP8 matmuls support the number of tokens of a micro-step; if not, none is in FP8.
bool HasFp8Tokens(const TrainSetup& setup);

// Their measured cost in accuracy: the one place for such figures.
struct ProductsAccuracy {
  Fp8Recipe recipe;
  Dtype gradients;
  bool fast_gradients;
  double loss_change_percent = 0;  // change of the validation loss, against 16-bit matmuls
  std::string_view trained;        // the model, its tokens, the spread over seeds
};
// The figures of a run in `dtype`. Nothing: not measured.
std::optional<ProductsAccuracy> MeasuredAccuracy(const Fp8Config& fp8, Dtype dtype);
// "its cost in accuracy is not measured here".
std::string AccuracyText(const Fp8Config& fp8, Dtype dtype);

}  // namespace zeroplan
