#include "planner/runtime.h"

#include <fmt/format.h>

#include "core/settings/settings.h"
#include "planner/estimate/choices.h"
#include "planner/estimate/estimate.h"
#include "planner/runtimes/runtimes.h"
#include "planner/runtimes/torch_model.h"
#include "planner/search/search.h"

namespace zeroplan {

std::span<const Runtime* const> Runtimes() {
  // A further runtime is a line here.
  static const std::array kRuntimes = {&OwnExecutor(), &DeepSpeedRuntime(), &Fsdp2Runtime(),
                                       &DdpRuntime()};
  return kRuntimes;
}

const Runtime* FindRuntime(std::string_view key) {
  for (const Runtime* runtime : Runtimes()) {
    if (runtime->key() == key) return runtime;
  }
  return nullptr;
}

std::string_view CompileName(TorchCompile compile) {
  return !compile.layers ? "" : compile.loss ? "all" : "layers";
}

std::string_view CompiledText(TorchCompile compile) {
  if (!compile.layers) return "not compiled";
  return compile.loss ? "layers and loss compiled" : "layers compiled";
}

Dtype HeldByDdp(const TorchRecipe& recipe, Dtype computes, bool adapters) {
  const bool peft = adapters && recipe.code != CodeStyle::kTorchtune;
  const bool as_published = recipe.code == CodeStyle::kHf || recipe.code == CodeStyle::kLiger ||
                            recipe.code == CodeStyle::kTorchtune;
  const bool fp32 = peft || !as_published || computes == Dtype::kF16;
  return recipe.param_dtype.value_or(fp32 ? Dtype::kF32 : Dtype::kBF16);
}

Dtype QuantStorageOf(const TorchRecipe& recipe, bool fully_shards, Dtype computes) {
  return recipe.quant_storage.value_or(fully_shards ? computes : Dtype::kU8);
}

std::string_view TorchDtypeName(Dtype dtype) {
  if (dtype == Dtype::kU8) return "uint8";
  return dtype == Dtype::kBF16 ? "bfloat16" : dtype == Dtype::kF16 ? "float16" : "float32";
}

bool HasCodeOf(CodeStyle code, const ModelSpec& model) {
  const PlannedCode* planned = model.family->planned();
  if (planned != nullptr && code != CodeStyle::kHf) {
    if (code != CodeStyle::kLiger || planned->experts > 0) return false;
  }
  const bool for_some = code == CodeStyle::kLiger || code == CodeStyle::kTorchtune;
  return !for_some || !TorchModel(model).code.mean_norms;
}

std::string RecipeText(const TorchRecipe& recipe) {
  constexpr std::array<std::string_view, 6> kCodes = {"",
                                                      "transformers' code, ",
                                                      "transformers' code with Liger's kernels, ",
                                                      "Composer's code, ",
                                                      "torchtitan's code, ",
                                                      "torchtune's code, "};
  std::string text(kCodes[static_cast<size_t>(recipe.code)]);
  text += CompiledText(recipe.compile);
  if (recipe.attention == TorchAttention::kEager) text += ", eager attention";
  if (recipe.attention == TorchAttention::kFlash) text += ", flash-attn";
  if (recipe.attention == TorchAttention::kTriton) text += ", Triton's attention of 2023";
  if (recipe.param_dtype) text += fmt::format(", parameters in {}", DtypeName(*recipe.param_dtype));
  if (recipe.optimizer) text += fmt::format(", {}", TorchOptimizerName(*recipe.optimizer));
  if (recipe.optimizer_in_backward) text += ", optimizer in backward";
  if (recipe.kbit) text += ", prepared for k-bit training";
  if (recipe.quant_storage) {
    text += fmt::format(", 4-bit weights packed in {}", DtypeName(*recipe.quant_storage));
  }
  if (recipe.offload_activations) text += ", activations on the CPU";
  if (recipe.tiled_mlp) text += ", tiled MLP";
  if (recipe.experts != ExpertModules::kFused) {
    text += recipe.experts == ExpertModules::kLeaf ? ", experts as modules of a leaf module"
                                                   : ", experts as modules";
  }
  if (recipe.float8) text += fmt::format(", {} float8", TorchFloat8Name(*recipe.float8));
  if (recipe.expandable_segments) text += ", expandable segments";
  return text;
}

std::vector<std::pair<std::string, std::string>> RecipeWords(const TorchRecipe& recipe) {
  const TorchRecipe plain;
  std::vector<std::pair<std::string, std::string>> words;
  const auto add = [&words](bool given, const SettingRow& row, std::string_view value) {
    if (given) words.emplace_back(row.name, value);
  };
  add(recipe.compile.layers, setting::compile, CompileName(recipe.compile));
  add(recipe.code != plain.code, setting::code, CodeStyleName(recipe.code));
  add(recipe.attention != plain.attention, setting::attn, TorchAttentionName(recipe.attention));
  if (recipe.param_dtype) add(true, setting::param_dtype, DtypeName(*recipe.param_dtype));
  if (recipe.optimizer) add(true, setting::optim, TorchOptimizerName(*recipe.optimizer));
  add(recipe.optimizer_in_backward, setting::optimizer_in_backward, "true");
  add(recipe.kbit, setting::kbit, "true");
  if (recipe.quant_storage) add(true, setting::quant_storage, DtypeName(*recipe.quant_storage));
  add(recipe.offload_activations, setting::offload_activations, "true");
  add(recipe.tiled_mlp, setting::tiled_mlp, "true");
  add(recipe.experts != plain.experts, setting::experts, ExpertModulesName(recipe.experts));
  if (recipe.float8) add(true, setting::float8, TorchFloat8Name(*recipe.float8));
  add(recipe.expandable_segments, setting::expandable_segments, "true");
  return words;
}

bool ChoiceJudge::LargerMisfitToo(const ChoiceEstimate& /*choice*/, const Cluster& /*cluster*/) {
  return true;
}

double ChoiceJudge::LeastMicroStepSeconds(const TrainSetup& /*setup*/, const Cluster& /*cluster*/) {
  return 0;
}

std::optional<SetupProblem> Runtime::SequenceProblem(const ModelSpec& model,
                                                     const BatchSpec& batch) const {
  return FindSequenceProblem(model, batch);
}

std::string Runtime::Label(const TrainSetup& setup) const { return SetupLabel(setup); }

std::string Runtime::ChoiceText(const TrainSetup& setup) const {
  return fmt::format("{} ({}{})", Label(setup), BatchText(setup.batch), SettingsText(setup));
}

std::string Runtime::SettingsText(const TrainSetup& /*setup*/) const { return ""; }

std::string Runtime::StageName(int stage) const { return fmt::format("Stage {}", stage); }

std::vector<TrainSetup> Runtime::Completed(std::vector<TrainSetup> setups, bool /*given*/) const {
  return setups;
}

std::string Runtime::TimeLacks(const HardwareProfile& /*hardware*/,
                               const ClusterShape& /*shape*/) const {
  return "";
}

std::array<int, 5> Runtime::Complexity(const TrainSetup& setup) const {
  return zeroplan::Complexity(CandidateOf(setup));
}

std::string Runtime::MarginText(const Cluster& /*cluster*/,
                                const HardwareProfile& /*hardware*/) const {
  return "";
}

double Runtime::LargestTimeError(const ChoiceEstimate& /*choice*/, const Cluster& /*cluster*/,
                                 const HardwareProfile& /*hardware*/) const {
  return 0;
}

std::vector<std::string> Runtime::Cautions(const ChoiceEstimate& /*choice*/,
                                           const Cluster& /*cluster*/,
                                           const HardwareProfile& /*hardware*/) const {
  return {};
}

std::string Runtime::WhyNotTaken(const ChoiceEstimate& /*other*/,
                                 const ChoiceEstimate& /*best*/) const {
  return "";
}

std::vector<std::string> Runtime::Notes(const ChoiceEstimate& /*choice*/,
                                        const TorchRecipe& /*recipe*/) const {
  return {};
}

}  // namespace zeroplan
