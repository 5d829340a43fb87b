// A plan small enough to train in a test, and its file.
#pragma once

#include <string>

#include "core/config/deepspeed_reader.h"
#include "hwprofiles/loader.h"
#include "planner/plan/plan_file.h"
#include "tests/tiny_model.h"

namespace zeroplan {

inline constexpr const char* kSmallConfig = R"({
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 3,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
  "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"},
                        "reduce_bucket_size": 100000, "sub_group_size": 100000}
})";

inline ModelSpec SmallModel() {
  return testing::TinyModel({.name = "small",
                             .layers = 2,
                             .hidden = 32,
                             .ffn = 128,
                             .vocab = 256,
                             .padded_vocab = 256,
                             .positions = 32});
}

// As a search would leave it: two ranks, lowered for the GPU, estimated with the default profile.
inline Plan SmallPlan(const std::string& config = kSmallConfig) {
  Plan plan;
  plan.model = SmallModel();
  ReadContext context;
  context.world_size = 2;
  context.seq_len = 32;
  context.layers = plan.model.layers;
  plan.setup = ReadDeepSpeedConfig(config, "config", context).setup;
  const HardwareProfile hardware = LoadProfile(std::string(kDefaultProfile));
  plan.cluster.hardware = hardware.name;
  plan.cluster.gpu_name = hardware.gpu.name;
  plan.cluster.gpus = plan.cluster.gpus_per_node = 2;
  plan.cluster.gpu_capacity_bytes = 80'000'000'000;
  plan.cluster.host_capacity_bytes = 500'000'000'000;
  plan.cluster.runtime_bytes = RuntimeBytes(hardware, 2);
  plan.cluster.communicator_bytes = CommunicatorBytes(hardware, 2);
  plan.lower.backend = Backend::kCuda;
  plan.lower.logits_chunk_bytes = 8192;
  plan.lower.checkpoint_chunk_elements = 1 << 16;
  const CostModel costs(hardware, ClusterShape{2, 2});
  plan.choice = EstimateProgram(Lower(plan.model, plan.setup, plan.lower), plan.cluster, &costs);
  plan.stats.candidates = 100;
  plan.stats.lowered = 7;
  plan.advice = {"Why stage 2: \"it fits\".", "A second paragraph."};
  return plan;
}

}  // namespace zeroplan
