// What other executors reached on 8 x H200 beside what zeroplan predicts for its own executor at
// the same choice. Orientation, not validation: the kernels, the schedule and the allocator of the
// measured side are other ones.
//
//   orientation_benchmark [FILE]     default benchmarks/measure/results/other_executors.json
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/families/load_model.h"
#include "core/model/model_spec.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/choices.h"
#include "planner/estimate/estimate.h"

namespace zeroplan {
namespace {

struct Row {
  std::string executor, settings, model;
  TrainSetup setup;
  double measured_tokens_per_second = 0;  // of one GPU
  double device_used_bytes = 0;           // 0: not measured
  ChoiceEstimate predicted;
};

OffloadDevice DeviceNamed(const std::string& name) {
  if (name == "none") return OffloadDevice::kNone;
  if (name == "cpu") return OffloadDevice::kCpu;
  ThrowUsage("'{}' is no device of these runs; use none or cpu", name);
}

Row ReadRow(const nlohmann::json& json, const HardwareProfile& hardware) {
  Row row;
  row.executor = json.at("executor");
  row.settings = json.at("settings");
  row.model = json.at("model");
  row.measured_tokens_per_second = json.at("tokens_per_second_per_gpu");
  constexpr double kGib = 1024.0 * 1024 * 1024;
  row.device_used_bytes = json.value("device_used_gib", 0.0) * kGib;

  TrainSetup& setup = row.setup;
  setup.zero.stage = json.at("stage");
  setup.zero.offload_optimizer.device = DeviceNamed(json.at("offload_optimizer"));
  setup.zero.offload_param.device = DeviceNamed(json.at("offload_param"));
  setup.recompute = json.at("full_recompute").get<bool>() ? FullRecompute() : kNoRecompute;
  const std::string dtype = json.at("dtype");
  setup.precision.dtype = dtype == "fp16" ? Dtype::kF16 : Dtype::kBF16;
  setup.precision.grad_accum_dtype = setup.precision.dtype;
  const int gpus = json.at("gpus");
  setup.batch.world_size = gpus;
  setup.batch.micro_batch = json.at("micro_batch");
  setup.batch.grad_accum = json.at("grad_accum");
  setup.batch.seq_len = json.at("seq_len");
  ValidateSetup(setup, "other_executors.json");

  EstimateInputs inputs;
  inputs.model = LoadModel(row.model);
  inputs.model.positions = setup.batch.seq_len;
  const uint64_t params = json.value("params", inputs.model.ParamCount());
  if (params != inputs.model.ParamCount()) {
    ThrowUsage("{}: {} parameters measured, {} predicted for", row.model, params,
               inputs.model.ParamCount());
  }
  const int per_node = static_cast<int>(std::llround(hardware.node.gpus.value));
  Cluster& cluster = inputs.cluster;
  cluster.hardware = hardware.name;
  cluster.gpu_name = hardware.gpu.name;
  cluster.gpus = gpus;
  cluster.gpus_per_node = std::min(gpus, per_node);
  cluster.gpu_capacity_bytes = static_cast<uint64_t>(hardware.gpu.usable_memory.value);
  cluster.runtime_bytes = RuntimeBytes(hardware, gpus);
  cluster.communicator_bytes = CommunicatorBytes(hardware, gpus);
  inputs.lower.backend = Backend::kCuda;
  inputs.lower.flash_attention = hardware.gpu.flash_attention;
  inputs.setups = {setup};
  const CostModel costs(hardware, ClusterShape{gpus, cluster.gpus_per_node});
  inputs.costs = &costs;
  row.predicted = EstimateChoices(inputs).choices.front();
  return row;
}

std::string Choice(const Row& row) {
  const BatchSpec& batch = row.setup.batch;
  return fmt::format(
      "{} x {}, {} x {}{}, {}", batch.world_size, row.model, batch.micro_batch, batch.grad_accum,
      batch.seq_len == 1024 ? "" : fmt::format(" of {}", batch.seq_len), SetupLabel(row.setup));
}

void PrintThroughput(const std::vector<Row>& rows) {
  fmt::print("{:<10} {:<28} {:<84} {:>9} {:>9} {:>6}\n", "executor", "its settings",
             "GPUs x model, micro-batch x micro-steps, choice", "measured", "zeroplan", "ratio");
  for (const Row& row : rows) {
    const double predicted = *row.predicted.time.tokens_per_second / row.setup.batch.world_size;
    fmt::print("{:<10} {:<28} {:<84} {:>9.0f} {:>9.0f} {:>6.2f}\n", row.executor, row.settings,
               Choice(row), row.measured_tokens_per_second, predicted,
               predicted / row.measured_tokens_per_second);
  }
}

void PrintMemory(const std::vector<Row>& rows) {
  fmt::print("{:<10} {:<84} {:>8} {:>8} {:>6} {:>11}\n", "executor",
             "GPUs x model, micro-batch x micro-steps, choice", "used GB", "zeroplan", "ratio",
             "more, GB");
  for (const Row& row : rows) {
    if (row.device_used_bytes == 0) continue;
    const auto planned = static_cast<double>(row.predicted.footprint.gpu_total());
    fmt::print("{:<10} {:<84} {:>8.1f} {:>8.1f} {:>6.2f} {:>11.1f}\n", row.executor, Choice(row),
               row.device_used_bytes / 1e9, planned / 1e9, row.device_used_bytes / planned,
               (row.device_used_bytes - planned) / 1e9);
  }
}

// ZeRO-Offload (Ren et al. 2021, section 6): GPT-2 10B on one V100-32GB of a DGX-2, batch 512 by
// micro-batches of 10, counted as executed FLOPs with recompute.
void PrintPublished() {
  const HardwareProfile hardware = LoadProfile("dgx-2");
  EstimateInputs inputs;
  inputs.model = LoadModel("gpt2-10b");
  inputs.cluster.gpus = inputs.cluster.gpus_per_node = 1;
  inputs.cluster.gpu_capacity_bytes = static_cast<uint64_t>(hardware.gpu.usable_memory.value);
  inputs.cluster.runtime_bytes = RuntimeBytes(hardware, 1);
  inputs.lower.backend = Backend::kCuda;
  inputs.lower.flash_attention = hardware.gpu.flash_attention;
  TrainSetup setup;
  setup.zero.stage = 2;
  setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  setup.recompute = FullRecompute();
  setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kF16;
  setup.batch.micro_batch = 10;
  setup.batch.grad_accum = 51;
  setup.batch.seq_len = 1024;
  ValidateSetup(setup, "ZeRO-Offload");
  inputs.setups = {setup};
  const CostModel costs(hardware, ClusterShape{1, 1});
  inputs.costs = &costs;
  const double tokens = *EstimateChoices(inputs).choices.front().time.tokens_per_second;
  const double flops = HardwareFlopsPerToken(inputs.model, 1024, true);
  constexpr double kPublished = 40e12;
  fmt::print(
      "\nGPT-2 10B on one V100-32GB, stage 2, optimizer on the CPU, full recompute, 10 x 51 "
      "sequences;\n{:.2f} GFLOP a token are executed, recompute included. ZeRO-Offload's paper: "
      "{:.0f} TFLOP/s ({:.0f} tokens/s).\nzeroplan predicts {:.1f} TFLOP/s ({:.0f} tokens/s), "
      "{:.2f} "
      "times that.\n",
      flops / 1e9, kPublished / 1e12, kPublished / flops, tokens * flops / 1e12, tokens,
      tokens * flops / kPublished);
}

void Run(const std::string& file) {
  std::ifstream in(file);
  if (!in) ThrowUsage("{}: cannot be read", file);
  const nlohmann::json json = nlohmann::json::parse(in);
  const HardwareProfile hardware = LoadProfile("hgx-h200");
  std::vector<Row> rows;
  for (const nlohmann::json& row : json.at("rows")) rows.push_back(ReadRow(row, hardware));
  fmt::print(
      "Tokens/s of one GPU: other executors as measured on 8 x H200, zeroplan's own "
      "executor "
      "as predicted.\nOther executors: this is orientation, it validates nothing.\n\n");
  PrintThroughput(rows);
  fmt::print(
      "\nGPU memory: all that the other executor took (context, allocator's reserve), and "
      "zeroplan's "
      "planned total.\n\n");
  PrintMemory(rows);
  PrintPublished();
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) {
  try {
    zeroplan::Run(argc > 1 ? argv[1]
                           : ZEROPLAN_SOURCE_DIR
                      "/benchmarks/measure/results/other_executors.json");
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
