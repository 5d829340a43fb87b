#include "planner/request/fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/fp8_products.h"
#include "planner/request/data_fields.h"
#include "planner/request/parse.h"
#include "planner/runtimes/runtimes.h"

namespace zeroplan {

namespace {

void AddGoalFields(FieldSink& sink, GoalFields& fields) {
  const char* group = "Run";
  sink.Value({group, "⟦tokens⟧", "COUNT",
              "Tokens to train on in all, such as 300B: prints steps, hours and GPU-hours"},
             fields.tokens, WholeIn<int64_t>(1, int64_t{1} << 62));
  sink.Value({group, "⟦gpu_hour_price⟧", "PRICE",
              "Price of one GPU for an hour, such as 2.5; with ⟦tokens⟧, prints the run's price"},
             fields.gpu_hour_price, ParsePrice);
  sink.Value({group, "⟦interruptions⟧", "RATE",
              "How often the run is interrupted, all its machines counted together, such as 0.1/h, "
              "2/day or 1/6h: prints how often to save, what is lost, and with ⟦tokens⟧ hours and "
              "price"},
             fields.interruptions, ParseRate);
  sink.Value({group, "⟦notice⟧", "TIME",
              "With ⟦interruptions⟧: time from the notice of one to its stop, such as 30s or 2min; "
              "prints whether a save fits"},
             fields.notice, ParseSeconds);
  sink.Value({group, "⟦restart_time⟧", "TIME",
              "With ⟦interruptions⟧: time from one until the program runs again on all machines, "
              "such as 5min; loading comes on top (default 10min)"},
             fields.restart_time, ParseSeconds);
}

// The fields for comparing machines.
void AddMachineFields(FieldSink& sink, MachineFields& fields) {
  const char* group = "Run";
  sink.Text({.group = group,
             .name = "⟦prices⟧",
             .type = "FILE",
             .help = "Prices of GPUs by the hour for machines that are compared (docs/machines.md; "
                     "default: what is built in, with date and source)"},
            fields.prices);
  sink.Value({group, "⟦deadline⟧", "TIME",
              "With ⟦tokens⟧: the run ends within that time, such as 24h or 3d; compares machines"},
             fields.deadline, ParseSeconds);
  sink.Value({group, "⟦budget⟧", "PRICE",
              "With ⟦tokens⟧: the run costs no more than that; compares machines"},
             fields.budget, ParsePrice);
}

// Accepts the objectives of one plan, and those that compare machines.
void AddObjectiveField(FieldSink& sink, PlanRequest& request) {
  sink.Take({{"Search", "⟦objective⟧", "throughput|headroom|fewest-gpus|time|cost|energy",
              "What is best: most tokens/s (the same as time), most GPU memory left, fewest of "
              "⟦gpus⟧; cost and energy compare machines, or numbers of GPUs up to ⟦gpus⟧ (default "
              "throughput)"},
             "",
             [&request](const std::string& text, std::string_view name) {
               const size_t word = ParseWord(
                   text, name, {"throughput", "headroom", "fewest-gpus", "time", "cost", "energy"});
               constexpr size_t kTime = 3;
               if (word > kTime) {
                 request.machines.objective.emplace(static_cast<MachineObjective>(word - kTime));
                 request.machines.objective.text = text;
                 return;
               }
               request.objective.emplace(static_cast<Objective>(word % kTime));
               request.objective.text = text;
             }});
}

Allowed ParseAllowed(const std::string& text, std::string_view name) {
  std::vector<std::string> names = LightStatesNames();
  const size_t states = names.size();
  for (const Fp8Recipe recipe : kFp8Recipes) names.emplace_back(Fp8AllowName(recipe));
  Allowed allowed;
  for (const size_t index : ParseSome(text, name, names)) {
    if (index < states) {
      allowed.states.push_back(kLightStates[index]);
    } else {
      allowed.products.push_back(kFp8Recipes[index - states]);
    }
  }
  return allowed;
}

std::vector<std::string> RuntimeKeys() {
  std::vector<std::string> keys;
  for (const Runtime* runtime : Runtimes()) keys.emplace_back(runtime->key());
  return keys;
}

void AddRuntimeFields(FieldSink& sink, Request& request, const char* whose, OptionsOf of) {
  sink.Value({SettingGroupName(SettingGroup::kRecipe), "⟦runtime⟧", AnyOf(RuntimeKeys()),
              fmt::format("{}: zeroplan's own executor (default), or another one "
                          "(docs/runtimes.md)",
                          whose)},
             request.runtime.runtime, [](const std::string& text, std::string_view name) {
               return Runtimes()[static_cast<size_t>(ParseWord(text, name, RuntimeKeys()))];
             });
  AddSettings(sink, request.settings, SettingGroup::kRecipe, of);
}

}  // namespace

TorchRecipe Request::recipe(std::optional<ConfigFormat> written_for) const {
  const bool other = runtime.of().facts().has_recipe;
  TorchRecipe recipe;
  recipe.compile = {settings.compile.has_value(), settings.compile == CompileKind::kAll};
  if (other) {
    if (written_for == ConfigFormat::kHfTrainer || written_for == ConfigFormat::kAccelerate) {
      recipe.code = CodeStyle::kHf;
    }
    if (written_for == ConfigFormat::kTorchtitan) recipe.code = CodeStyle::kTorchtitan;
  }
  recipe.code = settings.code.value_or(recipe.code);
  if (recipe.code == CodeStyle::kComposer) recipe.attention = TorchAttention::kTriton;
  recipe.attention = settings.attn.value_or(recipe.attention);
  recipe.param_dtype = settings.param_dtype;
  recipe.optimizer = settings.optim;
  recipe.float8 = settings.float8;
  recipe.optimizer_in_backward = settings.optimizer_in_backward;
  recipe.kbit = settings.kbit;
  recipe.quant_storage = settings.quant_storage;
  recipe.offload_activations = settings.offload_activations && other;
  recipe.tiled_mlp = settings.tiled_mlp;
  recipe.experts = settings.experts.value_or(recipe.experts);
  recipe.expandable_segments = settings.expandable_segments;
  return recipe;
}

void ReadFields(const std::deque<AddedField>& fields) {
  for (const AddedField& decided : fields) {
    if (!decided.given) continue;
    for (const std::string_view name : decided.info.decided_by) {
      const auto decider = std::find_if(fields.begin(), fields.end(), [&](const AddedField& field) {
        return field.given && NameFields(field.info.name) == NameFields(name);
      });
      if (decider == fields.end()) continue;
      ThrowUsage("{}: {} is not allowed with {}, which decides it; leave one of the two out",
                 decided.name, decided.text, name);
    }
  }
  for (const AddedField& field : fields) {
    if (!field.given) continue;
    const bool alone = field.info.alone != nullptr && field.text.empty();
    field.take(alone ? field.info.alone : field.text, field.name);
  }
}

void FieldSink::Flag(const char* group, const std::string& name, const std::string& help,
                     bool& value) {
  AddedField field;
  field.info = {group, name, "", help, {}, false, "true"};
  field.take = [&value](const std::string&, std::string_view) { value = true; };
  Take(std::move(field));
}

void FieldSink::Text(const FieldInfo& info, std::string& value, KnownNames known) {
  Take({info, "", [&value](const std::string& text, std::string_view) { value = text; }, known});
}

void FieldSink::Texts(const FieldInfo& info, std::vector<std::string>& values) {
  const auto add = [&values](const std::string& text, std::string_view) { values.push_back(text); };
  Take({.info = info, .take = add, .several = true});
}

void AddEstimateFields(FieldSink& sink, Request& request) {
  AddModelFields(sink, request.model);
  AddClusterFields(sink, request);
  AddSettings(sink, request.settings, SettingGroup::kBatch, OptionsOf::kEstimate);
  AddChoiceFields(sink, request, OptionsOf::kEstimate);
  AddSettings(sink, request.settings, SettingGroup::kRun, OptionsOf::kEstimate);
  AddGoalFields(sink, request.goal);
  AddDataFields(sink, request.goal.data);
  AddRuntimeFields(sink, request, "Program whose memory and time are estimated",
                   OptionsOf::kEstimate);
}

void AddRunFields(FieldSink& sink, Request& request) {
  AddModelFields(sink, request.model);
  AddClusterFields(sink, request);
  AddSettings(sink, request.settings, SettingGroup::kBatch, OptionsOf::kEstimate);
  AddChoiceFields(sink, request, OptionsOf::kEstimate);
  AddRuntimeFields(sink, request, "Program that trained", OptionsOf::kEstimate);
}

void AddPlanFields(FieldSink& sink, PlanRequest& request) {
  Request& common = request.common;
  AddModelFields(sink, common.model, &request.compared);
  AddClusterFields(sink, common, &request.machines);
  AddSettings(sink, common.settings, SettingGroup::kBatch, OptionsOf::kPlan);
  AddChoiceFields(sink, common, OptionsOf::kPlan);
  AddSettings(sink, common.settings, SettingGroup::kRun, OptionsOf::kPlan);
  FieldInfo largest = {"Search", "⟦largest⟧", "model|seq-len|micro-batch",
                       "Find the largest that fits, and plan it: a model of the shape of ⟦family⟧ "
                       "(the default), or the sequence or micro-batch of a given model"};
  largest.alone = "model";
  sink.Value(largest, request.largest, WordIn<Largest>({"model", "seq-len", "micro-batch"}));
  AddGoalFields(sink, common.goal);
  AddMachineFields(sink, request.machines);
  AddDataFields(sink, common.goal.data);
  AddRuntimeFields(sink, common, "Program to plan for", OptionsOf::kPlan);
  AddObjectiveField(sink, request);
  sink.Value({"Search", "⟦allow⟧", "split-masters|8bit-states|bf16-states|fp8|fp8-blocks|all",
              "What changes a run's numbers, to be chosen where that is faster: optimizer states "
              "that take less memory than fp32 ones (masters in two halves; Adam's moments in 8 "
              "bit; masters in 16 bit with bf16 moments), products in FP8 with a scale a tensor or "
              "a block; or some, such as split-masters,fp8 (default: none)"},
             request.allow, ParseAllowed);
  sink.Flag("Search", "⟦quick⟧", "Print the answer alone, not what would change it", request.quick);
  sink.Value({"Search", "⟦effort⟧", "FACTOR",
              "Factor on the search's budget; a larger one narrows the gap that a plan states "
              "(default 1)"},
             request.effort, ParseFactor);
}

void AddModelFields(FieldSink& sink, ModelFields& fields,
                    Given<std::vector<TuningMethod>>* compared) {
  const char* group = "Model (one of the two)";
  FieldInfo model = {group, "⟦model⟧", "NAME|FILE|DIR",
                     "Preset (see 'zeroplan model list'), published name such as "
                     "meta-llama/Llama-3.1-8B, a Hugging Face config.json, or a folder with one"};
  model.word = "model";
  sink.Text(model, fields.model, KnownModels);
  sink.Value({group, "⟦params⟧", "COUNT",
              "Parameters, such as 10B or 350M: a shape of about that size is derived and printed"},
             fields.params, ParseCount);
  sink.Text({group, "⟦family⟧", "NAME",
             fmt::format("Family of the shape that ⟦params⟧ derives: {} (default gpt2)",
                         fmt::join(KnownFamilies(), ", "))},
            fields.family, KnownFamilies);
  sink.Text({group, "⟦freeze⟧", "PATTERN,...",
             "Tensors that are not trained, by their names in published weights, such as "
             "'model.embed_tokens.*,model.layers.[0-3].*' (default: all are trained)"},
            fields.freeze);
  sink.Value({group, "⟦router_aux_loss⟧", "FACTOR",
              "Coefficient of the loss that balances the experts of a mixture; 0: without (default "
              "the model's router_aux_loss_coef)"},
             fields.router_aux_loss, ParseCoefficient);
  sink.Value({group, "⟦router_z_loss⟧", "FACTOR",
              "Coefficient of the loss that keeps a mixture's router logits small (default 0: "
              "without)"},
             fields.router_z_loss, ParseCoefficient);
  sink.Value({group, "⟦image_tokens⟧", "COUNT",
              "Tokens of images in a sequence, of a model that sees and is planned for another "
              "⟦runtime⟧ (default: one image's)"},
             fields.image_tokens, WholeIn<int64_t>(1, 1'000'000));
  const char* tuning = "What is trained";
  const std::string methods =
      "All of the model, or adapters of low rank on the products of its layers, with the model "
      "itself frozen, in 16 bit or (qlora) its products in NF4, four bits a weight (default full; "
      "lora where one of its options is given)";
  if (compared != nullptr) {
    const FieldInfo method = {tuning, "⟦method⟧", "full|lora|qlora|all",
                              methods +
                                  "; several, such as full,lora, or all are compared, and so "
                                  "are all for a folder with weights where nothing is said"};
    sink.Take({method, "", [&fields, compared](const std::string& text, std::string_view name) {
                 std::vector<TuningMethod> some;
                 for (const size_t index : ParseSome(text, name, WordsOf(kWords<TuningMethod>))) {
                   some.push_back(kWords<TuningMethod>[index].value);
                 }
                 if (some.size() == 1) {
                   fields.method.emplace(some.front());
                   fields.method.text = text;
                 } else {
                   compared->emplace(std::move(some));
                   compared->text = text;
                 }
               }});
  } else {
    sink.Value({tuning, "⟦method⟧", "full|lora|qlora", methods}, fields.method,
               OneOf(kWords<TuningMethod>));
  }
  sink.Value({tuning, "⟦lora_rank⟧", "RANK", "Rank of the adapters (default 16)"}, fields.lora.rank,
             WholeIn<int64_t>(1, 65536));
  sink.Value({tuning, "⟦lora_alpha⟧", "ALPHA",
              "What adapters add is scaled by ALPHA / RANK (default: twice the rank)"},
             fields.lora.alpha, ParseAlpha);
  sink.Value({tuning, "⟦lora_dropout⟧", "P",
              "Share of what adapters read that training drops (default 0)"},
             fields.lora.dropout, ParseDropout);
  sink.Text({tuning, "⟦lora_targets⟧", "NAME,...",
             "Linears that have adapters, as PEFT names them, such as q_proj,v_proj (default "
             "all-linear: all of every layer); NAME@FIRST-LAST is of these layers alone, from 0 "
             "on, and NAME:RANK or NAME:RANK/ALPHA, behind that, of another rank and alpha"},
            fields.lora.targets);
  sink.Text({tuning, "⟦lora_save⟧", "NAME,...",
             "Modules that are trained whole and saved with the adapters, such as embed_tokens "
             "(PEFT's modules_to_save)"},
            fields.lora.save);
  sink.Text({tuning, "⟦lora_tokens⟧", "TOKEN,...",
             "Tokens whose rows of the embedding are trained and saved with the adapters, such as "
             "7,200-205 (PEFT's trainable_token_indices)"},
            fields.lora.tokens);
  sink.Flag(tuning, "⟦rslora⟧", "Scale by ALPHA / sqrt(RANK) instead", fields.lora.rslora);
}

void AddClusterFields(FieldSink& sink, Request& fields, MachineFields* machines) {
  const char* group = "Hardware";
  ClusterFields& cluster = fields.cluster;
  HardwareFields& hardware = fields.hardware;
  const std::string several = machines == nullptr ? "" : "; several are compared";
  sink.Take({{group, "⟦gpus⟧", machines == nullptr ? "COUNT" : "COUNT,...",
              "GPUs in all, one rank each (default: those of the machine that ⟦hw⟧ names, or of "
              "this one; 1 where it has none)" +
                  several},
             "",
             [&cluster, machines](const std::string& text, std::string_view name) {
               if (machines != nullptr && text.find(',') != std::string::npos) {
                 machines->gpus = ParseCounts(text, name, kMaxGpus);
                 return;
               }
               cluster.gpus.emplace(WholeIn<int>(1, kMaxGpus)(text, name));
               cluster.gpus.text = text;
             }});
  sink.Value({group, "⟦gpus_per_node⟧", "COUNT",
              "GPUs that share a host's memory and disk (default: the profile's, at most ⟦gpus⟧)"},
             cluster.gpus_per_node, WholeIn<int>(1, kMaxGpus));
  sink.Take({{group, "⟦hw⟧", machines == nullptr ? "NAME|FILE" : "NAME|FILE,...|any",
              "Hardware profile: a built-in name (see 'zeroplan hw list') or a JSON file "
              "(default: this machine's GPUs, or " +
                  std::string(kDefaultProfile) + " where it has none)" + several +
                  (machines == nullptr ? "" : ", and so are all built-in ones by the word any")},
             "",
             [&hardware, machines](const std::string& text, std::string_view name) {
               if (machines != nullptr && text == "any") {
                 machines->any = true;
               } else if (machines != nullptr && text.find(',') != std::string::npos) {
                 machines->hw = ParseNames(text, name);
               } else {
                 hardware.profile = text;
               }
             },
             ProfileNames});
  sink.Text({group, "⟦network⟧", "NAME|RATE",
             "Network between nodes: a built-in one (eth-25, ib-8x400) or the rate of one node "
             "each way, such as 25Gb or 8x400Gb (default: the profile's)"},
            hardware.network, NetworkNames);
  sink.Text({group, "⟦intra_node_bandwidth⟧", "RATE",
             "Bandwidth from one GPU to the others of its node, each way, such as 300GB/s "
             "(default: the profile's); it replaces the profile's measured collectives"},
            hardware.intra_node_bandwidth);
  sink.Value({group, "⟦gpu_memory⟧", "BYTES",
              "Memory of one GPU that a process may use, such as 32GB or 79GiB (default: the "
              "profile's)"},
             cluster.gpu_memory, ParseMemory);
  sink.Value({group, "⟦host_memory⟧", "BYTES",
              "Memory of one host, such as 512GiB (default: the profile's)"},
             cluster.host_memory, ParseMemory);
  AddPinnedLimitField(sink, group, cluster);
  sink.Value({group, "⟦nvme_capacity⟧", "BYTES",
              "Disk space of one node for offload (default: the profile's; unknown space is not "
              "checked); plan offloads to disks that are named here, asked for or measured"},
             cluster.nvme_capacity, ParseMemory);
  sink.Value({group, "⟦nvme_drives⟧", "COUNT",
              "NVMe drives of one node, each like those of the profile: rates and capacity are as "
              "many times one drive's (default: the profile's number); names the disk as "
              "⟦nvme_capacity⟧ does"},
             hardware.nvme_drives, WholeIn<int>(1, kMaxDrives));
  AddReserveFields(sink, group, cluster);
}

void AddPinnedLimitField(FieldSink& sink, const char* group, ClusterFields& fields) {
  sink.Value({group, "⟦pinned_limit⟧", "BYTES",
              "What the GPUs' driver page-locks of a host's memory at most, as under WSL2, all "
              "ranks together (default: the profile's; one that is not known is not checked)"},
             fields.pinned_limit, ParseMemory);
}

void AddReserveFields(FieldSink& sink, const char* group, ClusterFields& fields) {
  sink.Value({group, "⟦gpu_reserve⟧", "BYTES",
              "Memory of each GPU to keep free, as a margin for the prediction; 0 for none "
              "(default 500MB)"},
             fields.gpu_reserve, ParseReserve);
  sink.Value({group, "⟦host_reserve⟧", "BYTES",
              "Memory of each host to keep free for its system; 0 for none (default: what "
              "Kubernetes keeps on Google's nodes, such as 5.8GB of 64GB and 27.4GB of 1TB)"},
             fields.host_reserve, ParseReserve);
}

std::vector<std::string> KnownModels() {
  std::vector<std::string> names;
  for (const ModelPreset& preset : ModelPresets()) names.push_back(preset.spec.name);
  return names;
}

std::vector<std::string> KnownFamilies() {
  std::vector<std::string> names;
  for (const ModelFamily* family : ModelFamilies()) names.emplace_back(family->name());
  return names;
}

std::vector<std::string> KnownProfilesAndNetworks() {
  std::vector<std::string> names = ProfileNames();
  for (std::string& network : NetworkNames()) names.push_back(std::move(network));
  return names;
}

}  // namespace zeroplan
