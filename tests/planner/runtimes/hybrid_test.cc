// Shard groups of DeepSpeed (MiCS, hpZ, quantized communication) and of FSDP2: memory, what is sent
// over which ranks, time, and what is refused.
#include <doctest/doctest.h>

#include <optional>
#include <set>
#include <string>

#include "core/base/error.h"
#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/formats/config_format.h"
#include "planner/search/search.h"
#include "planner/search/search_space.h"
#include "tests/has.h"
#include "tests/planner/runtimes/runtime_rows.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

constexpr int kGpus = 32, kGroup = 8;

TrainSetup Hybrid3(int group, int across_stage, int micro_steps = 1) {
  TrainSetup setup;
  setup.zero = ReaderZeroDefaults(3);
  setup.zero.shard_group = group;
  setup.zero.across_stage = across_stage;
  setup.zero.param_persistence_threshold = 0;
  // As large models have it: what forward used is freed before backward.
  setup.zero.max_reuse_distance = 0;
  setup.zero.prefetch_bucket_elements = 0;
  setup.batch = {1, micro_steps, kGpus, 1024};
  return setup;
}
TrainSetup Fp16(TrainSetup setup) {
  setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kF16;
  return setup;
}
TrainSetup OnGpus(TrainSetup setup, int gpus) {
  setup.batch.world_size = gpus;
  return setup;
}

// Its head is a parameter of its own: no tensor is used twice in a micro-step.
ModelSpec Untied() {
  ModelSpec model = LoadModel("llama3.1-8b");
  model.layers = 12;
  model.hidden = 1024;
  model.ffn = 4096;
  model.heads = model.kv_heads = 16;
  model.vocab = model.padded_vocab = 16384;
  return model;
}
double Elements() {
  double sum = 0;
  for (const TorchParam& param : TorchModel(Untied()).params) {
    sum += static_cast<double>(param.elements);
  }
  return sum;
}

struct Outcome {
  TorchFootprint memory;
  double seconds = 0;
  double all = 0, shard = 0, replica = 0, node = 0, across_nodes = 0;  // full bytes of a step
};
Outcome Run(const TorchBased& runtime, const TrainSetup& setup, const std::string& network) {
  HardwareProfile hardware = LoadProfile("dgx-h100");
  ApplyNetwork(hardware, network);
  const TorchMachine machine(hardware, {setup.batch.world_size, 8});
  TorchTimer timer(&machine, {});
  Outcome outcome;
  outcome.memory = runtime.Play({.model = Untied(), .setup = setup}, &timer);
  outcome.seconds = timer.Time(setup.batch.grad_accum)->step_seconds;
  outcome.all = timer.full_bytes(RankGroups::kAll);
  outcome.shard = timer.full_bytes(RankGroups::kShard);
  outcome.replica = timer.full_bytes(RankGroups::kReplica);
  outcome.node = timer.full_bytes(RankGroups::kNode);
  outcome.across_nodes = timer.full_bytes(RankGroups::kAcrossNodes);
  return outcome;
}
Outcome DeepSpeedRun(const TrainSetup& setup, const std::string& network = "eth-10") {
  return Run(dynamic_cast<const TorchBased&>(DeepSpeedRuntime()), setup, network);
}
Outcome Fsdp2Run(const TrainSetup& setup, const std::string& network = "eth-10") {
  return Run(dynamic_cast<const TorchBased&>(Fsdp2Runtime()), setup, network);
}

bool Near(double value, double expected) {
  return value == doctest::Approx(expected).epsilon(0.01).scale(0);
}

// deepspeed/runtime/zero/mics.py.
TEST_CASE("Hybrid MiCS: everything within the group, one all-reduce of shards a step") {
  const double bytes = 2 * Elements();
  for (const int micro_steps : {1, 3}) {
    CAPTURE(micro_steps);
    const Outcome pure = DeepSpeedRun(Hybrid3(0, 0, micro_steps));
    const Outcome mics = DeepSpeedRun(Hybrid3(kGroup, 0, micro_steps));
    CHECK(Near(pure.all, 3 * micro_steps * bytes));
    CHECK(pure.shard + pure.replica == 0);
    CHECK(mics.all == 0);
    CHECK(Near(mics.shard, 3 * micro_steps * bytes));
    CHECK(Near(mics.replica, bytes / kGroup));
    // Over the network 2(4-1)/4 of the bytes once a step, where pure ZeRO sends them three times.
    CHECK(mics.seconds < (micro_steps == 1 ? 0.75 : 0.4) * pure.seconds);
    // As on one node of 8 GPUs, but that gathers make no flat buffer.
    const Outcome node = DeepSpeedRun(OnGpus(Hybrid3(0, 0, micro_steps), kGroup));
    CHECK(mics.memory.after_init_bytes == node.memory.after_init_bytes);
    CHECK(mics.memory.StepAllocatedBytes() <= node.memory.StepAllocatedBytes());
    CHECK(static_cast<double>(mics.memory.StepAllocatedBytes()) >
          0.9 * static_cast<double>(node.memory.StepAllocatedBytes()));
  }
}

// partition_parameters.py, _partition_param_sec; stage3.py, invalidate_secondary_tensor.
TEST_CASE("Hybrid hpZ: a step's first gather of all ranks, others within the group") {
  const double bytes = 2 * Elements();
  for (const int micro_steps : {1, 3}) {
    CAPTURE(micro_steps);
    const Outcome pure = DeepSpeedRun(Hybrid3(0, 0, micro_steps));
    const Outcome hpz = DeepSpeedRun(Hybrid3(kGroup, 2, micro_steps));
    CHECK(Near(hpz.all, bytes + micro_steps * bytes));
    CHECK(Near(hpz.shard, (2 * micro_steps - 1) * bytes));
    CHECK(hpz.replica == 0);
    CHECK(hpz.seconds < 0.9 * pure.seconds);
    // The copy is a part of the group's size.
    const double more = static_cast<double>(hpz.memory.StepAllocatedBytes()) -
                        static_cast<double>(pure.memory.StepAllocatedBytes());
    CHECK(more > 0.8 * bytes / kGroup);
    CHECK(more < 1.2 * bytes / kGroup);
  }
}

// CUDAQuantizer; coalesced_collectives.py, all_to_all_quant_reduce.
TEST_CASE("Hybrid: quantized weights halve gathers, quantized gradients go in four bits by nodes") {
  const double bytes = 2 * Elements();
  TrainSetup setup = Fp16(Hybrid3(kGroup, 2));
  const Outcome hpz = DeepSpeedRun(setup);
  setup.zero.quantized_weights = true;
  const Outcome weights = DeepSpeedRun(setup);
  CHECK(Near(weights.all, bytes + bytes / 2));
  CHECK(Near(weights.shard, bytes / 2));
  CHECK(weights.seconds < hpz.seconds);
  setup.zero.quantized_gradients = true;
  const Outcome both = DeepSpeedRun(setup);
  // Vectors stay as they are.
  CHECK(both.all < bytes / 2 * 1.01);
  CHECK(Near(both.node, bytes / 4));
  CHECK(Near(both.across_nodes, bytes / 4 / 8));
  CHECK(both.seconds < weights.seconds);
  // On one node gradients are reduced as without.
  TrainSetup one_node = OnGpus(Fp16(Hybrid3(0, 0)), 8);
  const double plain = DeepSpeedRun(one_node).seconds;
  one_node.zero.quantized_gradients = true;
  CHECK(DeepSpeedRun(one_node).seconds == plain);
}

// torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_reduce.
TEST_CASE("Hybrid FSDP2: an all-reduce of shards over groups in every micro-step") {
  const double bytes = 2 * Elements();
  for (const bool fp32 : {false, true}) {
    for (const int micro_steps : {1, 3}) {
      CAPTURE(micro_steps);
      TrainSetup setup = Hybrid3(kGroup, 0, micro_steps);
      setup.precision.fp32_reduction = fp32;
      const double sent = fp32 ? 2 * bytes : bytes;
      const Outcome hybrid = Fsdp2Run(setup);
      // The root's parameters are gathered once, since its forward ends with its backward's start.
      CHECK(hybrid.all == 0);
      CHECK(hybrid.shard > micro_steps * (bytes + sent));
      CHECK(hybrid.shard < 1.01 * micro_steps * (2 * bytes + sent));
      CHECK(Near(hybrid.replica, micro_steps * sent / kGroup));
      TrainSetup pure = setup;
      pure.zero.shard_group = 0;
      CHECK(hybrid.seconds < (fp32 ? 0.8 : 0.6) * Fsdp2Run(pure).seconds);
      // The node's memory, and what is all-reduced until the backward pass ends.
      const Outcome node = Fsdp2Run(OnGpus(pure, kGroup));
      CHECK(hybrid.memory.after_init_bytes == node.memory.after_init_bytes);
      const double more = static_cast<double>(hybrid.memory.StepAllocatedBytes()) -
                          static_cast<double>(node.memory.StepAllocatedBytes());
      CHECK(more >= 0);
      CHECK(more < 1.05 * sent / kGroup);
    }
  }
}

TEST_CASE("Hybrid: links within nodes and the network work at once") {
  const auto seconds = [](SharedResource first, SharedResource second) {
    TorchClock clock({});
    clock.Issue(1, 2, TimeCause::kCommunication, first);
    clock.Issue(2, 3, TimeCause::kCommunication, second);
    clock.HostWaitsForAll();
    return clock.reading().seconds;
  };
  CHECK(seconds(SharedResource::kLink, SharedResource::kNetwork) == 3);
  CHECK(seconds(SharedResource::kLink, SharedResource::kLink) == 5);
  CHECK(seconds(SharedResource::kBoth, SharedResource::kNetwork) == 5);
  CHECK(seconds(SharedResource::kLink, SharedResource::kBoth) == 5);
  // One group of all is no group.
  CHECK(Fsdp2Run(Hybrid3(kGpus, 0)).seconds == Fsdp2Run(Hybrid3(0, 0)).seconds);
  CHECK(DeepSpeedRun(Hybrid3(kGpus, 0)).seconds == DeepSpeedRun(Hybrid3(0, 0)).seconds);
}

std::string Refusal(const Runtime& runtime, const TrainSetup& setup) {
  try {
    dynamic_cast<const TorchBased&>(runtime).Play({.model = Untied(), .setup = setup}, nullptr);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE(
    "Hybrid: search tries the groups that a runtime has, and takes them where the network is "
    "slow") {
  for (const Runtime* runtime : {&DeepSpeedRuntime(), &Fsdp2Runtime()}) {
    CAPTURE(runtime->name());
    for (const char* network : {"eth-25", "ib-8x400"}) {
      CAPTURE(network);
      HardwareProfile hardware = LoadProfile("dgx-h100");
      ApplyNetwork(hardware, network);
      SearchInputs inputs;
      inputs.runtime = runtime;
      inputs.model = LoadModel("llama3.1-8b");
      inputs.hardware = &hardware;
      Cluster cluster;
      cluster.gpus = kGpus;
      cluster.gpus_per_node = 8;
      cluster.gpu_capacity_bytes = 80'000'000'000;
      inputs.clusters = {{cluster, nullptr}};
      inputs.space = DefaultSpace(inputs.model, kGpus, 8, false);
      inputs.space.stages = {3};
      inputs.space.offload_optimizer = {{OffloadDevice::kNone, 1}};
      inputs.space.offload_param = {OffloadDevice::kNone};
      inputs.base.batch = {1, 1, kGpus, 4096};
      SetBatches(inputs.space, kGpus, 4096);
      std::set<Grouping> tried;
      for (const TrainSetup& setup : runtime->Choices(inputs, inputs.space)) {
        tried.insert({setup.zero.shard_group, setup.zero.across_stage});
      }
      CHECK(tried.contains({8, 0}));
      CHECK(tried.contains({8, 2}) == (runtime == &DeepSpeedRuntime()));
      CHECK_FALSE(tried.contains({8, 1}));
      const SearchResult result = runtime->Search(inputs)->Run();
      REQUIRE(result.best);
      const TrainSetup& best = result.stages[*result.best].estimate.setup;
      if (std::string(network) == "eth-25") CHECK(best.zero.shard_group == 8);
    }
  }
}

TEST_CASE("Hybrid: what DeepSpeed and FSDP2 cannot do is refused by name") {
  TrainSetup setup = Hybrid3(kGroup, 0);
  setup.zero = ReaderZeroDefaults(1);
  setup.zero.shard_group = kGroup;
  CHECK(Has(Refusal(DeepSpeedRuntime(), setup), wording::kShardGroupsAtStageAlone));
  // What no other stage mends is named first.
  setup.zero.across_stage = 1;
  CHECK(Has(Refusal(DeepSpeedRuntime(), setup), "⟦across_groups⟧ optimizer"));
  CHECK(Has(Refusal(Fsdp2Runtime(), setup), "⟦across_groups⟧ optimizer"));
  CHECK(Has(Refusal(DeepSpeedRuntime(), Hybrid3(kGroup, 1)), wording::kGiveReplicateOrGradients));
  CHECK(Has(Refusal(Fsdp2Runtime(), Hybrid3(kGroup, 2)), "⟦across_groups⟧ gradients"));
  TrainSetup mics = Hybrid3(kGroup, 0);
  mics.zero.offload_optimizer.device = OffloadDevice::kCpu;
  CHECK(Has(Refusal(DeepSpeedRuntime(), mics), wording::kMicsHasNoOffload));
  mics.zero.across_stage = 2;
  CHECK(Refusal(DeepSpeedRuntime(), mics).empty());
  mics = Hybrid3(kGroup, 0);
  mics.zero.quantized_weights = true;
  CHECK(Has(Refusal(DeepSpeedRuntime(), mics), wording::kMicsIgnoresZeroQuantizedWeights));
  CHECK(Has(Refusal(Fsdp2Runtime(), mics), "quantizes nothing"));
  TrainSetup gradients = Hybrid3(0, 0);
  gradients.zero.quantized_gradients = true;
  CHECK(Has(Refusal(DeepSpeedRuntime(), gradients), wording::kReadGradientsAsFp));
  CHECK(Refusal(DeepSpeedRuntime(), Fp16(gradients)).empty());
}

TEST_CASE("Hybrid: formats that have no shard groups say so") {
  const TrainSetup mics = Hybrid3(kGroup, 0);
  CHECK(Has(DeepSpeedRuntime().FormatCannot(ConfigFormat::kHfTrainer, mics),
            wording::kMicsShardSize));
  CHECK(Lacks(DeepSpeedRuntime().FormatCannot(ConfigFormat::kHfTrainer, Hybrid3(kGroup, 2)),
              "zero_hpz"));
  CHECK(Has(Fsdp2Runtime().FormatCannot(ConfigFormat::kHfTrainer, mics), "shard groups"));
  CHECK(Fsdp2Runtime().FormatCannot(ConfigFormat::kAccelerate, mics).empty());
  CHECK(Has(Fsdp2Runtime().ConfigJson(mics, 12), R"("mesh_shape":[4,8])"));
}

}  // namespace
}  // namespace zeroplan
