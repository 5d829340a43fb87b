// torchtitan: the keys of its TOML, which releases up to 0.2.2 read. It names a model and a flavour
// of it, and takes dimensions from there.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/base/strings.h"
#include "core/settings/setup_facts.h"
#include "planner/formats/format_parts.h"
#include "planner/program_options.h"

namespace zeroplan {
namespace {

// The option of torchtitan for a field, and its key within its section of the TOML.
consteval std::string_view TitanOption(std::string_view field, std::string_view text = "") {
  return OptionName(OtherProgram::kTorchtitan, field, text);
}
consteval std::string_view TitanKey(std::string_view field, std::string_view text = "") {
  const std::string_view option = TitanOption(field, text);
  return option.substr(option.find('.') + 1);
}

// Of torchtitan's models, all with 8 heads of keys and values.
struct Flavor {
  bool qk_norm;
  int64_t layers, hidden, vocab;
  std::string_view name, flavor;
};

constexpr std::array<Flavor, 9> kFlavors = {{{false, 32, 4096, 128256, "llama3", "8B"},
                                             {false, 80, 8192, 128256, "llama3", "70B"},
                                             {false, 126, 16384, 128256, "llama3", "405B"},
                                             {true, 28, 1024, 151936, "qwen3", "0.6B"},
                                             {true, 28, 2048, 151936, "qwen3", "1.7B"},
                                             {true, 36, 2560, 151936, "qwen3", "4B"},
                                             {true, 36, 4096, 151936, "qwen3", "8B"},
                                             {true, 40, 5120, 151936, "qwen3", "14B"},
                                             {true, 64, 5120, 151936, "qwen3", "32B"}}};

const Flavor* FlavorOf(const ModelSpec& model) {
  const auto* found = std::find_if(kFlavors.begin(), kFlavors.end(), [&](const Flavor& flavor) {
    return flavor.qk_norm == model.qk_norm && model.kv_heads == 8 &&
           flavor.layers == model.layers && flavor.hidden == model.hidden &&
           flavor.vocab == model.vocab;
  });
  return found == kFlavors.end() ? nullptr : found;
}

std::string Training(const TrainSetup& setup) {
  const BatchSpec& batch = setup.batch;
  std::string text = "\n[training]\n";
  text +=
      fmt::format("{} = {}\nglobal_batch_size = {}\n{} = {}\n", TitanKey("⟦micro_batch⟧"),
                  batch.micro_batch, batch.global_batch(), TitanKey("⟦seq_len⟧"), batch.seq_len);
  // Parameters, gradients and states; what computes is cast from them.
  text += "dtype = \"float32\"\n";
  text += fmt::format("mixed_precision_param = \"{}\"\nmixed_precision_reduce = \"float32\"\n",
                      setup.precision.dtype == Dtype::kF32 ? "float32" : "bfloat16");
  text += fmt::format("{} = {}\n", TitanKey("⟦offload_param⟧", "cpu"),
                      setup.zero.offload_param.device == OffloadDevice::kCpu);
  return text;
}

std::string Parallelism(const TrainSetup& setup) {
  const int group = ShardRanks(setup.zero, setup.batch.world_size);
  const int shared = setup.batch.sequence_ranks;
  return fmt::format(
      "\n[parallelism]\ndata_parallel_replicate_degree = {}\ndata_parallel_shard_degree = {}\n"
      "{} = \"{}\"\ntensor_parallel_degree = 1\n"
      "pipeline_parallel_degree = 1\n{} = {}\n{}",
      setup.batch.world_size / group, group / shared, TitanKey("⟦stage⟧"),
      ValueForText(TitanOption("⟦stage⟧"), setup.zero.stage == 3 ? "3" : "2"),
      TitanKey("⟦sequence_ranks⟧"), shared,
      shared > 1 ? "context_parallel_rotate_method = \"allgather\"\n" : "");
}

// early_stop: as torch.utils.checkpoint does by itself; torchtitan's default is not to.
std::string Recompute(RecomputeKind kind) {
  const std::string_view said = kind == RecomputeKind::kNone   ? "none"
                                : kind == RecomputeKind::kFull ? "full"
                                                               : "selective";
  constexpr std::string_view kOption = TitanOption("⟦checkpointing⟧");
  std::string text = fmt::format("\n[activation_checkpoint]\n{} = \"{}\"\n",
                                 TitanKey("⟦checkpointing⟧"), ValueForText(kOption, said));
  if (kind == RecomputeKind::kSelective) text += "selective_ac_option = \"op\"\n";
  if (kind != RecomputeKind::kNone) text += "early_stop = true\n";
  return text;
}

std::string Compile(TorchCompile compile) {
  std::string text =
      fmt::format("\n[compile]\n{} = {}\n", TitanKey("⟦compile⟧", "all"), compile.layers);
  if (compile.layers) {
    text += fmt::format("components = [{}]\n", compile.loss ? "\"model\", \"loss\"" : "\"model\"");
  }
  return text;
}

// Beside "converters" of [model]. torchtitan lets nobody name a recipe that gathers in 8 bits.
std::string Float8(TorchFloat8 float8) {
  std::string text = "\n[quantize.linear.float8]\nfilter_fqns = [\"output\"]\n";
  if (float8 == TorchFloat8::kRowwise) return text + "recipe_name = \"rowwise\"\n";
  const bool gathers = float8 == TorchFloat8::kTensorwiseGathers;
  return text + fmt::format(
                    "enable_fsdp_float8_all_gather = {}\n"
                    "precompute_float8_dynamic_scale_for_fsdp = {}\n",
                    gathers, gathers);
}

std::string Toml(const FormatRequest& request, const Flavor* flavor) {
  const TrainSetup& setup = request.setup;
  std::string text = HeadComment(request, "torchtitan 0.2.2");
  text += fmt::format("[job]\ndescription = {}\n",
                      Quoted(fmt::format("{}, FSDP2, planned by zeroplan", ModelName(request))));
  const std::optional<TorchFloat8> float8 = Float8Of(setup.precision, request.recipe);
  if (flavor != nullptr || float8) text += "\n[model]\n";
  if (flavor != nullptr) {
    text += fmt::format("name = \"{}\"\nflavor = \"{}\"\n", flavor->name, flavor->flavor);
  }
  if (float8) text += "converters = [\"quantize.linear.float8\"]\n" + Float8(*float8);
  text += Training(setup) + Parallelism(setup);
  text += Recompute(setup.recompute.kind);
  text += Compile(request.recipe.compile);
  const TorchRecipe& recipe = request.recipe;
  text +=
      fmt::format("\n[optimizer]\nname = \"AdamW\"\n{} = \"{}\"\n", TitanKey("⟦optim⟧"),
                  ValueForText(TitanOption("⟦optim⟧"), TorchOptimizerName(recipe.UsedOptimizer())));
  if (recipe.optimizer_in_backward) {
    text += fmt::format("{} = true\n", TitanKey("⟦optimizer_in_backward⟧", "true"));
  }
  if (setup.deterministic) text += "\n[debug]\ndeterministic = true\n";
  return text;
}

}  // namespace

WrittenConfig WriteTorchtitan(const FormatRequest& request) {
  const Flavor* flavor = FlavorOf(request.model);
  WrittenConfig out;
  out.files.push_back({request.file, Toml(request, flavor)});
  out.launch =
      fmt::format("{}{} -m torchtitan.train --job.config_file {}", AllocatorVariable(request),
                  TorchrunLaunch(request.cluster), ShellWord(request.file));
  if (flavor == nullptr) {
    out.notes.push_back(
        fmt::format("torchtitan 0.2.2 has no model of the shape of {}, and the file names none: "
                    "add the name and flavor of yours to [model]. Without it torchtitan trains "
                    "its debug model.",
                    request.model.name));
  }
  out.notes.emplace_back(
      "Data, tokenizer, steps, learning rate, decay, clipping and schedule are no part of the "
      "plan: torchtitan's own hold, or the keys that you add.");
  out.notes.emplace_back(
      "torchtitan 0.3 reads no TOML: there the same keys of training, parallelism and compile are "
      "options (--training.local_batch_size ...).");
  if (Float8Of(request.setup.precision, request.recipe)) {
    out.notes.emplace_back(
        "FP8 wants torchao. torchtitan 0.3 has its rowwise recipes alone (Float8LinearConverter).");
  }
  out.notes.emplace_back(
      "torchtitan shards the embedding and the head as groups of their own; the plan counts them "
      "as one.");
  return out;
}

}  // namespace zeroplan
