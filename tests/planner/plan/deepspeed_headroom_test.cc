// The memory left free for DeepSpeed covers every measured run of it.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/choices.h"
#include "planner/footprint.h"
#include "planner/plan/plan_file.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

TrainSetup SetupOfRow(const nlohmann::json& row) {
  TrainSetup setup;
  setup.zero.stage = row.at("stage");
  if (row.at("offload_optimizer") == "cpu") {
    setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  }
  if (row.at("offload_param") == "cpu") setup.zero.offload_param.device = OffloadDevice::kCpu;
  setup.recompute = row.at("full_recompute").get<bool>() ? FullRecompute() : kNoRecompute;
  setup.precision.dtype = row.at("dtype") == "fp16" ? Dtype::kF16 : Dtype::kBF16;
  setup.precision.grad_accum_dtype = setup.precision.dtype;
  setup.batch.world_size = row.at("gpus");
  setup.batch.micro_batch = row.at("micro_batch");
  setup.batch.grad_accum = row.at("grad_accum");
  setup.batch.seq_len = row.at("seq_len");
  return setup;
}

TEST_CASE("DeepSpeedExtraMemory covers each measured run, and not by more than it must") {
  std::ifstream in(SourcePath("benchmarks/measure/results/other_executors.json"));
  const nlohmann::json file = nlohmann::json::parse(in);
  const HardwareProfile hardware = LoadProfile(std::string(kDefaultProfile));
  int runs = 0;
  double closest = 1e12;
  for (const auto& row : file.at("rows")) {
    if (!row.contains("device_used_gib")) continue;
    ModelSpec model = LoadModel(row.at("model").get<std::string>());
    const TrainSetup setup = SetupOfRow(row);
    model.positions = setup.batch.seq_len;
    LowerOptions options;
    options.backend = Backend::kCuda;
    const Program program = Lower(model, setup, options);
    Cluster cluster;
    cluster.gpus = cluster.gpus_per_node = setup.batch.world_size;
    cluster.runtime_bytes = RuntimeBytes(hardware, cluster.gpus);
    cluster.communicator_bytes = CommunicatorBytes(hardware, cluster.gpus);
    const auto planned = static_cast<double>(FootprintOf(program, cluster).gpu_total());
    const double used = row.at("device_used_gib").get<double>() * 1024 * 1024 * 1024;
    const ExtraMemory extra = DeepSpeedExtraMemory(model, setup);
    const auto left =
        static_cast<double>(extra.fixed_bytes) + static_cast<double>(setup.batch.micro_batch) *
                                                     static_cast<double>(extra.bytes_per_sequence);
    CAPTURE(row.at("model").get<std::string>());
    CAPTURE(SetupLabel(setup));
    CHECK(planned + left >= used);
    closest = std::min(closest, planned + left - used);
    ++runs;
  }
  CHECK(runs == 20);
  CHECK(closest < 2e9);
}

}  // namespace
}  // namespace zeroplan
