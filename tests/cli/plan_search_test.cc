// plan as a user runs it: what it answers, writes and refuses.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/config/deepspeed_reader.h"
#include "core/config/deepspeed_writer.h"
#include "core/families/load_model.h"
#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/planner/plan_fixture.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using OrderedJson = nlohmann::ordered_json;
namespace fs = std::filesystem;

class ModelFolder : public TempDir {
 public:
  // The tiny model's config.json.
  std::string Model() const {
    std::ofstream(path("config.json")) << WriteHuggingFaceConfig(SmallModel());
    return path("config.json");
  }
};

// Paragraphs are wrapped with a hanging indent.
std::string JoinParagraphs(const std::string& text) {
  std::string flat;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 3, "\n  ") == 0 && i + 3 < text.size() && text[i + 3] != ' ') {
      flat += ' ';
      i += 2;
    } else {
      flat += text[i];
    }
  }
  return flat;
}

TEST_CASE("plan: 10B on one 32 GB GPU fits with the optimizer on the host, and says why") {
  const RunResult run = RunZeroplan("plan --explain --model gpt2-10b --gpu-memory 32GB");
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const std::string text = JoinParagraphs(run.out);
  const size_t at = text.find("Chosen: stage ");
  REQUIRE(at != std::string::npos);
  const std::string chosen = text.substr(at, text.find('\n', at) - at);
  CAPTURE(chosen);
  CHECK((chosen[14] == '2' || chosen[14] == '3'));
  CHECK((chosen.find("optimizer on cpu") != std::string::npos ||
         chosen.find("optimizer and parameters on cpu") != std::string::npos));
  CHECK(Has(text, wording::kStageDoesNotFit));
  CHECK(Has(text, wording::kStageDoesNotFit2));
  CHECK(Has(text, wording::kGpuMemoryShortBy));
  CHECK(Has(text, "% slower: "));
  CHECK(Has(text, wording::kOfGbGpu));
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
}

TEST_CASE("plan opens with the machine and a table, and leaves zeros out") {
  const RunResult run = RunZeroplan(
      "plan --explain --quick --model llama3.1-8b --hw rtx6000-ada --checkpointing all");
  CHECK(run.out.starts_with(
      "llama3.1-8b: 8.03B parameters, sequence 4096, bf16\n"
      "1 x NVIDIA RTX 6000 Ada Generation, one node, 50.9 GB (47.4 GiB) a GPU, 137 GB of host "
      "memory a node\n\n"));
  CHECK(Has(run.out, wording::kZeroOptParamRecompBatch));
  CHECK(run.out.find("\n> ") < run.out.find("\nChosen: "));
  CHECK(Lacks(run.out, " 0.00 %"));
  CHECK(Has(JoinParagraphs(run.out), wording::kBatchSearchedAtMostSequences));
  const RunResult nodes =
      RunZeroplan("plan --explain --quick --model gpt2-xl --hw dgx-h100 --gpus 16");
  CHECK(Has(JoinParagraphs(nodes.out), wording::kNodesOfGbGibGpu));
}

TEST_CASE("plan: V100s in fp16, without the offload being asked for") {
  for (const char* model : {"gpt2-10b", "gpt3-13b"}) {
    const RunResult run =
        RunZeroplan(std::string("plan --explain --quick --hw dgx-2 --gpus 1 --model ") + model);
    CAPTURE(run.err);
    CHECK(run.exit_code == 0);
    CHECK(Has(run.out, wording::kFpNvidiaSxmGb));
    CHECK(Has(JoinParagraphs(run.out), "on cpu"));
  }
}

TEST_CASE("plan: no stage's best is faster than what is called the fastest") {
  for (const char* machine : {"--params 3B --hw 2x-rtx3090 --gpus 2 --host-memory 64GB",
                              "--params 30B --hw dgx-h100 --gpus 64 --seq-len 4096 --network "
                              "ib-400 --global-batch 512"}) {
    CAPTURE(machine);
    const RunResult run = RunZeroplan(std::string("plan --quick --format json ") + machine);
    REQUIRE(run.exit_code == 0);
    const OrderedJson json = OrderedJson::parse(run.out);
    const double step = json["predicted"]["step_seconds"]["total"];
    for (const OrderedJson& stage : json["stages"]) {
      CAPTURE(stage["stage"].get<int>());
      if (!stage["fits"]) continue;
      CHECK(stage["lost_seconds"]["total"].get<double>() >= -step * kTieMargin);
    }
  }
}

// DGX H100 whose kernels and collectives slow each other down little: what waits is seen.
std::string WriteSlightOverlap(const TempDir& folder) {
  OrderedJson profile =
      OrderedJson::parse(std::ifstream(SourcePath("hwprofiles/profiles/dgx-h100.json")));
  profile["link"] = "nvlink4";
  std::string file = folder.path("dgx-h100.json");
  std::ofstream(file) << profile;
  return file;
}

TEST_CASE("plan: gathers run ahead where two layers are more than 1e9 parameters") {
  const TempDir folder;
  const RunResult run = RunZeroplan(
      "plan --quick --format json --params 70B --gpus 64 --seq-len 4096 --network ib-400 "
      "--global-batch 1024 --checkpointing all --hw " +
      WriteSlightOverlap(folder));
  REQUIRE(run.exit_code == 0);
  const OrderedJson json = OrderedJson::parse(run.out);
  CHECK(json["predicted"]["tokens_per_second"].get<double>() > 75'000);
  CHECK(json["config"]["zero_optimization"]["stage3_max_live_parameters"].get<double>() > 1.5e9);
  const OrderedJson& seconds = json["predicted"]["step_seconds"];
  CHECK(seconds["exposed_comm"].get<double>() < 0.05 * seconds["total"].get<double>());
}

TEST_CASE("estimate: reductions of one micro-step run beside the next one") {
  const TempDir folder;
  const std::string hardware = WriteSlightOverlap(folder);
  auto exposed = [&](int stage, int micro_steps) {
    const RunResult run = RunZeroplan(
        "estimate --format json --params 13B --gpus 64 --network ib-400 --seq-len 4096 "
        "--micro-batch 4 --checkpointing full --offload-optimizer none --hw " +
        hardware + " --stage " + std::to_string(stage) + " --grad-accum " +
        std::to_string(micro_steps));
    REQUIRE(run.exit_code == 0);
    return OrderedJson::parse(run.out)["choices"][0]["step_seconds"]["exposed_comm"].get<double>();
  };
  // It was 2.30 s where each micro-step waited for its own.
  CHECK(exposed(2, 4) < 2 * exposed(2, 1));
  CHECK(exposed(1, 4) == doctest::Approx(exposed(1, 1)).epsilon(0.01));
}

TEST_CASE("plan --runtime zeroplan --out: a config that config check takes and DeepSpeed can run") {
  const ModelFolder folder;
  const std::string file = folder.path("ds.json");
  for (const auto& [choice, gpus] :
       {std::pair{"--model gpt2-medium --hw dgx-2 --gpus 4 --gpu-memory 9GB --global-batch 64", 4},
        {"--model gpt2 --gpus 2 --global-batch 64", 2},
        {"--model gpt2 --gpus 2 --stage 3 --offload-optimizer nvme --global-batch 16", 2}}) {
    CAPTURE(choice);
    const RunResult run =
        RunZeroplan(std::string("plan --quick --runtime zeroplan ") + choice + " --out " + file);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    CHECK(Has(run.err, wording::kDeepspeedConfigByZeroplanOwn));
    CHECK(OrderedJson::parse(ReadWhole(file))["_zeroplan"]["runtime"] == "zeroplan");
    const RunResult check = RunZeroplan("config check " + file + " --gpus " + std::to_string(gpus));
    CAPTURE(check.err);
    CHECK(check.exit_code == 0);
    ReadContext context;
    context.world_size = gpus;
    context.seq_len = 1024;
    CHECK(DeepSpeedCannot(ReadDeepSpeedConfigFile(file, context).setup).empty());
  }
}

TEST_CASE("plan: where states go to disk, the files name a folder and a line says so") {
  const ModelFolder folder;
  const RunResult run = RunZeroplan(
      "plan --quick --runtime zeroplan --model gpt2 --gpus 2 --stage 3 --offload-optimizer nvme "
      "--offload-param nvme "
      "--out " +
      folder.path("ds.json") + " --plan-out " + folder.path("plan.json"));
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(Has(run.err, wording::kThePlanSwapsToLocal));
  CHECK(Has(run.err, "--nvme-path"));
  const OrderedJson config = OrderedJson::parse(ReadWhole(folder.path("ds.json")));
  const OrderedJson plan = OrderedJson::parse(ReadWhole(folder.path("plan.json")));
  for (const OrderedJson* zero :
       {&config["zero_optimization"], &plan["config"]["zero_optimization"]}) {
    CHECK((*zero)["offload_optimizer"]["nvme_path"] == "/local_nvme");
    CHECK((*zero)["offload_param"]["nvme_path"] == "/local_nvme");
  }
  const RunResult host = RunZeroplan(
      "plan --quick --runtime zeroplan --model gpt2 --stage 2 --offload-optimizer cpu --out " +
      folder.path("cpu.json"));
  CHECK(host.exit_code == 0);
  CHECK(host.err.find("swaps") == std::string::npos);
  CHECK(ReadWhole(folder.path("cpu.json")).find("nvme_path") == std::string::npos);
}

TEST_CASE("plan: a path that looks like a field's mark is written as it came") {
  const TempDir folder;
  const std::string path = "/swap/@@gpus/\u27e6gpus\u27e7";
  std::ofstream(folder.path("in.json"))
      << R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3,
             "offload_optimizer": {"device": "nvme", "nvme_path": ")"
      << path << R"("}}})";
  const RunResult run = RunZeroplan(
      "plan --quick --runtime zeroplan --model gpt2 --gpus 2 --config " + folder.path("in.json") +
      " --out " + folder.path("ds.json") + " --plan-out " + folder.path("plan.json"));
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const OrderedJson config = OrderedJson::parse(ReadWhole(folder.path("ds.json")));
  const OrderedJson plan = OrderedJson::parse(ReadWhole(folder.path("plan.json")));
  CHECK(config["zero_optimization"]["offload_optimizer"]["nvme_path"] == path);
  CHECK(plan["config"]["zero_optimization"]["offload_optimizer"]["nvme_path"] == path);
}

TEST_CASE("plan: selective recompute wins where less than whole layers has to go") {
  const std::string command =
      "plan --quick --model gpt2-medium --global-batch 64 --offload-optimizer none "
      "--checkpointing all --gpu-memory ";
  const RunResult tight = RunZeroplan(command + "12500MB"), roomy = RunZeroplan(command + "40GB");
  REQUIRE(tight.exit_code == 0);
  REQUIRE(roomy.exit_code == 0);
  CHECK(Has(JoinParagraphs(tight.out), wording::kChosenStageSelectiveRecompute));
  CHECK(JoinParagraphs(roomy.out).find("Chosen: stage 0, micro-batch ") != std::string::npos);
  // DeepSpeed has none, so a plan for it goes without.
  const ModelFolder folder;
  const RunResult deepspeed =
      RunZeroplan(command + "12500MB --runtime zeroplan --out " + folder.path("ds.json"));
  REQUIRE(deepspeed.exit_code == 0);
  const std::string text = JoinParagraphs(deepspeed.out);
  const size_t at = text.find("Chosen: ");
  REQUIRE(at != std::string::npos);
  CHECK(text.substr(at, text.find('\n', at) - at).find("selective") == std::string::npos);
}

TEST_CASE("plan --plan-out, then train --plan") {
  const ModelFolder folder;
  const std::string plan = folder.path("plan.json");
  const std::string model = folder.Model();
  for (const char* choice : {"", " --stage 3", " --stage 2 --offload-optimizer cpu",
                             " --stage 2 --checkpointing selective"}) {
    CAPTURE(choice);
    const RunResult planned = RunZeroplan("plan --model " + model + " --gpus 2 --global-batch 8" +
                                          choice + " --plan-out " + plan);
    CAPTURE(planned.err);
    REQUIRE(planned.exit_code == 0);
    const RunResult trained =
        RunZeroplan("train --plan " + plan + " --data " + SourcePath("LICENSE") +
                    " --threads 1 --backend cpu --steps 4 --save " + folder.path("out") +
                    " --metrics " + folder.path("m.jsonl"));
    CAPTURE(trained.err);
    REQUIRE(trained.exit_code == 0);
    std::istringstream lines(ReadWhole(folder.path("m.jsonl")));
    OrderedJson last;
    for (std::string line; std::getline(lines, line);) last = OrderedJson::parse(line);
    CHECK(last["event"] == "end");
    CHECK(last["steps"] == 4);
    CHECK(last["high_water_bytes"] ==
          OrderedJson::parse(ReadWhole(plan))["predicted"]["rank_arena_bytes"]);
    // A run of another plan must not take them for its own.
    fs::remove_all(folder.path("out"));
    fs::remove(folder.path("m.jsonl"));
  }
}

TEST_CASE(
    "plan --explain prints the step's streams as lanes; explain of its file prints the same") {
  const ModelFolder folder;
  const std::string plan = folder.path("plan.json");
  const RunResult run =
      RunZeroplan("plan --quick --model gpt2 --gpus 2 --explain --stage 2,3 --plan-out " + plan);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  for (const char* said : {"Time of one step", "stream by stream", "compute", "reduce"}) {
    CHECK(Has(run.out, said));
  }
  const RunResult explained = RunZeroplan("explain " + plan);
  REQUIRE(explained.exit_code == 0);
  CHECK(run.out.find(explained.out) != std::string::npos);
}

TEST_CASE("plan keeps the links it was made for: explain has its times") {
  const ModelFolder folder;
  const std::string file = folder.path("plan.json");
  const std::string model =
      "plan --quick --model gpt2 --hw dgx-a100-40gb --gpus 16 --global-batch 64 "
      "--stage 3 --offload-optimizer none ";
  std::string unchanged;
  for (const std::string links : {"", "--network 10Gb", "--intra-node-bandwidth 20GB/s",
                                  "--network eth-25 --intra-node-bandwidth 50GB/s"}) {
    CAPTURE(links);
    const RunResult run = RunZeroplan(model + links + " --explain --plan-out " + file);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    const RunResult explained = RunZeroplan("explain " + file);
    CAPTURE(explained.err);
    REQUIRE(explained.exit_code == 0);
    CHECK(run.out.find(explained.out) != std::string::npos);
    // The profile by name is the plan's still; another one has its own links.
    CHECK(RunZeroplan("explain " + file + " --hw dgx-a100-40gb").out == explained.out);
    const OrderedJson cluster = OrderedJson::parse(ReadWhole(file))["cluster"];
    CHECK(cluster["network"].is_null() == (links.find("--network") == std::string::npos));
    CHECK(cluster["intra_node_bandwidth"].is_null() ==
          (links.find("--intra") == std::string::npos));
    if (links.empty()) unchanged = explained.out;
    if (!links.empty()) CHECK(explained.out != unchanged);
  }
  OrderedJson edited = OrderedJson::parse(ReadWhole(file));
  edited["cluster"]["network"] = "25 parsecs";
  std::ofstream(file) << edited.dump(2);
  const RunResult refused = RunZeroplan("explain " + file);
  CHECK(refused.exit_code == 2);
  CHECK(Has(refused.err, wording::kPlanJsonCluster));
  CHECK(Has(refused.err, "25 parsecs"));
}

TEST_CASE("plan --objective: fewest GPUs, most memory left") {
  const RunResult fewest = RunZeroplan(
      "plan --explain --quick --model gpt2-medium --gpus 4 --gpu-memory 20GB --objective "
      "fewest-gpus");
  CAPTURE(fewest.err);
  REQUIRE(fewest.exit_code == 0);
  CHECK(Has(JoinParagraphs(fewest.out), wording::kOnGpuTheFewestGpus));
  const RunResult headroom = RunZeroplan(
      "plan --explain --quick --model gpt2 --gpus 2 --stage 0,1 --offload-optimizer none "
      "--objective "
      "headroom");
  CAPTURE(headroom.err);
  REQUIRE(headroom.exit_code == 0);
  CHECK(Has(JoinParagraphs(headroom.out), "Chosen: stage 1, "));
  CHECK(Has(JoinParagraphs(headroom.out), "micro-batch 1 "));
  CHECK(Has(JoinParagraphs(headroom.out), wording::kWhatLeavesMostGpuMemory));
}

TEST_CASE("plan: nothing fits is exit 3 with the smallest change, which then fits") {
  const std::string asked =
      "plan --model gpt2-xl --gpu-memory 20GB --micro-batch 4 --grad-accum 1 "
      "--checkpointing none --offload-param none --stage 2 ";
  const RunResult run = RunZeroplan(asked + "--offload-optimizer none");
  CHECK(run.exit_code == 3);
  CHECK(run.out.empty());
  CHECK(Has(run.err, wording::kSmallestChangeThatFitsCpu));
  CHECK(Has(run.err, wording::kGpuMemoryShortBy));
  CHECK(RunZeroplan(asked + "--offload-optimizer cpu").exit_code == 0);
  const RunResult never = RunZeroplan("plan --model gpt2 --gpu-memory 100MB");
  CHECK(never.exit_code == 3);
  CHECK(Has(never.err, wording::kNoChangeWasFoundThat));
}

TEST_CASE("plan --config: the change that fits names keys of the file, which then fit") {
  const ModelFolder folder;
  const std::string file = folder.path("ds.json");
  OrderedJson config = {{"train_micro_batch_size_per_gpu", 4},
                        {"gradient_accumulation_steps", 1},
                        {"bf16", {{"enabled", true}}},
                        {"zero_optimization", {{"stage", 2}}}};
  const std::string asked = "plan --model gpt2-xl --gpu-memory 20GB --config " + file;
  std::ofstream(file) << config.dump(2);
  const RunResult run = RunZeroplan(asked);
  CHECK(run.exit_code == 3);
  const std::string key =
      "smallest change that fits: in " + file + ": zero_optimization.offload_optimizer ";
  REQUIRE(Has(run.err, key));
  CHECK(run.err.find("--offload-optimizer") == std::string::npos);
  const size_t at = run.err.find(key) + key.size();
  const size_t end = run.err.find('}', at) + 1;
  config["zero_optimization"]["offload_optimizer"] =
      OrderedJson::parse(run.err.substr(at, end - at));
  std::ofstream(file) << config.dump(2);
  const RunResult changed = RunZeroplan(asked);
  CAPTURE(changed.err);
  CHECK(changed.exit_code == 0);
}

TEST_CASE("plan --config: what it leaves to auto is no part of the change") {
  const ModelFolder folder;
  const std::string config = folder.path("auto.json");
  std::ofstream(config) << R"({"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true},
    "gradient_accumulation_steps": 1, "zero_optimization": {"stage": 3,
    "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
    "stage3_max_live_parameters": "auto"}})";
  const RunResult run = RunZeroplan(
      "plan --model gpt2-10b --hw hgx-h200 --gpus 1 --gpu-memory 24GB --config " + config);
  CHECK(run.exit_code == 3);
  CHECK(run.err.find("smallest change that fits: in ") != std::string::npos);
  CHECK(run.err.find("max_live_parameters") == std::string::npos);
}

TEST_CASE("plan: options that the smallest change cannot stand beside are named") {
  // A share of the optimizer in host memory that the host does not have.
  const std::string asked =
      "plan --model gpt2-xl --host-memory 1GB --gpu-memory 60GB --stage 2 --offload-optimizer cpu ";
  const RunResult run = RunZeroplan(asked + "--offload-ratio 0.5");
  CHECK(run.exit_code == 3);
  CHECK(Has(run.err, "--offload-optimizer none"));
  CHECK(Has(run.err, " without --offload-ratio ("));
  // All of the optimizer, which goes without the option that asks for a tenth.
  const std::string tight =
      "plan --model gpt2-xl --gpu-memory 6GB --stage 2 --micro-batch 1 --grad-accum 1 ";
  const RunResult tenth = RunZeroplan(tight + "--checkpointing full --offload-ratio 0.1");
  CHECK(tenth.exit_code == 3);
  const std::string fix = "--offload-optimizer cpu --checkpointing full";
  CHECK(Has(tenth.err, fix + " without --offload-ratio ("));
  CHECK(RunZeroplan(tight + fix + " --offload-ratio 0.1").exit_code == 3);
  CHECK(RunZeroplan(tight + fix).exit_code == 0);
}

TEST_CASE("plan --out: what excludes every choice is named, not 'nothing fits'") {
  const ModelFolder folder;
  const std::string file = folder.path("ds.json");
  const std::string asked = "plan --model gpt2 --gpus 8 --gpu-memory 80GB --config " + file +
                            " --out " + folder.path("out.json");
  OrderedJson config = {{"bf16", {{"enabled", true}}},
                        {"train_batch_size", 64},
                        {"scheduler",
                         {{"type", "WarmupDecayLR"},
                          {"params", {{"warmup_num_steps", 100}, {"total_num_steps", "auto"}}}}},
                        {"zero_optimization", {{"stage", 2}}}};
  std::ofstream(file) << config.dump(2);
  const RunResult run = RunZeroplan(asked);
  CHECK(run.exit_code == 2);
  CHECK(Has(run.err, wording::kDeepspeedCannotDoWhatIs));
  CHECK(Has(run.err, "set scheduler.params.total_num_steps in " + file));
  const RunResult shown = RunZeroplan(
      "plan --quick --format json --model gpt2 --runtime deepspeed"
      " --gpus 8 --gpu-memory 80GB --config " +
      file);
  CAPTURE(shown.err);
  CHECK(shown.exit_code == 0);
  config["scheduler"]["params"]["total_num_steps"] = 1000;
  std::ofstream(file) << config.dump(2);
  const RunResult set = RunZeroplan(asked);
  CAPTURE(set.err);
  CHECK(set.exit_code == 0);
}

TEST_CASE("plan: disks are searched where they are named, and proposed where nothing else fits") {
  const std::string asked =
      "plan --explain --quick --model gpt2-xl --gpu-memory 12GB --host-memory 12GB";
  const RunResult run = RunZeroplan(asked);
  CHECK(run.exit_code == 3);
  CHECK(Has(run.err, " nvme"));
  CHECK(Has(run.err, wording::kOfNodeDiskByThe));
  for (const char* named :
       {" --nvme-capacity 100GB", " --nvme-drives 2", " --offload-optimizer nvme",
        " --offload-optimizer all", " --offload-param none,nvme"}) {
    CAPTURE(named);
    const RunResult with = RunZeroplan(asked + named);
    CAPTURE(with.err);
    CHECK(with.exit_code == 0);
    CHECK(Has(JoinParagraphs(with.out), "on nvme"));
  }
  const RunResult without = RunZeroplan(asked +
                                        " --nvme-capacity 1TB --offload-optimizer none,cpu "
                                        "--offload-param none,cpu");
  CHECK(without.exit_code == 3);
  const RunResult headroom = RunZeroplan(
      "plan --explain --quick --model gpt2 --seq-len 128 --stage 3 --objective headroom");
  CHECK(Has(JoinParagraphs(headroom.out), wording::kDisksNoneWasNamedSo));
  CHECK(headroom.out.find("on nvme") == std::string::npos);
}

// What is staged for a disk takes more of a host than the bounds know: most of what they let
// through does not fit, and what does is found before the budget is spent.
TEST_CASE("plan --quick: a host that is short of memory beside a disk costs no speed") {
  struct Machine {
    const char* options;
    const char* good;  // found by a longer search
  };
  const Machine machines[] = {
      {"llama3.1-8b --gpus 4 --hw 4x-rtx4090 --host-memory 24GB", "--micro-batch 10"},
      {"gpt3-13b --gpus 8 --hw 8x-rtx4090 --host-memory 38GB", "--micro-batch 28"},
  };
  for (const auto& [options, good] : machines) {
    CAPTURE(options);
    const auto rate = [options = std::string(options)](const std::string& pins) {
      const RunResult run = RunZeroplan("plan " + options + " --nvme-capacity 2TB --quick " + pins +
                                        " --format json");
      REQUIRE(run.exit_code == 0);
      return OrderedJson::parse(run.out)["predicted"]["tokens_per_second"].get<double>();
    };
    CHECK(rate("") >= 0.98 * rate(std::string("--stage 3 --offload-optimizer nvme "
                                              "--offload-param none --checkpointing full "
                                              "--grad-accum 1 ") +
                                  good));
  }
  // 22 GB are enough; a sixteenth of what is there is the step.
  const RunResult short_of_it = RunZeroplan(
      "plan llama3.1-8b --gpus 2 --hw 2x-rtx4090 --nvme-capacity 2TB --quick --host-memory 20GB");
  CHECK(short_of_it.exit_code == 3);
  CHECK(Has(short_of_it.err, wording::kSmallestChangeThatFitsGb));
}

TEST_CASE("plan: a memory a little below the present one, in digits that tell them apart") {
  const RunResult run = RunZeroplan(
      "plan --explain --model gpt2 --hw a100-40gb-sxm --gpu-memory 3.984GB --micro-batch 2 --stage "
      "0 "
      "--checkpointing none");
  CHECK(run.exit_code == 0);
  CHECK(Has(run.out, wording::kGbGibGpu));
  CHECK(Has(run.out, wording::kUpToGbGpuNothing));
}

TEST_CASE("--global-batch-tokens is --global-batch in tokens") {
  for (const char* command : {"plan", "estimate"}) {
    const std::string asked = std::string(command) + " --explain --model gpt2 --gpus 2 --stage 0 ";
    const RunResult tokens = RunZeroplan(asked + "--global-batch-tokens 65536");
    const RunResult sequences = RunZeroplan(asked + "--global-batch 64");
    CHECK(tokens.exit_code == 0);
    CHECK(tokens.out.substr(0, tokens.out.find("Searched")) ==
          sequences.out.substr(0, sequences.out.find("Searched")));
  }
}

TEST_CASE("plan: usage errors are exit 2 and name the option, its value and what is allowed") {
  const struct {
    const char* arguments;
    std::vector<std::string> said;
  } cases[] = {
      {"--model gpt2 --objective speed", {"--objective", "speed", "throughput"}},
      {"--model gpt2 --gpus 8 --global-batch 12", {"--global-batch", "12", "8"}},
      {"--model gpt2 --gpus 2 --global-batch 10 --micro-batch 4", {"--global-batch", "10", "8"}},
      {"--model gpt2 --global-batch none", {"--global-batch", "none"}},
      {"--model gpt2 --stage 2,4", {"--stage", "2,4", "0, 1, 2, 3, all"}},
      {"--model gpt2 --stage 2,", {"--stage", "2,"}},
      {"--model gpt2 --stage 2,2", {"--stage", "2,2"}},
      {"--model gpt2 --stage 2,all", {"--stage", "2,all"}},
      {"--model gpt2 --offload-ratio 0", {"--offload-ratio", "0"}},
      {"--model gpt2 --config /nowhere.json", {"/nowhere.json"}},
      {"", {"--model"}},
  };
  for (const auto& c : cases) {
    CAPTURE(c.arguments);
    const RunResult run = RunZeroplan(std::string("plan ") + c.arguments);
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.out.empty());
    for (const std::string& word : c.said) CHECK(Has(run.err, word));
  }
}

TEST_CASE("fewer GPUs that are faster are the answer's first line, and a claim") {
  const std::string asked =
      "plan --explain --model gpt2-large --hw a10g --gpus 8 --gpus-per-node 4 --network 1Gb "
      "--global-batch "
      "64 "
      "--offload-optimizer none --offload-param none";
  const RunResult run = RunZeroplan(asked);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const std::string text = JoinParagraphs(run.out);
  CHECK(text.starts_with("4 GPUs of one node are "));
  CHECK(Has(text.substr(0, text.find('\n')), "; --gpus 4 plans them."));
  // Once.
  CHECK(text.find("4 GPUs of one node", 1) == std::string::npos);
  const RunResult json = RunZeroplan(asked + " --format json");
  REQUIRE(json.exit_code == 0);
  const OrderedJson plan = OrderedJson::parse(json.out);
  const OrderedJson& fewer = plan["claims"][0];
  CHECK(fewer["kind"] == "fewer");
  CHECK(fewer["change"] == OrderedJson{{"gpus", 4}});
  CHECK(plan["advice"][0].get<std::string>().starts_with("4 GPUs of one node are "));
  // Typed back.
  std::string four = asked;
  four.replace(four.find("--gpus 8"), 8, "--gpus 4");
  const RunResult typed = RunZeroplan(four + " --quick --format json");
  REQUIRE(typed.exit_code == 0);
  CHECK(OrderedJson::parse(typed.out)["predicted"]["tokens_per_second"] ==
        fewer["answer"]["tokens_per_second"]);
  CHECK(!Has(RunZeroplan(asked + " --quick").out, "4 GPUs of one node"));
}

TEST_CASE("--stage takes several for estimate too, in any order; train takes one") {
  const RunResult run = RunZeroplan(
      "estimate --model gpt2 --gpus 2 --stage 3,1 --offload-optimizer none "
      "--offload-param none --format json");
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const OrderedJson choices = OrderedJson::parse(run.out)["choices"];
  REQUIRE(choices.size() == 2);
  CHECK(choices[0]["stage"] == 1);
  CHECK(choices[1]["stage"] == 3);
  const RunResult train =
      RunZeroplan("train --model gpt2 --data " + SourcePath("LICENSE") + " --stage 2,3 --steps 1");
  CHECK(train.exit_code == 2);
  CHECK(Has(train.err, "one choice"));
}

}  // namespace
}  // namespace zeroplan
