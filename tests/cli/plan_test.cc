// plan, train --plan and explain as a user runs them.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "core/families/load_model.h"
#include "tests/cli/run_binary.h"
#include "tests/paths.h"
#include "tests/planner/plan_fixture.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using OrderedJson = nlohmann::ordered_json;
namespace fs = std::filesystem;

// A folder with a plan of the small model and the model's config.json.
class PlanFolder {
 public:
  explicit PlanFolder(const Plan& plan = SmallPlan(), const std::string& config = kSmallConfig) {
    text_ = WritePlan(plan, config);
    Write("plan.json", text_);
    Write("config.json", WriteHuggingFaceConfig(plan.model));
  }
  std::string path(const std::string& name) const { return root_.path(name); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
  }
  // The plan with one value changed, as edited.json.
  std::string Edited(const std::string& pointer, const OrderedJson& value) const {
    OrderedJson json = OrderedJson::parse(text_);
    json[OrderedJson::json_pointer(pointer)] = value;
    Write("edited.json", json.dump(2));
    return path("edited.json");
  }
  std::string Train(const std::string& more) const {
    return "train --data " + SourcePath("LICENSE") + " --threads 1 --steps 8 " + more;
  }

 private:
  TempDir root_;
  std::string text_;
};

std::vector<double> Losses(const std::string& metrics) {
  std::vector<double> losses;
  std::istringstream lines(ReadWhole(metrics));
  for (std::string line; std::getline(lines, line);) {
    const OrderedJson json = OrderedJson::parse(line);
    if (json["event"] == "step") losses.push_back(json["loss"]);
  }
  return losses;
}

TEST_CASE("train --plan runs the planned program, as --config with its config does") {
  const PlanFolder folder;
  const RunResult run =
      RunZeroplan(folder.Train("--plan " + folder.path("plan.json") + " --metrics " +
                               folder.path("plan.jsonl") + " --save " + folder.path("out")));
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.err.find("Rehearsal: the program planned for 2 x NVIDIA H200 SXM runs on the CPU.") !=
        std::string::npos);
  CHECK(fs::exists(folder.path("out/model.safetensors")));

  std::istringstream lines(ReadWhole(folder.path("plan.jsonl")));
  std::string line;
  std::getline(lines, line);
  const OrderedJson start = OrderedJson::parse(line);
  const OrderedJson plan = OrderedJson::parse(ReadWhole(folder.path("plan.json")));
  CHECK(start["plan"]["gpus"] == 2);
  CHECK(start["plan"]["grad_accum"] == 3);
  for (const char* memory_class : {"params", "grads", "optimizer", "activations", "buffers"}) {
    CHECK(start["planned_bytes"]["gpu"][memory_class] ==
          plan["predicted"]["gpu_bytes"][memory_class]);
  }
  OrderedJson end;
  while (std::getline(lines, line)) end = OrderedJson::parse(line);
  CHECK(end["event"] == "end");
  CHECK(end["high_water_bytes"] == plan["predicted"]["rank_arena_bytes"]);

  // The same choice from its config, lowered for the CPU: other places, the same numbers.
  folder.Write("ds.json", kSmallConfig);
  const RunResult config =
      RunZeroplan(folder.Train("--model " + folder.path("config.json") + " --gpus 2 --config " +
                               folder.path("ds.json") + " --metrics " + folder.path("ds.jsonl")));
  CAPTURE(config.err);
  REQUIRE(config.exit_code == 0);
  const std::vector<double> planned = Losses(folder.path("plan.jsonl"));
  const std::vector<double> control = Losses(folder.path("ds.jsonl"));
  REQUIRE(planned.size() == 8);
  REQUIRE(control.size() == 8);
  // Chunks of logits differ in size, and with them the order in which the head's gradient is added.
  for (size_t i = 0; i < 8; ++i) CHECK(planned[i] == doctest::Approx(control[i]).epsilon(1e-4));
}

TEST_CASE("train --plan takes the model and the ranks that it was planned for, and no others") {
  const PlanFolder folder;
  const std::string plan = " --plan " + folder.path("plan.json");
  CHECK(RunZeroplan(folder.Train(plan + " --gpus 2 --model " + folder.path("config.json")))
            .exit_code == 0);
  ModelSpec wider = SmallModel();
  wider.hidden = 64;
  wider.ffn = 256;
  folder.Write("wider.json", WriteHuggingFaceConfig(wider));
  ModelSpec longer = SmallModel();
  longer.positions = 48;
  folder.Write("longer.json", WriteHuggingFaceConfig(longer));
  const struct {
    std::string arguments;
    std::vector<std::string> said;
  } cases[] = {
      {"--gpus 4" + plan, {"--gpus: 4", "2"}},
      {"--model " + folder.path("wider.json") + plan, {"hidden", "has 32", "64"}},
      {"--model " + folder.path("longer.json") + plan, {"positions", "has 32", "48"}},
      {"--stage 2" + plan, {"--stage: 2", "--plan"}},
      {"--micro-batch 2" + plan, {"--micro-batch: 2", "--plan"}},
      {"--dtype fp32" + plan, {"--dtype: fp32", "--plan"}},
      {"--seq-len 32" + plan, {"--seq-len: 32", "--plan"}},
      {"--config x.json" + plan, {"--config: x.json", "--plan"}},
      {"--plan /no/such/plan.json", {"/no/such/plan.json"}},
      {"--plan " + folder.path("config.json"), {"config.json", "schema"}},
  };
  for (const auto& c : cases) {
    CAPTURE(c.arguments);
    const RunResult run = RunZeroplan(folder.Train(c.arguments));
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    for (const std::string& word : c.said) CHECK(run.err.find(word) != std::string::npos);
  }
}

TEST_CASE("a plan that was edited or is another version's is refused, by train and explain") {
  const PlanFolder folder;
  const std::tuple<const char*, OrderedJson, const char*> edits[] = {
      {"/zeroplan", "9.9.9", "made by zeroplan 9.9.9"},
      {"/schema", "zeroplan.plan/9", "zeroplan.plan/1"},
      {"/config/zero_optimization/stage", 1, "the program lowered from this plan differs"},
      {"/lower/logits_chunk_bytes", 4096, "the program lowered from this plan differs"},
      {"/model/layers", 0, "model.layers: 0"},
  };
  for (const auto& [pointer, value, said] : edits) {
    const std::string file = folder.Edited(pointer, value);
    for (const std::string& command :
         {folder.Train("--plan " + file), std::string("explain " + file)}) {
      CAPTURE(command);
      const RunResult run = RunZeroplan(command);
      CAPTURE(run.err);
      CHECK(run.exit_code == 2);
      CHECK(run.out.empty());
      CHECK(run.err.find(said) != std::string::npos);
      CHECK(run.err.find("edited.json") != std::string::npos);
    }
  }
}

TEST_CASE("train --plan: without checkpoints nothing is saved; the swap folder is the run's own") {
  Plan plan = SmallPlan();
  plan.lower.checkpoints = false;
  {
    const HardwareProfile hardware = LoadProfile(std::string(kDefaultProfile));
    const CostModel costs(hardware, ClusterShape{2, 2});
    plan.choice = EstimateProgram(Lower(plan.model, plan.setup, plan.lower), plan.cluster, &costs);
  }
  const PlanFolder folder(plan);
  const RunResult run = RunZeroplan(
      folder.Train("--plan " + folder.path("plan.json") + " --save " + folder.path("out")));
  CHECK(run.exit_code == 2);
  CHECK(run.err.find("--save") != std::string::npos);
  CHECK(RunZeroplan(folder.Train("--plan " + folder.path("plan.json"))).exit_code == 0);

  const std::string nvme = R"({
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 2,
      "offload_optimizer": {"device": "nvme", "nvme_path": "/no/such/folder"}}})";
  const PlanFolder swapping(SmallPlan(nvme), nvme);
  const std::string train = swapping.Train("--plan " + swapping.path("plan.json"));
  CHECK(RunZeroplan(train).exit_code == 2);
  const RunResult moved = RunZeroplan(train + " --nvme-path " + swapping.path("."));
  CAPTURE(moved.err);
  CHECK(moved.exit_code == 0);
}

TEST_CASE("explain prints the step and writes its trace") {
  const PlanFolder folder;
  const std::string plan = folder.path("plan.json");
  const RunResult run = RunZeroplan("explain " + plan + " --trace " + folder.path("t.json"));
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.err.empty());
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
  for (const char* said : {"ZeRO stage 2, optimizer on cpu", "Memory", "Time of one step",
                           "The update, stream by stream", "80.0 GB ("}) {
    CHECK(run.out.find(said) != std::string::npos);
  }
  const OrderedJson trace = OrderedJson::parse(ReadWhole(folder.path("t.json")));
  CHECK(trace["traceEvents"].size() > 100);

  const std::string planned = " --hw " + std::string(kDefaultProfile);
  CHECK(RunZeroplan("explain " + plan + planned).out == run.out);
  // Another GPU's rates; the capacities stay.
  const RunResult other = RunZeroplan("explain " + plan + " --hw v100-32gb-sxm3");
  CAPTURE(other.err);
  CHECK(other.exit_code == 0);
  CHECK(other.out != run.out);
  CHECK(other.out.find("V100") != std::string::npos);
  CHECK(other.out.find("80.0 GB (") != std::string::npos);
  CHECK(RunZeroplan("explain " + plan + " --hw nothing").exit_code == 2);
  const std::string elsewhere = folder.Edited("/cluster/hw", "my-cluster");
  const RunResult unknown = RunZeroplan("explain " + elsewhere);
  CHECK(unknown.exit_code == 2);
  CHECK(unknown.err.find("my-cluster") != std::string::npos);
  CHECK(unknown.err.find("--hw FILE") != std::string::npos);
  CHECK(RunZeroplan("explain " + elsewhere + planned).exit_code == 0);
  const RunResult nowhere = RunZeroplan("explain " + plan + " --trace /no/such/t.json");
  CHECK(nowhere.exit_code == 2);
  CHECK(nowhere.out.empty());
  CHECK(nowhere.err.find("--trace: /no/such/t.json") != std::string::npos);
  CHECK(RunZeroplan("explain").exit_code == 2);
}

TEST_CASE("plan --format json: what was said, and a plan file at once") {
  const PlanFolder folder;
  const RunResult run = RunZeroplan(
      "plan --model gpt2 --hw hgx-h200 --gpus 2 --seq-len 256 --global-batch 8 "
      "--offload-optimizer none --dtype bf16 --format json");
  REQUIRE(run.exit_code == 0);
  const OrderedJson json = OrderedJson::parse(run.out);
  CHECK(json["schema"] == "zeroplan.plan/1");
  CHECK(json["gap"] == 0);
  // The answer loses nothing to itself; every other stage that fits loses what its time says.
  const double tokens = json["predicted"]["tokens_per_second"];
  int stages = 0;
  for (const OrderedJson& stage : json["stages"]) {
    if (!stage["fits"]) continue;
    ++stages;
    const double lost = stage["lost_seconds"]["total"];
    const double step = json["predicted"]["step_seconds"]["total"];
    CHECK(lost / step ==
          doctest::Approx(tokens / double(stage["tokens_per_second"]) - 1).epsilon(1e-6));
    double parts = 0;
    for (const char* part : {"compute", "exposed_comm", "exposed_offload", "optimizer"}) {
      parts += double(stage["lost_seconds"][part]);
    }
    CHECK(parts == doctest::Approx(lost).epsilon(1e-6));
  }
  CHECK(stages == 4);
  const Json& claims = json["claims"];
  const auto chosen = std::find_if(claims.begin(), claims.end(),
                                   [](const Json& claim) { return claim["kind"] == "chosen"; });
  REQUIRE(chosen != claims.end());
  CHECK((*chosen)["answer"]["tokens_per_second"] == tokens);
  // Saved, it is a plan file.
  folder.Write("report.json", run.out);
  CHECK(RunZeroplan("explain " + folder.path("report.json")).exit_code == 0);
}

TEST_CASE("plan: drives of a node, what a save takes of them, and the energy of a run") {
  const TempDir folder;
  const std::string plan =
      "plan --explain --quick --model gpt2 --seq-len 128 --gpus 2 --hw 2x-rtx6000-ada ";
  const auto json = [&](const std::string& more) {
    return OrderedJson::parse(RunZeroplan(plan + more + " --format json").out);
  };
  const OrderedJson two = json("--tokens 1B"), four = json("--nvme-drives 4");
  CHECK(two["cluster"]["nvme_drives"].is_null());
  CHECK(four["cluster"]["nvme_drives"] == 4);
  CHECK(four["cluster"]["nvme_capacity_bytes"] ==
        2 * two["cluster"]["nvme_capacity_bytes"].get<double>());
  const OrderedJson& save = two["checkpoint"];
  CHECK(save["bytes"] == save["node_bytes"]);
  CHECK(save["write_seconds"].get<double>() ==
        doctest::Approx(save["bytes"].get<double>() / 8e9));  // host.nvme_write
  CHECK(four["checkpoint"]["write_seconds"].get<double>() ==
        doctest::Approx(save["write_seconds"].get<double>() / 2));
  CHECK(two["run"]["gpu_kwh"].get<double>() ==
        doctest::Approx(two["run"]["gpu_hours"].get<double>() * 0.3));  // gpu.board_power
  // A machine without a disk says nothing of it.
  const RunResult none =
      RunZeroplan("plan --explain --quick --model gpt2 --hw p3-16xlarge --dtype fp16");
  CHECK(none.out.find("Checkpoints: ") != std::string::npos);
  CHECK(none.out.find("Saving one takes") == std::string::npos);
  // explain reads the disks as planned.
  const std::string file = folder.path("plan.json");
  const RunResult run = RunZeroplan(
      plan + "--nvme-drives 4 --stage 2 --offload-optimizer nvme --explain --plan-out " + file);
  CHECK(run.exit_code == 0);
  CHECK(JoinParagraphs(run.out).find("read from swap files first; steps wait so long") !=
        std::string::npos);
  const RunResult explained = RunZeroplan("explain " + file);
  CHECK(explained.exit_code == 0);
  CHECK(run.out.find(explained.out) != std::string::npos);
  OrderedJson of_profile = OrderedJson::parse(ReadWhole(file));
  of_profile["cluster"].erase("nvme_drives");  // as plans had been
  std::ofstream(file) << of_profile.dump();
  const RunResult slower = RunZeroplan("explain " + file);
  CHECK(slower.exit_code == 0);
  CHECK(slower.out != explained.out);
}

TEST_CASE("plan --quick: the answer and the other stages, nothing that would change it") {
  const std::string command =
      "plan --explain --model gpt2 --hw hgx-h200 --gpus 2 --global-batch 8 --offload-optimizer "
      "none "
      "--offload-param none";
  const RunResult quick = RunZeroplan(command + " --quick"), whole = RunZeroplan(command);
  REQUIRE(quick.exit_code == 0);
  REQUIRE(whole.exit_code == 0);
  auto chosen = [](const RunResult& run) {
    const size_t at = run.out.find("Chosen: ");
    return run.out.substr(at, run.out.find('\n', at) - at);
  };
  CHECK(chosen(quick) == chosen(whole));
  CHECK(quick.out.find("rossover") == std::string::npos);
  CHECK(whole.out.find("rossover") != std::string::npos);
}

TEST_CASE("plan: on one GPU nothing is sharded, and of stages that tie the lowest is taken") {
  const RunResult run = RunZeroplan(
      "plan --model gpt2 --hw hgx-h200 --gpus 1 --global-batch 8 --offload-optimizer none");
  REQUIRE(run.exit_code == 0);
  CHECK(run.out.find("Chosen: stage 0") != std::string::npos);
  CHECK(run.out.find("as fast") != std::string::npos);
}

TEST_CASE("plan --pinned-limit: what the driver does not lock stays pageable, and is said") {
  const std::string asked = " --params 1B --gpus 1 --gpu-memory 8GB --dtype bf16 ";
  const auto plan = [&](const std::string& options) {
    const RunResult run = RunZeroplan("plan --quick --format json" + asked + options);
    INFO(run.err);
    REQUIRE(run.exit_code == 0);
    return Json::parse(run.out);
  };
  const Json free = plan("");
  REQUIRE(free.at("predicted").at("host_bytes").at("pinned") > 2'000'000'000);
  const Json limited = plan("--pinned-limit 1GB");
  CHECK(limited.at("predicted").at("host_bytes").at("pinned") <= 1'000'000'000);
  CHECK(limited.at("cluster").at("pinned_limit_bytes") == 1'000'000'000);
  const Json& section = limited.at("config").at("zero_optimization").at("offload_optimizer");
  CHECK(section.at("pin_memory") == false);
  CHECK(plan("--pin-memory off").at("predicted").at("host_bytes").at("pinned") <= 1'000'000'000);
  const RunResult kept = RunZeroplan("plan --quick" + asked + "--pinned-limit 1GB --pin-memory on");
  CHECK(kept.exit_code == 3);
  CHECK(Has(kept.err, "--pin-memory off"));
  const std::string one = asked + "--stage 1 --offload-optimizer cpu --checkpointing full ";
  const RunResult estimate = RunZeroplan("estimate" + one + "--pinned-limit 1GB");
  CHECK(Has(estimate.out + estimate.err, wording::kPinnedHostMemoryShortBy));
  const RunResult fits = RunZeroplan("estimate" + one + "--pinned-limit 1GB --pin-memory off");
  CHECK(fits.exit_code == 0);
  CHECK(Lacks(fits.out, "does not fit"));
  CHECK(Lacks(fits.out, "short by"));
}

}  // namespace
}  // namespace zeroplan
