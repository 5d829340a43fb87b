// What a run on GPUs says of itself, of made-up measurements: metrics and predictions.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/run/train/metrics_file.h"
#include "cli/run/train/progress.h"
#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/estimate.h"
#include "planner/runs/prediction_table.h"
#include "tests/cli/run_binary.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

LowerOptions SmallCudaOptions() {
  LowerOptions lower;
  lower.backend = Backend::kCuda;
  return lower;
}

Program SmallCudaProgram(int gpus) {
  ModelSpec model = LoadModel("gpt2");
  model.layers = 2;
  TrainSetup setup;
  setup.batch.world_size = gpus;
  setup.batch.seq_len = 128;
  setup.zero.stage = 2;
  setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kBF16;
  return Lower(model, setup, SmallCudaOptions());
}

TEST_CASE("a run is predicted as estimate predicts it") {
  const HardwareProfile hardware = LoadProfile(std::string(kDefaultProfile));
  const Program program = SmallCudaProgram(2);
  const RunPrediction prediction = PredictRun(program, hardware, 2);
  Cluster cluster;
  cluster.gpus = cluster.gpus_per_node = 2;
  cluster.runtime_bytes = RuntimeBytes(hardware, 2);
  cluster.communicator_bytes = CommunicatorBytes(hardware, 2);
  const CostModel costs(hardware, ClusterShape{2, 2});
  const ChoiceEstimate estimate = EstimateProgram(program, cluster, &costs);
  CHECK(prediction.footprint.gpu_total() == estimate.footprint.gpu_total());
  CHECK(prediction.footprint.runtime_bytes == estimate.footprint.runtime_bytes);
  REQUIRE(prediction.step_seconds.has_value());
  CHECK(*prediction.step_seconds == estimate.time.total_seconds);
}

TEST_CASE("without a network there is no time of several hosts, and memory still") {
  HardwareProfile hardware = LoadProfile(std::string(kDefaultProfile));
  hardware.network.reset();
  const RunPrediction prediction = PredictRun(SmallCudaProgram(4), hardware, 2);
  CHECK_FALSE(prediction.step_seconds.has_value());
  CHECK(prediction.footprint.gpu_total() > prediction.footprint.runtime_bytes);
}

TEST_CASE("a step's line has the memory in use beside the plan's") {
  StepReport report;
  report.step = 3;
  report.state.loss_sum = 5.5;
  report.state.grad_norm = 0.25f;
  report.state.lr = 1e-4f;
  report.tokens_per_second = 53456.4;
  CHECK(StepText(report, 20, std::nullopt) ==
        "step 3/20  loss 5.5000  norm 0.250  lr 1.00e-04  53456 tok/s");
  report.mfu = 0.524;
  report.times.exposed_comm_seconds = 0.0016;
  report.device_used_bytes = 49'395'138'560;
  CHECK(StepText(report, 20, 49'395'628'490) ==
        "step 3/20  loss 5.5000  norm 0.250  lr 1.00e-04  53456 tok/s  MFU 52.4%  comm 1.6 ms  "
        "GPU 49.4 GB of 49.4 GB");
  report.state.skip = 1;
  report.state.loss_scale = 512;
  CHECK(StepText(report, 20, std::nullopt)
            .ends_with("GPU 49.4 GB  skipped: gradients that are not finite (loss scale now 512)"));
}

TEST_CASE("--gpu-memory holds a run to what it predicts") {
  const HardwareProfile hardware = LoadProfile(std::string(kDefaultProfile));
  const RunPrediction prediction = PredictRun(SmallCudaProgram(2), hardware, 2);
  CHECK_NOTHROW(CheckGpuMemory(prediction, {prediction.footprint.gpu_total() + 1000, 1000}));
  const std::string message = ErrorOf(ExitCode::kNothingFits, [&] {
    CheckGpuMemory(prediction, {prediction.footprint.gpu_total(), 5'000'000});
  });
  CAPTURE(message);
  CHECK(message.starts_with("⟦gpu_memory⟧: "));
  CHECK(message.find("5.00 MB more") != std::string::npos);
  CHECK(message.find("less 5.00 MB kept free") != std::string::npos);
}

TEST_CASE("metrics hold what a GPU run measures, and null for what it does not") {
  const Program program = SmallCudaProgram(2);
  const MemoryReport memory = WalkMemory(program);
  const HardwareProfile hardware = LoadProfile(std::string(kDefaultProfile));
  const RunPrediction prediction = PredictRun(program, hardware, 2);
  const TempDir folder;
  const std::string path = folder.path("metrics.jsonl");
  {
    MetricsFile metrics({.file = path});
    metrics.Start({program, SmallCudaOptions(), 2, memory, prediction}, 0);
    StepReport step;
    step.step = 1;
    metrics.Step(step);
    step.step = 2;
    step.mfu = 0.5;
    step.times.exposed_comm_seconds = 0.25;
    step.times.exposed_offload_seconds = 0.125;
    metrics.Step(step);
    RunReport report;
    report.device_used_bytes = 123456789;
    metrics.End(report, program);
  }
  std::istringstream text(ReadWhole(path));
  std::vector<Json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  REQUIRE(lines.size() == 4);
  const Json& gpu = lines[0]["planned_bytes"]["gpu"];
  REQUIRE(memory.outside.graph_bytes > 0);
  const uint64_t runtime = RuntimeBytes(hardware, 2) + memory.outside.graph_bytes;
  CHECK(gpu["runtime"] == runtime);
  CHECK(gpu["total"] == memory.arena(Space::kDevice) + runtime);
  CHECK(lines[0]["plan"]["backend"] == "cuda");
  CHECK(lines[0]["predicted"]["hardware"] == hardware.name);
  CHECK(lines[0]["predicted"]["step_seconds"] == *prediction.step_seconds);
  for (const char* name : {"mfu", "exposed_comm_seconds", "exposed_offload_seconds"}) {
    CHECK(lines[1][name].is_null());
  }
  CHECK(lines[2]["mfu"] == 0.5);
  CHECK(lines[2]["exposed_comm_seconds"] == 0.25);
  CHECK(lines[2]["exposed_offload_seconds"] == 0.125);
  CHECK(lines[3]["device_used_bytes"] == 123456789);
}

TEST_CASE("what a launcher did not set is named, and Gloo where a build has none") {
  const std::string train = "train --model gpt2 --data " + SourcePath("LICENSE") + " --backend cpu";
#ifndef ZEROPLAN_WITH_GLOO
  const RunResult rank = RunZeroplan(train,
                                     "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 "
                                     "MASTER_ADDR=127.0.0.1 MASTER_PORT=29999");
  CHECK(rank.exit_code == 2);
  CHECK(Has(rank.err, "libgloo-dev"));
  CHECK(Has(rank.err, "rank 1 of 2"));
#endif
  const RunResult half = RunZeroplan(train, "RANK=1");
  CHECK(half.exit_code == 2);
  CHECK(half.err.find("WORLD_SIZE") != std::string::npos);
}

}  // namespace
}  // namespace zeroplan
