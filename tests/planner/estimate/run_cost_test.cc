#include <doctest/doctest.h>

#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "cost_models/step_time.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/estimate.h"
#include "planner/report/report_text.h"
#include "planner/request/resolve.h"
#include "tests/cost_models/plain_profile.h"

namespace zeroplan {
namespace {

BatchSpec Batch() {
  BatchSpec batch;
  batch.micro_batch = 4;
  batch.grad_accum = 2;
  batch.world_size = 16;
  batch.seq_len = 1024;  // 131072 tokens a step
  return batch;
}

TEST_CASE("a run is its steps: hours, GPU-hours and price") {
  const RunCost cost = CostOf({.tokens = 131'072'000, .gpu_hour_price = 2.5}, Batch(), 0.72);
  CHECK(cost.steps == 1000);
  CHECK(cost.seconds == doctest::Approx(720));
  CHECK(cost.gpu_hours == doctest::Approx(16 * 0.2));
  REQUIRE(cost.price);
  CHECK(*cost.price == doctest::Approx(8));
  // The last step is a whole one.
  CHECK(CostOf({.tokens = 131'072'001}, Batch(), 1).steps == 1001);
  CHECK(CostOf({.tokens = 1}, Batch(), 1).steps == 1);
  CHECK_FALSE(CostOf({.tokens = 1}, Batch(), 1).price);
  CHECK_FALSE(cost.gpu_kwh);
  const RunCost known = CostOf({.tokens = 131'072'000, .gpu_watts = 700}, Batch(), 0.72);
  REQUIRE(known.gpu_kwh);
  CHECK(*known.gpu_kwh == doctest::Approx(16 * 0.2 * 0.7));
}

TEST_CASE("a save takes what its disk and its copy take") {
  HardwareProfile hardware = PlainProfile();
  hardware.node.pcie.copies.reset();
  hardware.node.pcie.from_device_single = Number(20e9);
  hardware.node.pcie.from_device_all = Number(40e9);  // of 8 GPUs: 5 GB/s each
  hardware.node.nvme_read = Number(4e9);
  hardware.node.nvme_write = Number(2e9);
  hardware.node.triad_bandwidth = Number(100e9);
  const ModelSpec model = LoadModel("gpt2");
  Cluster cluster;
  cluster.gpus = 16;
  cluster.gpus_per_node = 8;
  TrainSetup setup;
  const auto cost = [&] { return SaveCostOf(model, setup, cluster, hardware); };
  const auto bytes = static_cast<double>(12 * model.ParamCount());
  CHECK(cost().bytes == 12 * model.ParamCount());
  CHECK(cost().weights_bytes == 4 * model.UnpaddedParamCount());

  // Of adapters both hold what is trained, of frozen tensors the weights.
  ModelSpec adapted = model;
  adapted.lora_rank = 8;
  adapted.lora_targets = "all-linear";
  // Shard files have states as they are kept; masters in halves are fp32 there.
  setup.precision.moment_dtype = Dtype::kDynamic8;
  CHECK(cost().bytes_per_param == doctest::Approx(4 + 2 * (1 + 4.0 / 256)));
  setup.precision.master_weights = MasterWeights::kSplit;
  CHECK(cost().bytes_per_param == doctest::Approx(4 + 2 * (1 + 4.0 / 256)));
  setup.precision.master_weights = MasterWeights::kParam;
  setup.precision.moment_dtype = Dtype::kBF16;
  CHECK(cost().bytes == 6 * model.ParamCount());
  setup.precision = {};
  const SaveCost of_adapters = SaveCostOf(adapted, setup, cluster, hardware);
  // Rank 8 over c_attn, c_proj, c_fc and c_proj: rows and columns of each.
  const uint64_t lora = 12 * 8 * (768 + 3 * 768 + 2 * 768 + 2 * (768 + 4 * 768));
  CHECK(of_adapters.bytes == 12 * lora);
  CHECK(of_adapters.weights_bytes == 4 * lora);
  ModelSpec frozen = model;
  frozen.frozen = "transformer.wte.weight";
  const uint64_t wte = static_cast<uint64_t>(model.padded_vocab) * 768;
  CHECK(SaveCostOf(frozen, setup, cluster, hardware).bytes == 12 * model.ParamCount() - 8 * wte);

  // One rank writes all, and each copies all.
  setup.zero.stage = 0;
  CHECK(cost().node_bytes == cost().bytes);
  CHECK(*cost().write_seconds == doctest::Approx(bytes / 2e9));
  CHECK(cost().copy_seconds == doctest::Approx(bytes / 5e9));
  // Each node writes half, and each rank copies a sixteenth.
  setup.zero.stage = 1;
  CHECK(cost().node_bytes == cost().bytes / 2);
  CHECK(*cost().write_seconds == doctest::Approx(bytes / 2 / 2e9));
  CHECK(cost().copy_seconds == doctest::Approx(bytes / 16 / 5e9));
  CHECK(cost().disk_bound);
  // Of groups that hold replicas the first one's ranks write; of those that share states all do.
  setup.zero.shard_group = 4;
  CHECK(cost().one_node);
  CHECK(cost().node_bytes == cost().bytes);
  CHECK(cost().copy_seconds == doctest::Approx(bytes / 4 / 5e9));
  setup.zero.across_stage = 1;
  CHECK_FALSE(cost().one_node);
  CHECK(cost().node_bytes == cost().bytes / 2);
  CHECK(cost().copy_seconds == doctest::Approx(bytes / 16 / 5e9));
  setup.zero.shard_group = setup.zero.across_stage = 0;
  // A fast disk waits for the copy from the GPUs.
  hardware.node.nvme_write = Number(400e9);
  CHECK(*cost().write_seconds == doctest::Approx(bytes / 16 / 5e9));
  CHECK_FALSE(cost().disk_bound);
  // States in host memory pass no PCIe, states on disk are read first.
  hardware.node.nvme_write = Number(2e9);
  setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  CHECK(cost().copy_seconds == doctest::Approx(2 * bytes / 2 / 100e9));
  setup.zero.offload_optimizer.ratio = 0.5;
  CHECK(cost().copy_seconds == doctest::Approx(bytes / 2 / 16 / 5e9));
  setup.zero.offload_optimizer = {.device = OffloadDevice::kNvme};
  CHECK(*cost().write_seconds == doctest::Approx(bytes / 2 / 2e9 + bytes / 2 / 4e9));
  CHECK(cost().copy_seconds == doctest::Approx(bytes / 2 / 4e9));
  // Nothing is said of a disk that nobody knows.
  hardware.node.nvme_write.reset();
  CHECK_FALSE(cost().write_seconds);
}

TEST_CASE("the limit of a board's power is energy alone: no time depends on it") {
  HardwareProfile with = LoadProfile("dgx-a100-80gb"), without = with;
  REQUIRE(with.gpu.board_power);
  without.gpu.board_power.reset();
  with.gpu.board_power = Number(50);  // of no use if it limited clocks
  CHECK(ResolveGoal({}, Batch(), with.gpu).gpu_watts == 50);
  CHECK_FALSE(ResolveGoal({}, Batch(), without.gpu).gpu_watts);
  with.gpu.power = H200Power(700);  // measured: it goes before
  CHECK(ResolveGoal({}, Batch(), with.gpu).gpu_watts == 700);
  with.gpu.power.reset();
  TrainSetup setup;
  setup.zero.stage = 2;
  setup.batch.world_size = 8;
  setup.batch.micro_batch = 4;
  setup.batch.seq_len = 512;
  const Program program = Lower(LoadModel("gpt2"), setup, {.backend = Backend::kCuda});
  const CostModel limited(with, {8, 8}), free(without, {8, 8});
  CHECK(StepTimer(limited).Time(program).total_seconds ==
        StepTimer(free).Time(program).total_seconds);
}

TEST_CASE("a run in words") {
  const std::string text =
      RunCostText({.tokens = 300'000'000'000, .gpu_hour_price = 2.5}, Batch(), 0.5);
  // 300e9 / 131072 = 2288818.4 steps of half a second.
  CHECK(
      text.starts_with("Training on 300B tokens: 2288819 steps, 318 h (13.2 days) on 16 GPUs, "
                       "5086 GPU-hours, 12716 at 2.5 a GPU-hour;"));
  CHECK(text.find("kWh") == std::string::npos);
  CHECK(RunCostText({.tokens = 131'072'000, .gpu_watts = 700}, Batch(), 0.72)
            .ends_with("At their power limit of 700 W the GPUs take 2.24 kWh at most, hosts and "
                       "cooling apart."));
  const std::string one = RunCostText({.tokens = 1000}, Batch(), 3.6);
  CHECK(one.starts_with("Training on 1.00K tokens: 1 step, 0.001 h on 16 GPUs, 0.016 GPU-hours;"));
}

}  // namespace
}  // namespace zeroplan
