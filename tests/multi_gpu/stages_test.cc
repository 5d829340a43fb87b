// ZeRO over NCCL, one process a GPU: each stage and offload follows stage 0 on one GPU, loss by
// loss and gradient by gradient, with the planned bytes.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "core/config/deepspeed_reader.h"
#include "core/lowering/lower.h"
#include "machine/detect.h"
#include "tests/multi_gpu/gpu_training.h"

namespace zeroplan {
namespace {

constexpr int kSteps = 20;
constexpr int kGlobalBatch = kReferenceBatch;

int MostGpus() { return std::min(static_cast<int>(QueryGpus().size()), kGlobalBatch); }

struct Choice {
  std::string name, options;
  int grad_accum = 1;
  int sequence_ranks = 1;
};

// A config whose gradients are cut by the borders of small buckets, so that no equal parts can be
// scattered, and whose parameters are gathered by a broadcast from each owner.
std::string OwnersConfig(const TrainingFolder& folder, int stage, const std::string& dtype) {
  const std::string file = folder.path(fmt::format("owners-{}-{}.json", stage, dtype));
  std::ofstream(file) << fmt::format(
      R"({{"bf16": {{"enabled": {}}}, "gradient_clipping": 1.0,
        "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-3, "betas": [0.9, 0.999],
                      "weight_decay": 0}}}},
        "zero_optimization": {{"stage": {}, "reduce_bucket_size": 5000,
                              "allgather_partitions": false}}}})",
      dtype == "bf16", stage);
  return file;
}

std::set<CollectiveKind> CollectivesOf(const ModelSpec& model, const TrainSetup& setup) {
  LowerOptions lower;
  lower.backend = Backend::kCuda;
  const Program program = Lower(model, setup, lower);
  std::set<CollectiveKind> kinds;
  for (const auto& section : program.sections) {
    for (const Instruction& instruction : section) {
      if (const auto* collective = std::get_if<Collective>(&instruction.op)) {
        kinds.insert(collective->kind);
      }
    }
  }
  return kinds;
}

std::vector<Choice> Choices(const TrainingFolder& folder, int gpus, const std::string& dtype) {
  std::vector<Choice> all;
  for (const std::string stage : {"0", "1", "2", "3"}) {
    all.push_back({"stage" + stage, "--stage " + stage});
    all.push_back({"stage" + stage + "-accum", "--stage " + stage, 2});
    if (stage != "0") {
      all.push_back({"stage" + stage + "-cpu", "--stage " + stage + " --offload-optimizer cpu"});
    }
  }
  const std::string nvme = " --nvme-path " + folder.path("");
  all.push_back({"stage2-half", "--stage 2 --offload-optimizer cpu --offload-ratio 0.5"});
  all.push_back({"stage2-nvme", "--stage 2 --offload-optimizer nvme" + nvme});
  all.push_back({"stage2-cpu-accum", "--stage 2 --offload-optimizer cpu", 2});
  all.push_back({"stage3-params", "--stage 3 --offload-optimizer cpu --offload-param cpu"});
  all.push_back({"stage3-nvme", "--stage 3 --offload-optimizer nvme --offload-param nvme" + nvme});
  all.push_back(
      {"stage3-params-accum", "--stage 3 --offload-optimizer cpu --offload-param cpu", 2});
  all.push_back({"stage3-full", "--stage 3 --checkpointing full"});
  all.push_back({"stage3-selective", "--stage 3 --checkpointing selective"});
  all.push_back({"stage2-deterministic", "--stage 2 --deterministic"});
  if (dtype == "bf16") {
    all.push_back({"stage1-fp32-sums", "--stage 1 --grad-accum-dtype fp32", 2});
    all.push_back({"stage2-fp32-reduction", "--stage 2 --communication-dtype fp32", 2});
    all.push_back({"stage3-fp32-reduction", "--stage 3 --communication-dtype fp32"});
  }
  for (const int stage : {1, 2}) {
    const std::string config = OwnersConfig(folder, stage, dtype);
    ReadContext context;
    context.world_size = gpus;
    context.micro_batch = kGlobalBatch / gpus;
    context.seq_len = folder.model().positions;
    const std::set<CollectiveKind> kinds =
        CollectivesOf(folder.model(), ReadDeepSpeedConfigFile(config, context).setup);
    REQUIRE(kinds.contains(CollectiveKind::kReduceToOwners));
    REQUIRE(kinds.contains(CollectiveKind::kBroadcast));
    all.push_back({fmt::format("owners{}", stage), "--config " + config});
    all.push_back({fmt::format("owners{}-accum", stage), "--config " + config, 2});
  }
  return all;
}

// How far a run may be from the reference.
struct Bounds {
  double loss, moments;
};

struct Reference {
  const TrainingFolder& folder;
  Curve curve;
  Bounds bounds;
};

void CheckRun(const Reference& reference, const std::string& name, int code,
              const std::string& output) {
  CAPTURE(name);
  CAPTURE(output);
  REQUIRE(code == 0);
  const double loss = Farthest(reference.folder.Losses(name), reference.curve.losses);
  INFO("losses are off by ", loss);
  CHECK(loss <= reference.bounds.loss);
  const double moments =
      testing::FarthestTensor(reference.folder.Moments(name), reference.curve.moments);
  INFO("first moments are off by ", moments);
  CHECK(moments <= reference.bounds.moments);
  const nlohmann::json end = reference.folder.LastLine(name);
  REQUIRE(end["event"] == "end");
  CHECK(end["high_water_bytes"] == end["planned_arena_bytes"]);
  // What is said where attention is not cuDNN's.
  CHECK((output.find("plain kernels") != std::string::npos) == name.starts_with("fp32"));
}

void CheckAll(const Reference& reference, int gpus, const std::string& dtype,
              const std::vector<Choice>& choices) {
  std::vector<AskedTraining> asked;
  for (const Choice& choice : choices) {
    const std::string name = fmt::format("{}-{}gpus-{}", dtype, gpus, choice.name);
    const std::string options =
        fmt::format("{} --dtype {} --gpus {} --micro-batch {} --grad-accum {}", choice.options,
                    dtype, gpus, kGlobalBatch * choice.sequence_ranks / gpus / choice.grad_accum,
                    choice.grad_accum) +
        reference.folder.SaveOptions(name);
    asked.push_back({name, reference.folder.Train(name, options, kSteps)});
  }
  RunTogether(reference.folder, gpus, asked,
              [&](const std::string& name, int code, const std::string& output) {
                CheckRun(reference, name, code, output);
              });
}

TEST_CASE("fp32: stages and offloads on several GPUs follow stage 0 on one") {
  const TrainingFolder folder;
  // Sums over ranks in other orders: about 1e-7 of a gradient, carried on by AdamW for 20 steps. A
  // gradient lost, doubled or a step late moves a tensor's moments by about half
  // (tests/executor/engine/lost_gradient_test.cc).
  const Reference reference{folder, StageZeroAlone(folder, "fp32", kSteps), {1e-5, 1e-3}};
  for (int gpus = 2; gpus <= MostGpus(); gpus *= 2) {
    CheckAll(reference, gpus, "fp32", Choices(folder, gpus, "fp32"));
  }
}

// Every choice rounds gradients once more or less, and so lies as far from fp32 as stage 0 in bf16
// does: two such are at most twice that apart.
Reference CoarseReference(const TrainingFolder& folder) {
  const Curve exact = StageZeroAlone(folder, "fp32", kSteps);
  Curve coarse = StageZeroAlone(folder, "bf16", kSteps);
  const Bounds noise{Farthest(coarse.losses, exact.losses),
                     testing::FarthestTensor(coarse.moments, exact.moments)};
  REQUIRE(noise.loss < 0.01);
  REQUIRE(noise.moments < 0.15);  // a lost gradient would be lost in more
  return {folder, std::move(coarse), {2 * noise.loss, 2 * noise.moments}};
}

TEST_CASE("bf16: stages and offloads on several GPUs follow stage 0 on one within bf16's noise") {
  const TrainingFolder folder;
  const Reference reference = CoarseReference(folder);
  for (int gpus = 2; gpus <= MostGpus(); gpus *= 2) {
    CheckAll(reference, gpus, "bf16", Choices(folder, gpus, "bf16"));
  }
}

// Two groups of two.
std::vector<Choice> GroupChoices() {
  std::vector<Choice> all;
  const auto add = [&](const std::string& name, const std::string& options) {
    const std::string grouped = options + " --shard-group 2";
    all.push_back({name, grouped});
    all.push_back({name + "-accum", grouped, 2});
  };
  for (const std::string stage : {"1", "2", "3"}) {
    for (const std::string across : {"replicate", "optimizer", "gradients"}) {
      if (stage == "1" && across == "gradients") continue;
      const std::string options = "--stage " + stage + " --across-groups " + across;
      add("stage" + stage + "-" + across, options);
      add("stage" + stage + "-" + across + "-cpu", options + " --offload-optimizer cpu");
    }
  }
  add("stage3-params", "--stage 3 --offload-optimizer cpu --offload-param cpu");
  add("stage3-deterministic", "--stage 3 --across-groups gradients --deterministic");
  return all;
}

TEST_CASE("fp32: shard groups of four GPUs follow stage 0 on one") {
  if (MostGpus() < 4) {
    MESSAGE("skipped: needs four GPUs");
    return;
  }
  const TrainingFolder folder;
  const Reference reference{folder, StageZeroAlone(folder, "fp32", kSteps), {1e-5, 1e-3}};
  CheckAll(reference, 4, "fp32", GroupChoices());
}

TEST_CASE("bf16: shard groups of four GPUs follow stage 0 on one within bf16's noise") {
  if (MostGpus() < 4) {
    MESSAGE("skipped: needs four GPUs");
    return;
  }
  const TrainingFolder folder;
  const Reference reference = CoarseReference(folder);
  std::vector<Choice> choices = GroupChoices();
  choices.push_back(
      {"stage3-fp32-reduction", "--stage 3 --shard-group 2 --communication-dtype fp32", 2});
  choices.push_back({"stage1-fp32-sums",
                     "--stage 1 --shard-group 2 --across-groups optimizer --grad-accum-dtype fp32",
                     2});
  CheckAll(reference, 4, "bf16", choices);
}

TEST_CASE("bf16: 1024 tokens and heads of 128, by cuDNN's kernels, follow stage 0 on one GPU") {
  const TrainingFolder folder(TrainedModel::kLong);
  const Reference reference = CoarseReference(folder);
  for (int gpus = 2; gpus <= MostGpus(); gpus *= 2) {
    CheckAll(reference, gpus, "bf16",
             {{"stage0", "--stage 0"},
              {"stage1-accum", "--stage 1", 2},
              {"stage2-cpu-accum", "--stage 2 --offload-optimizer cpu", 2},
              {"stage2-deterministic", "--stage 2 --deterministic"},
              {"stage3", "--stage 3"},
              {"stage3-full-accum", "--stage 3 --checkpointing full", 2}});
  }
}

// `more`: members of _zeroplan; offload: of optimizer and parameters.
Choice SharedSequences(const TrainingFolder& folder, const std::string& dtype, int ranks, int stage,
                       bool offload, const std::string& more = "{}", int grad_accum = 1) {
  const std::string name =
      fmt::format("shared{}-stage{}{}-accum{}", ranks, stage, offload ? "-cpu" : "", grad_accum);
  nlohmann::json config = {
      {"bf16", {{"enabled", dtype == "bf16"}}},
      {"gradient_clipping", 1.0},
      {"optimizer",
       {{"type", "AdamW"},
        {"params", {{"lr", 1e-3}, {"betas", {0.9, 0.999}}, {"weight_decay", 0}}}}},
      {"zero_optimization", {{"stage", stage}}},
      {"sequence_parallel_size", ranks},
      {"_zeroplan", nlohmann::json::parse(more)}};
  if (offload) {
    config["zero_optimization"]["offload_optimizer"] = {{"device", "cpu"}};
    if (stage == 3) config["zero_optimization"]["offload_param"] = {{"device", "cpu"}};
  }
  const std::string file = folder.path(dtype + name + ".json");
  std::ofstream(file) << config;
  return {name, "--config " + file, grad_accum, ranks};
}

// Four heads of queries, two of keys and values: at four ranks each of these is on two.
void CheckSharedSequences(const std::string& dtype) {
  const TrainingFolder folder(TrainedModel::kLong);
  const Reference reference =
      dtype == "bf16" ? CoarseReference(folder)
                      : Reference{folder, StageZeroAlone(folder, "fp32", kSteps), {1e-5, 1e-3}};
  for (int gpus = 2; gpus <= MostGpus(); gpus *= 2) {
    std::vector<Choice> choices;
    for (int ranks = 2; ranks <= std::min(gpus, 4); ranks *= 2) {
      for (const int stage : {0, 1, 2, 3}) {
        choices.push_back(SharedSequences(folder, dtype, ranks, stage, stage >= 2));
      }
      choices.push_back(
          SharedSequences(folder, dtype, ranks, 3, false,
                          R"({"checkpointing": "products", "offload_activations": true})", 2));
    }
    CheckAll(reference, gpus, dtype, choices);
  }
}

TEST_CASE("fp32: GPUs that share sequences follow stage 0 on one") { CheckSharedSequences("fp32"); }

TEST_CASE("bf16: GPUs that share sequences follow stage 0 on one within bf16's noise") {
  CheckSharedSequences("bf16");
}

TEST_CASE("fp32: adapters at every stage on several GPUs follow stage 0 on one") {
  const TrainingFolder folder(TrainedModel::kLong);
  const auto asked = [&](const std::string& name, const std::string& options, int gpus) {
    return AskedTraining{
        name, folder.Train(name,
                           fmt::format("--dtype fp32 --lora-rank 8 {} --gpus {} --micro-batch {}",
                                       options, gpus, kGlobalBatch / gpus),
                           kSteps)};
  };
  const auto checked = [&](const std::string& name, int code, const std::string& output) {
    CAPTURE(name);
    CAPTURE(output);
    REQUIRE(code == 0);
    const nlohmann::json end = folder.LastLine(name);
    CHECK(end["high_water_bytes"] == end["planned_arena_bytes"]);
    CHECK(folder.Losses(name).size() == static_cast<size_t>(kSteps));
    const std::string method = name.substr(0, name.find('-'));
    CHECK(Farthest(folder.Losses(name), folder.Losses(method + "-reference")) <= 1e-5);
  };
  const std::vector<std::string> of_lora = {
      "--stage 0", "--stage 1 --offload-optimizer cpu", "--stage 2",
      "--stage 3 --checkpointing full", "--stage 3 --offload-optimizer cpu --offload-param cpu"};
  const std::vector<std::string> of_qlora = {"--stage 1", of_lora[3], of_lora[4]};
  std::vector<AskedTraining> references, all;
  for (const std::string method : {"lora", "qlora"}) {
    const std::string of_method = "--method " + method + " ";
    references.push_back(asked(method + "-reference", of_method + "--stage 0", 1));
    for (const std::string& choice : method == "lora" ? of_lora : of_qlora) {
      all.push_back(asked(fmt::format("{}-{}", method, all.size()), of_method + choice, 2));
    }
  }
  RunTogether(folder, 1, references, checked);
  RunTogether(folder, 2, all, checked);
}

}  // namespace
}  // namespace zeroplan
