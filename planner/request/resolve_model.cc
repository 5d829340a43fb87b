// Resolves the model: by name, folder or size, with its frozen parts and its adapters. Adds notes
// about a model that zeroplan does not train.
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_source.h"
#include "core/base/log.h"
#include "core/base/strings.h"
#include "core/base/units.h"
#include "core/families/adapter_config.h"
#include "core/families/load_model.h"
#include "core/model/lora.h"
#include "core/model/param_table.h"
#include "planner/request/fields.h"
#include "planner/request/parse.h"
#include "planner/request/resolve.h"
#include "planner/runtimes/planned/planned_models.h"
#include "planner/runtimes/planned_parts.h"
#include "planner/runtimes/runtimes.h"

namespace zeroplan {

const ModelFamily& FamilyOf(const ModelFields& fields) {
  if (fields.family.empty()) return *ModelFamilies().front();
  const ModelFamily* family = FamilyNamed(fields.family);
  if (family == nullptr) {
    ThrowUsage("⟦family⟧: {} is not allowed; use {}", fields.family, QuotedNames(ModelFamilies()));
  }
  return *family;
}

namespace {

// The pattern of a vision tower's names, for ⟦freeze⟧.
std::string VisionPattern(const ModelSpec& model) {
  for (const ParamTensor& tensor : BuildParamTable(model)) {
    const size_t at = tensor.name.find("vis");
    if (VisionTower::Owns(tensor.name) && at != std::string::npos) {
      return fmt::format("'{}.*'", tensor.name.substr(0, tensor.name.find('.', at)));
    }
  }
  return "";
}

// Notes the approximations of a model that zeroplan does not train.
void NoteOthers(const ModelSpec& model, const Runtime& runtime, Assumptions& assumptions) {
  const PlannedCode* code = model.family->planned();
  if (code == nullptr) return;
  const bool also_trained = FamilyNamed(model.family->name()) != nullptr;
  std::string text = fmt::format(
      "Model: {} parameters of type {}, which zeroplan {} for other programs by the code of "
      "transformers 5.24.0.",
      FormatCount(model.ParamCount()), model.family->name(),
      also_trained ? "trains itself and plans" : "does not train and plans");
  const std::vector<std::string> approximated = ApproximatedOf(*code);
  for (const std::string& one : approximated) {
    text += fmt::format("{}{}", &one == &approximated.front() ? " Approximated: " : "; ", one);
  }
  if (!approximated.empty()) text += ".";
  // Times of those runs say nothing of programs that gather and reduce.
  const bool alone = runtime.facts().replicates;
  text += fmt::format(
      " Beside {} runs of such models, all weights trained, by transformers' Trainer on one H200 "
      "({}) allocated memory "
      "was off by {:.2g} % of what is predicted at most, reserved by {:.2g} %{}; no other was "
      "compared{}{}.",
      kPlannedMargins.runs, kPlannedMargins.models, 100 * kPlannedMargins.allocated,
      100 * kPlannedMargins.reserved,
      alone ? fmt::format(", times by {:.2g} %", 100 * kPlannedMargins.time) : "",
      alone ? "" : fmt::format(", and none with {}", runtime.name()),
      code->vision.present() ? ", and none of a model that sees" : "");
  if (code->experts > 0 && runtime.reads_deepspeed_config()) {
    text += fmt::format(
        " One published run at stage 3 (Qwen3 30B-A3B on 16 A800 of two nodes, transformers 4: "
        "⟦experts⟧ modules) took {} s a step, {:.2g} times as long as predicted; of transformers 5 "
        "none is known.",
        kPublishedMixture.seconds, kPublishedMixture.times);
  }
  if (code->vision.present()) {
    text += fmt::format(" ⟦freeze⟧ {} freezes the tower that sees.", VisionPattern(model));
  }
  assumptions.notes.push_back(std::move(text));
}

NamedModel NamedBy(const ModelFields& fields, const Runtime& runtime) {
  const OtherModels others = OthersFor(fields, runtime);
  if (!fields.described.given()) return FindModel(fields.model, others);
  NamedModel named;
  named.spec = ReadHuggingFaceConfig(fields.described.root(),
                                     {fields.described.name(), {}, "model-of-the-log"},
                                     &named.config_notes, ModelFamilies(), others);
  return named;
}

ModelSpec NamedOrDerived(const ModelFields& fields, const Given<int64_t>& seq_len,
                         const Runtime& runtime, Assumptions& assumptions) {
  if (fields.named() == fields.params.has_value()) {
    ThrowUsage("{}; give ⟦model⟧ NAME|FILE|DIR (see 'zeroplan model list') or ⟦params⟧ COUNT",
               fields.params ? "⟦model⟧ and ⟦params⟧ are both given" : "no model");
  }
  if (!fields.family.empty() && !fields.params) {
    ThrowUsage("⟦family⟧: {} goes with ⟦params⟧; a ⟦model⟧ has its family itself", fields.family);
  }
  if (!fields.params) {
    NamedModel named = NamedBy(fields, runtime);
    RefuseUnaskedAdapter(named.folder, fields.adapter);
    const PlannedCode* code = named.spec.family->planned();
    if (fields.image_tokens && !(code != nullptr && code->vision.present())) {
      ThrowUsage("⟦image_tokens⟧: {} has no effect: {} takes no images; leave it out",
                 fields.image_tokens.text, named.spec.name);
    }
    if (!assumptions.logged) {
      for (const std::string& note : named.config_notes) LogInfo("{}", note);
    }
    if (!named.note.empty()) assumptions.notes.push_back(std::move(named.note));
    NoteOthers(named.spec, runtime, assumptions);
    return std::move(named.spec);
  }
  ModelSpec model = AsPreferred(
      ModelFromParams(*fields.params, seq_len.value_or(kDerivedSeqLen), FamilyOf(fields)),
      OthersFor(fields, runtime));
  assumptions.notes.push_back(fmt::format(
      "Model: derived from ⟦params⟧ {}; ⟦model⟧ takes an exact shape.", fields.params.text));
  NoteOthers(model, runtime, assumptions);
  return model;
}

// Allows sequences longer than the model was made for, if its positions are computed.
void RaisePositions(const Given<int64_t>& seq_len, ModelSpec& model, Assumptions& assumptions) {
  if (!seq_len || *seq_len <= model.positions || model.family->learned_positions()) return;
  assumptions.notes.push_back(fmt::format(
      "Positions: {} was made for sequences of up to {} tokens; ⟦seq_len⟧ {} goes beyond, with the "
      "same rotary frequencies (rope_scaling in a config.json changes these).",
      model.name, model.positions, *seq_len));
  model.positions = *seq_len;
}

// Applies ⟦method⟧ and the options of adapters.
// The names of all linears that can have an adapter in a model that zeroplan does not train.
std::string LinearNames(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const std::string& linear : LayerLinears(model)) {
    names.push_back(linear.substr(linear.rfind('.') + 1));
  }
  return fmt::format("{}", fmt::join(names, ","));
}

// By name where PEFT's all-linear has others too: experts, or a tower that sees.
std::string DefaultTargets(const ModelSpec& model) {
  const PlannedCode* code = model.family->planned();
  const bool by_name = code != nullptr && (code->experts > 0 || code->vision.present());
  return by_name ? LinearNames(model) : std::string(kAllLinear);
}

// Throws for targets that PEFT 0.21 gives adapters which are not modelled.
void CheckPlannedTargets(const ModelSpec& model) {
  const PlannedCode* code = model.family->planned();
  if (code == nullptr) return;
  const std::vector<std::string> linears = LayerLinears(model);
  for (const std::string_view entry : SplitList(model.lora_targets)) {
    const std::string_view name = entry.substr(0, entry.find_first_of("@:"));
    const bool all = name == kAllLinear;
    if (all && code->vision.present()) {
      ThrowUsage(
          "⟦lora_targets⟧: all-linear gives the tower that sees adapters too, which is not "
          "modelled; name linears of the language model: {}",
          LinearNames(model));
    }
    const bool attention =
        std::any_of(linears.begin(), linears.end(), [&](const std::string& linear) {
          return IsNamed(linear, name) || name.ends_with("." + linear);
        });
    if (code->experts == 0 || (attention && !all)) continue;
    if (all && !code->peft_adapts_experts && code->shared_ffn == 0) continue;
    ThrowUsage(
        "⟦lora_targets⟧: {}: of a mixture of experts adapters of attention's linears are modelled, "
        "not those of experts or of a router (PEFT's target_parameters, which PEFT 0.21 also makes "
        "of all-linear and of names such as gate_proj); use {}",
        PrintableText(entry, 100), LinearNames(model));
  }
}

// Names the parts that adapters leave out in a model that zeroplan does not train; empty: none.
std::string LeftOutText(const ModelSpec& model) {
  const PlannedCode* code = model.family->planned();
  if (code == nullptr) return "";
  if (code->experts > 0) {
    std::string text = fmt::format(" Its experts{} have no adapter",
                                   code->shared_ffn > 0 ? ", the shared one too," : "");
    if (!model.lora_quantized) return text + ".";
    uint64_t experts = 0;
    for (const ParamTensor& tensor : BuildParamTable(BaseModel(model))) {
      if (tensor.token_share < 1) experts += tensor.elements();
    }
    return text + fmt::format(
                      ", and stay in 16 bit, {}: bitsandbytes takes torch.nn.Linear alone, and "
                      "transformers 5 has one parameter for all experts of a layer.",
                      FormatBytes(2 * experts));
  }
  if (!code->vision.present()) return "";
  return " The tower that sees is frozen and has no adapter (LLaMA-Factory's and ms-swift's "
         "default); PEFT alone gives its linears of the same names some, unless target_modules is "
         "a pattern. With gradient checkpointing transformers 5 makes its input want a gradient, "
         "whose way through it is not counted.";
}

void SetRouterLosses(const ModelFields& fields, ModelSpec& model) {
  const auto set = [&](std::string_view option, const Given<double>& given, float& to) {
    if (!given) return;
    if (model.experts == 0) {
      ThrowUsage("{}: {} has no effect: {} {}; leave it out", option, given.text, model.name,
                 model.family->planned() != nullptr ? "is planned by the code of transformers"
                                                    : "has no experts");
    }
    to = static_cast<float>(*given);
  };
  set("⟦router_aux_loss⟧", fields.router_aux_loss, model.router_aux_loss);
  set("⟦router_z_loss⟧", fields.router_z_loss, model.router_z_loss);
}

void SetAdapters(const ModelFields& fields, ModelSpec& model, Assumptions& assumptions) {
  const LoraFields& lora = fields.lora;
  if (!fields.adapter.empty() && model.family->planned() != nullptr) {
    ThrowUsage(
        "⟦adapter⟧: adapters from a folder are not read for a model of type {}; give "
        "⟦method⟧ lora with rank and targets",
        model.family->name());
  }
  const bool any = lora.given();
  const TuningMethod method =
      fields.method.value_or(any ? TuningMethod::kLora : TuningMethod::kFull);
  if (model.experts > 0 && (method != TuningMethod::kFull || !fields.adapter.empty())) {
    ThrowUsage(
        "{}: adapters of a mixture of experts are not trained; use ⟦method⟧ full, or plan {} with "
        "⟦runtime⟧ deepspeed, fsdp2 or ddp",
        fields.adapter.empty()
            ? "⟦method⟧: " + (fields.method ? fields.method.text : std::string("lora"))
            : "⟦adapter⟧: " + fields.adapter,
        model.name);
  }
  if (!model.frozen.empty() && (method != TuningMethod::kFull || !fields.adapter.empty())) {
    ThrowUsage(
        "⟦freeze⟧: {} has no effect with adapters, which leave all else frozen; leave it out",
        model.frozen);
  }
  if (!fields.adapter.empty()) {
    if (any || fields.method == TuningMethod::kFull) {
      ThrowUsage("⟦adapter⟧: {} says rank, alpha and targets; leave the options of LoRA out",
                 fields.adapter);
    }
    const int64_t vocab = model.vocab;
    model = WithAdapter(std::move(model), fields.adapter, AdapterUse::kTrain);
    if (model.vocab != vocab) {
      assumptions.notes.push_back(
          fmt::format("Vocabulary: {} tokens, as the adapter in {} has them; its base has {}.",
                      model.vocab, fields.adapter, vocab));
    }
    model.lora_quantized = method == TuningMethod::kQlora;
    return;
  }
  if (method == TuningMethod::kFull) {
    if (any) ThrowUsage("⟦method⟧: full has no adapters; leave it out, or the options of LoRA");
    return;
  }
  model.lora_quantized = method == TuningMethod::kQlora;
  model.lora_rank = lora.rank.value_or(16);
  model.lora_alpha =
      static_cast<float>(lora.alpha.value_or(2 * static_cast<double>(model.lora_rank)));
  model.lora_dropout = static_cast<float>(lora.dropout.value_or(0));
  model.lora_rslora = lora.rslora;
  model.lora_targets = lora.targets.empty() ? DefaultTargets(model) : lora.targets;
  CheckPlannedTargets(model);
  model.lora_saved = lora.save;
  model.lora_tokens = WriteTokens(ReadTokens(lora.tokens, model.vocab, "⟦lora_tokens⟧"));
  CheckAdapters(model, "⟦lora_targets⟧, ⟦lora_save⟧, ⟦lora_tokens⟧");
}

// Only a vision tower, with its projector, can be frozen in a model of PyTorch programs.
void CheckFrozenFor(const Runtime& runtime, const ModelSpec& model) {
  if (!runtime.facts().trains_planned_models || model.frozen.empty()) return;
  const PlannedCode* code = model.family->planned();
  if (code != nullptr && !code->vision.present()) {
    ThrowUsage("⟦freeze⟧: of {} nothing can be frozen with ⟦runtime⟧ {}; leave it out",
               model.family->name(), runtime.key());
  }
  if (code == nullptr) {
    ThrowUsage(
        "⟦freeze⟧: is not modelled for ⟦runtime⟧ {}; leave it out, or use ⟦runtime⟧ zeroplan",
        runtime.key());
  }
  for (const ParamTensor& tensor : BuildParamTable(model)) {
    const bool text = tensor.layer != kEmbeddingLayer || tensor.use == ParamUse::kHead ||
                      tensor.name.ends_with("embed_tokens.weight");
    if (tensor.trainable || !text) continue;
    ThrowUsage("⟦freeze⟧: {} freezes {}, and for ⟦runtime⟧ {} only what sees can be frozen: use {}",
               model.frozen, tensor.name, runtime.key(), VisionPattern(model));
  }
}

// Checks that a sequence has room for all tokens of its images.
void CheckImages(const ModelSpec& model, int64_t seq_len) {
  const PlannedCode* code = model.family->planned();
  if (code == nullptr || !code->vision.present()) return;
  const int64_t tokens = code->vision.images * code->vision.image_tokens;
  if (tokens <= seq_len) return;
  ThrowUsage(
      "⟦image_tokens⟧: {} tokens of images are more than the {} of a sequence; use ⟦seq_len⟧ "
      "{} or more, or fewer ⟦image_tokens⟧",
      tokens, seq_len, tokens);
}

}  // namespace

OtherModels OthersFor(const ModelFields& fields, const Runtime& runtime) {
  const bool others = runtime.facts().trains_planned_models;
  return {.allowed = others, .preferred = others, .image_tokens = fields.image_tokens};
}

bool TakesAdapters(const ModelFields& fields, const Runtime& runtime) {
  if (runtime.facts().trains_planned_models) return true;
  try {
    if (fields.params) return FamilyOf(fields).Shape(1, 128, 128, true).experts == 0;
    return !fields.named() || NamedBy(fields, runtime).spec.experts == 0;
  } catch (const Error&) {
    return true;
  }
}

std::string PlanForOthers(Request& request) {
  const ModelFields& fields = request.model;
  if (request.runtime.runtime || fields.model.empty() || fields.params) return "";
  std::string_view type;
  try {
    const NamedModel named =
        FindModel(fields.model, {.allowed = true, .image_tokens = fields.image_tokens});
    if (named.spec.family->planned() == nullptr) return "";
    type = named.spec.family->name();
  } catch (const Error&) {
    return "";  // resolving the request throws it
  }
  request.runtime.runtime.emplace(&DeepSpeedRuntime());
  request.runtime.runtime.text = "deepspeed";
  return fmt::format(
      "Runtime: DeepSpeed, as zeroplan does not train models of the type \"{}\"; ⟦runtime⟧ fsdp2 "
      "or "
      "ddp plans it for those.",
      type);
}

void TakeConfigRecipe(Request& request, Assumptions& assumptions) {
  const ConfigDocument& config = request.config;
  if (!config.given() || !request.runtime.of().reads_deepspeed_config()) return;
  const JsonNode* own = config.root().Find("_zeroplan");
  std::vector<std::string> taken;
  for (const SettingRow* row : kSettingRows) {
    // The config's reader reads that setting.
    if (row->group != SettingGroup::kRecipe || row == &setting::optimizer_in_backward) continue;
    // That reader also reports values that are not text.
    const JsonNode* node = own != nullptr && own->is_object() ? own->Find(row->name) : nullptr;
    const std::string text = node != nullptr && node->is_string() ? node->scalar.text() : "";
    if (text.empty() || text == "none") continue;
    const std::string where = fmt::format("{}: _zeroplan.{}", config.name(), row->name);
    const Taken what = TakeSetting(*row, text, where, request.settings);
    if (what == Taken::kTaken) {
      taken.push_back(text == "true" ? fmt::format("⟦{}⟧", row->name)
                                     : fmt::format("⟦{}⟧ {}", row->name, text));
    } else if (what == Taken::kGivenOtherwise) {
      std::string given;
      ForEachSetting(request.settings, [&](const SettingRow& of, const auto& field) {
        if (&of == row) given = TextOf(field);
      });
      assumptions.notes.push_back(fmt::format("⟦{}⟧ {} is taken in place of {}, which {} says.",
                                              row->name, given, text, config.name()));
    }
  }
  if (!taken.empty()) {
    assumptions.notes.push_back(
        fmt::format("Of {}, as it was planned: {}.", config.name(), fmt::join(taken, ", ")));
  }
  const JsonNode* optimizer = config.root().Find("optimizer");
  const auto& optim = request.settings.optim;
  if (optim && optimizer != nullptr && optimizer->is_object()) {
    assumptions.notes.push_back(
        fmt::format("⟦optim⟧ {} takes the place of the optimizer in {}, which DeepSpeed passes "
                    "over where the program hands it one.",
                    optim.text, config.name()));
  }
}

void TakeTrainerSizes(const ConfigDocument& config, const ModelSpec& model, ZeroConfig& zero,
                      Assumptions& assumptions) {
  const JsonNode* section = config.root().Find("zero_optimization");
  if (section == nullptr || !section->is_object()) return;
  const auto hidden = static_cast<uint64_t>(model.hidden);
  std::vector<std::string> taken;
  // transformers' HfTrainerDeepSpeedConfig.trainer_config_finalize; accelerate's rule is the same.
  const auto take = [&](const char* key, uint64_t& size, uint64_t of_trainer) {
    const JsonNode* value = section->Find(key);
    if (value == nullptr || !value->is_string() || !(value->scalar == "auto")) return;
    size = of_trainer;
    taken.push_back(fmt::format("{} {}", key, of_trainer));
  };
  if (zero.stage > 0) take("reduce_bucket_size", zero.reduce_bucket_elements, hidden * hidden);
  if (zero.stage == 3) {
    take("stage3_prefetch_bucket_size", zero.prefetch_bucket_elements,
         static_cast<uint64_t>(0.9 * static_cast<double>(hidden * hidden)));
    take("stage3_param_persistence_threshold", zero.param_persistence_threshold, 10 * hidden);
  }
  if (taken.empty()) return;
  assumptions.notes.push_back(
      fmt::format("\"auto\" in {} is what transformers' Trainer and accelerate make of it: {}.",
                  config.name(), fmt::join(taken, ", ")));
}

void SetCodeOfOthers(const AskedSettings& fields, const ModelSpec& model, TorchRecipe& recipe) {
  const PlannedCode* code = model.family->planned();
  const std::string_view type = model.family->name();
  if (code != nullptr && !fields.code) recipe.code = CodeStyle::kHf;
  if (!HasCodeOf(recipe.code, model)) {
    if (code == nullptr) {
      ThrowUsage("⟦code⟧: {} has no model of the family {}; use plain or hf",
                 CodeStyleName(recipe.code), type);
    }
    ThrowUsage("⟦code⟧: {} has no model of type {} that is known; use hf{}",
               CodeStyleName(recipe.code), type,
               HasCodeOf(CodeStyle::kLiger, model) ? " or liger" : "");
  }
  if (code == nullptr) return;
  if (recipe.compile.layers || recipe.compile.loss) {
    ThrowUsage("⟦compile⟧: compiled code of a model of type {} is not modelled; leave it out",
               type);
  }
  if (!code->bounded_scores) return;
  if (!fields.attn) recipe.attention = TorchAttention::kEager;
  if (recipe.attention == TorchAttention::kSdpa) {
    ThrowUsage(
        "⟦attn⟧: sdpa bounds no scores, as {} does (attn_logit_softcapping), and "
        "transformers refuses it; use eager or flash",
        type);
  }
}

ModelSpec ResolveModel(const ModelFields& fields, const Given<int64_t>& seq_len,
                       Assumptions& assumptions, const Runtime& runtime) {
  ModelSpec model = NamedOrDerived(fields, seq_len, runtime, assumptions);
  RaisePositions(seq_len, model, assumptions);
  SetRouterLosses(fields, model);
  model.frozen = fields.freeze;
  CheckFrozen(model, "⟦freeze⟧");
  CheckFrozenFor(runtime, model);
  CheckImages(model, seq_len.value_or(model.positions));
  SetAdapters(fields, model, assumptions);
  if (HasAdapters(model)) {
    assumptions.notes.push_back(fmt::format(
        "{}: {}: {} parameters are trained, of {}.{}", model.lora_quantized ? "QLoRA" : "LoRA",
        DescribeAdapters(model), FormatCount(model.TrainedParamCount()),
        FormatCount(model.ParamCount()), LeftOutText(model)));
  } else if (!model.frozen.empty()) {
    assumptions.notes.push_back(fmt::format("Frozen: {} of {} parameters are trained.",
                                            FormatCount(model.TrainedParamCount()),
                                            FormatCount(model.ParamCount())));
  }
  return model;
}

std::string FolderOfModel(const ModelFields& fields) {
  return fields.model.empty() ? "" : FindModel(fields.model, {.allowed = true}).folder.string();
}

}  // namespace zeroplan
