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

// Whose file decides a field.
const std::vector<std::string_view> kPlan = {"⟦plan⟧"};

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

void AddAsyncSaveField(FieldSink& sink, Request& request, bool searched) {
  const std::string help =
      "Count the host memory of saves beside the steps: a copy of the rank's states, 12 bytes for "
      "each of its parameters (default off)";
  if (searched) {
    sink.Value(
        {"Run", "⟦async_save⟧", "on|off|auto", help + "; auto: where the answer's hosts have it"},
        request.async_save, OneOf(kWords<AsyncSave>));
  } else {
    sink.Value({"Run", "⟦async_save⟧", "on|off", help}, request.async_save,
               OneOf(kWords<AsyncSave>, 2));
  }
}

void AddPackingField(FieldSink& sink, Request& fields) {
  sink.Value({"Run", "⟦packing⟧", "stream|documents|off",
              "How 'train' is to pack documents; with 'documents' a batch says where each starts, "
              "4 bytes a position, and attention stays within each (default stream; off takes the "
              "same memory)"},
             fields.packing, OneOf(kWords<Packing>));
}

// Of machines that are compared.
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

// The objectives of one plan, and those that compare machines.
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

// What of a PyTorch program's recipe is not torch.compile (planner/torch_recipe.h).
void AddRecipeFields(FieldSink& sink, RuntimeFields& fields) {
  const char* group = "Runtime";
  static const std::string kCodes = AnyOf(WordsOf(kWords<CodeStyle>));
  static const std::string kFloat8s = AnyOf(WordsOf(kWords<TorchFloat8>));
  static const std::string kAttentions = AnyOf(WordsOf(kWords<TorchAttention>));
  sink.Value({group, "⟦code⟧", kCodes.c_str(),
              "Whose modelling code that program trains: transformers' (hf), with Liger's kernels, "
              "or another's (default plain; what ⟦for⟧ writes for: hf, torchtitan)"},
             fields.code, OneOf(kWords<CodeStyle>));
  sink.Value({group, "⟦attn⟧", kAttentions.c_str(),
              "Attention of that code: PyTorch's scaled_dot_product_attention, products and a "
              "softmax, the package flash-attn, or Triton's kernels of 2023 (default sdpa; of "
              "⟦code⟧ composer triton, as its published runs had)"},
             fields.attn, OneOf(kWords<TorchAttention>));
  sink.Value({group, "⟦param_dtype⟧", "fp32|bf16",
              "Dtype in which that program's optimizer holds parameters; bf16 has no masters "
              "(default as the program does; DeepSpeed has keys for it)"},
             fields.param_dtype, OneOf(kParamDtypeWords));
  sink.Value({group, "⟦optim⟧", "NAME",
              fmt::format("Optimizer of that program, as transformers names it: {} (default its "
                          "own AdamW)",
                          fmt::join(WordsOf(kWords<TorchOptimizer>), ", "))},
             fields.optim, OneOf(kWords<TorchOptimizer>));
  sink.Value({group, "⟦float8⟧", kFloat8s.c_str(),
              "With ⟦matmul_dtype⟧ fp8: torchao's recipe in that program, one scale a tensor, the "
              "same with FSDP2's gathers in 8 bits, or one a row (default tensorwise)"},
             fields.float8, OneOf(kWords<TorchFloat8>));
  sink.Flag(group, "⟦optimizer_in_backward⟧",
            "That program updates each parameter in the backward pass, as soon as its gradient is "
            "whole",
            fields.optimizer_in_backward);
  sink.Flag(group, "⟦kbit⟧",
            "With ⟦method⟧ qlora: PEFT's prepare_model_for_kbit_training has cast all but 4-bit "
            "weights to fp32",
            fields.kbit);
  sink.Flag(group, "⟦tiled_mlp⟧",
            "With ⟦runtime⟧ deepspeed: MLPs run by tiles of the tokens (DeepSpeed's TiledMLP, of "
            "ALST)",
            fields.tiled_mlp);
  sink.Flag(group, "⟦expandable_segments⟧",
            "That program's allocator joins what is free "
            "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)",
            fields.expandable_segments);
}

void AddRuntimeFields(FieldSink& sink, RuntimeFields& fields, const char* whose) {
  const char* group = "Runtime";
  static const std::string kType = fmt::format("{}", fmt::join(RuntimeKeys(), "|"));
  sink.Value({group, "⟦runtime⟧", kType.c_str(),
              fmt::format("{}: zeroplan's own executor (default), or another one "
                          "(docs/runtimes.md)",
                          whose)},
             fields.runtime, [](const std::string& text, std::string_view name) {
               return Runtimes()[static_cast<size_t>(ParseWord(text, name, RuntimeKeys()))];
             });
  sink.Value({group, "⟦compile⟧", "layers|all",
              "What that program compiles with torch.compile: layers, or the loss too (default "
              "nothing; with ⟦runtime⟧ deepspeed or fsdp2)"},
             fields.compile, OneOf(kWords<CompileKind>));
  AddRecipeFields(sink, fields);
}

}  // namespace

TorchRecipe RuntimeFields::recipe(std::optional<ConfigFormat> written_for) const {
  TorchRecipe recipe;
  recipe.compile = {compile.has_value(), compile == CompileKind::kAll};
  if (!of().has_programs()) {
    if (written_for == ConfigFormat::kHfTrainer || written_for == ConfigFormat::kAccelerate) {
      recipe.code = CodeStyle::kHf;
    }
    if (written_for == ConfigFormat::kTorchtitan) recipe.code = CodeStyle::kTorchtitan;
  }
  recipe.code = code.value_or(recipe.code);
  if (recipe.code == CodeStyle::kComposer) recipe.attention = TorchAttention::kTriton;
  recipe.attention = attn.value_or(recipe.attention);
  recipe.param_dtype = param_dtype;
  recipe.optimizer = optim;
  recipe.float8 = float8;
  recipe.optimizer_in_backward = optimizer_in_backward;
  recipe.kbit = kbit;
  recipe.offload_activations = offload_activations && !of().has_programs();
  recipe.tiled_mlp = tiled_mlp;
  recipe.expandable_segments = expandable_segments;
  return recipe;
}

std::string_view RuntimeFields::first_of_recipe() const {
  if (compile) return "compile";
  if (code) return "code";
  if (attn) return "attn";
  if (param_dtype) return "param_dtype";
  if (optim) return "optim";
  if (float8) return "float8";
  if (optimizer_in_backward) return "optimizer_in_backward";
  if (kbit) return "kbit";
  if (tiled_mlp) return "tiled_mlp";
  return expandable_segments ? "expandable_segments" : "";
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

void FieldSink::Flag(const char* group, const char* name, const std::string& help, bool& value) {
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
  AddBatchFields(sink, request.batch);
  AddChoiceFields(sink, request, /*all_default=*/true);
  AddDeterministicField(sink, request);
  AddAsyncSaveField(sink, request, /*searched=*/false);
  AddPackingField(sink, request);
  AddGoalFields(sink, request.goal);
  AddDataFields(sink, request.goal.data);
  AddRuntimeFields(sink, request.runtime, "Program whose memory and time are estimated");
}

void AddRunFields(FieldSink& sink, Request& request) {
  AddModelFields(sink, request.model);
  AddClusterFields(sink, request);
  AddBatchFields(sink, request.batch);
  AddChoiceFields(sink, request, /*all_default=*/true);
  AddRuntimeFields(sink, request.runtime, "Program that trained");
}

void AddPlanFields(FieldSink& sink, PlanRequest& request) {
  Request& common = request.common;
  AddModelFields(sink, common.model, &request.compared);
  AddClusterFields(sink, common, &request.machines);
  AddBatchFields(sink, common.batch, /*searched=*/true);
  AddChoiceFields(sink, common, /*all_default=*/true, /*searched=*/true);
  AddDeterministicField(sink, common);
  AddAsyncSaveField(sink, common, /*searched=*/true);
  AddPackingField(sink, common);
  FieldInfo largest = {"Search", "⟦largest⟧", "model|seq-len|micro-batch",
                       "Find the largest that fits, and plan it: a model of the shape of ⟦family⟧ "
                       "(the default), or the sequence or micro-batch of a given model"};
  largest.alone = "model";
  sink.Value(largest, request.largest, WordIn<Largest>({"model", "seq-len", "micro-batch"}));
  AddGoalFields(sink, common.goal);
  AddMachineFields(sink, request.machines);
  AddDataFields(sink, common.goal.data);
  AddRuntimeFields(sink, common.runtime, "Program to plan for");
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
             "Family of the shape that ⟦params⟧ derives: gpt2, llama, mistral, qwen2 or qwen3 "
             "(default gpt2)"},
            fields.family, KnownFamilies);
  sink.Text({group, "⟦freeze⟧", "PATTERN,...",
             "Tensors that are not trained, by their names in published weights, such as "
             "'model.embed_tokens.*,model.layers.[0-3].*' (default: all are trained)"},
            fields.freeze);
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

void AddBatchFields(FieldSink& sink, BatchFields& fields, bool searched, bool trains) {
  const std::string one = trains     ? " (default: chosen as plan does; 1 on the CPU)"
                          : searched ? " (default: searched)"
                                     : " (default 1)";
  const char* group = "Batch and precision";
  const auto sequences = WholeIn<int64_t>(1, kMaxBatch);
  sink.Value({group, "⟦seq_len⟧", "TOKENS",
              "Tokens of a sequence (default: the model's longest, at most 4096; 1024 with "
              "⟦params⟧)",
              kPlan},
             fields.seq_len, sequences);
  sink.Value(
      {group, "⟦micro_batch⟧", "SEQUENCES",
       "Sequences of one GPU in a micro-step" + one + "; more is faster and takes more activations",
       kPlan},
      fields.micro_batch, sequences);
  sink.Value({group, "⟦grad_accum⟧", "COUNT", "Micro-steps of an optimizer step" + one, kPlan},
             fields.grad_accum, sequences);
  sink.Value(
      {group, "⟦global_batch⟧", "SEQUENCES",
       "Sequences of an optimizer step over all GPUs: micro-batch x grad-accum x gpus; if one of "
       "the two is given, the other follows" +
           std::string(trains ? "; alone, both are chosen (on the CPU grad-accum is 1); default "
                                "on GPUs: 32, where no batch is given"
                       : searched ? "; alone, both are searched"
                                  : ", alone it means grad-accum 1"),
       kPlan},
      fields.global_batch, sequences);
  sink.Value({group, "⟦global_batch_tokens⟧", "TOKENS",
              "⟦global_batch⟧ in tokens, such as 4194304; a whole number of sequences for each GPU",
              kPlan},
             fields.global_batch_tokens, WholeIn<int64_t>(1, int64_t{1} << 62));
  sink.Value(
      {group, "⟦dtype⟧", "bf16|fp16|fp32",
       "Precision of parameters and compute (default: the config's; without one bf16 where the GPU "
       "has it, else fp16; on the CPU fp32)",
       kPlan},
      fields.dtype, ParseDtype);
  sink.Value({group, "⟦grad_accum_dtype⟧", "bf16|fp16|fp32",
              "Precision in which gradients are summed over micro-steps: ⟦dtype⟧, or fp32, which "
              "takes 2 more bytes of each (default ⟦dtype⟧)",
              kPlan},
             fields.grad_accum_dtype, ParseDtype);
  sink.Value({group, "⟦communication_dtype⟧", "bf16|fp16|fp32",
              "Precision in which GPUs reduce gradients: ⟦dtype⟧, or fp32 for twice the bytes "
              "sent (default: the gradients' own)",
              kPlan},
             fields.communication_dtype, ParseDtype);
  sink.Value({group, "⟦master_weights⟧", "fp32|split|16bit",
              "What a run of 16 bits keeps of each parameter for its updates: an fp32 number; the "
              "same in two halves, of which a bf16 parameter is one; or the parameter's own 16 "
              "bits, rounded stochastically (default: the config's, else fp32)",
              kPlan},
             fields.master_weights, OneOf(kWords<MasterWeights>));
  sink.Value({group, "⟦optimizer_states⟧", "fp32|bf16|8bit",
              "What Adam's two moments are kept in (default: the config's, else fp32)", kPlan},
             fields.optimizer_states, OneOf(kMomentWords));
  sink.Value({group, "⟦matmul_dtype⟧", "fp8|bf16|fp16|fp32",
              "What the linears of layers multiply in, forward and backward: FP8, on GPUs from "
              "compute capability 8.9 on, or ⟦dtype⟧ (default: the config's, else ⟦dtype⟧)",
              kPlan},
             fields.matmul_dtype, OneOf(kMatmulWords));
  sink.Value({group, "⟦fp8_recipe⟧", "tensor|blocks",
              "What has a scale of its own in FP8: a tensor; or 128 numbers of activations and "
              "gradients, and 128 x 128 of weights (default: the config's, else tensor)",
              kPlan},
             fields.fp8_recipe, OneOf(kWords<Fp8Recipe>));
  sink.Value({group, "⟦fp8_gradients⟧", "e4m3|e5m2",
              "What gradients of activations are rounded to in FP8; e5m2 has the wider range and "
              "coarser steps (default: the config's, else e4m3)",
              kPlan},
             fields.fp8_gradients, OneOf(kFp8GradientWords));
}

void AddDeterministicField(FieldSink& sink, Request& fields) {
  sink.Flag("Run", "⟦deterministic⟧",
            "Give the same results from run to run on a GPU too, with a slower backward pass of "
            "attention and matrix products that are not tuned; the CPU always does",
            fields.deterministic);
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
