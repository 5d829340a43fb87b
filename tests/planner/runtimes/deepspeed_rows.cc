#include "tests/planner/runtimes/deepspeed_rows.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/config/reader_defaults.h"
#include "core/families/load_model.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

DeepSpeedRow RowOf(const nlohmann::json& json) {
  DeepSpeedRow row;
  row.run.model = LoadModel(json.at("model").get<std::string>());
  TrainSetup& setup = row.run.setup;
  setup.batch.world_size = json.at("gpus");
  setup.batch.micro_batch = json.at("micro_batch");
  setup.batch.grad_accum = json.at("grad_accum");
  setup.batch.seq_len = json.at("seq_len");
  row.run.model.positions = setup.batch.seq_len;
  setup.zero = ReaderZeroDefaults(json.at("stage"));
  ZeroConfig& zero = setup.zero;
  zero.overlap_comm = true;
  zero.sub_group_elements = json.value("sub_group_size", zero.sub_group_elements);
  zero.reduce_bucket_elements = json.value("reduce_bucket_size", kAuto);
  zero.prefetch_bucket_elements = json.value("stage3_prefetch_bucket_size", kAuto);
  if (json.contains("offload_optimizer")) zero.offload_optimizer.device = OffloadDevice::kCpu;
  if (json.contains("offload_param")) zero.offload_param.device = OffloadDevice::kCpu;
  zero.offload_optimizer.ratio = json.value("ratio", 1.0);
  setup.recompute = json.at("recompute").get<bool>() ? FullRecompute() : kNoRecompute;
  setup.precision.dtype = json.at("dtype") == "fp16" ? Dtype::kF16 : Dtype::kBF16;
  setup.precision.grad_accum_dtype = setup.precision.dtype;
  row.run.compiled = json.at("compiled");
  row.run.compiled_loss = json.value("compiled_loss", false);
  if (json.contains("limit")) {
    row.run.limit_bytes = static_cast<uint64_t>(json.at("limit").get<double>() * (1 << 30));
  }
  row.out_of_memory = json.value("out_of_memory", false);
  row.after_init = json.value("after_init", 0.0);
  row.init_peak = json.value("init_peak", 0.0);
  row.allocated = json.value("allocated", 0.0);
  row.reserved = json.value("reserved", 0.0);
  row.device_used = json.value("device_used", 0.0);
  row.host_rss = json.value("host_rss", 0.0);
  row.label = fmt::format(
      "{}, {} GPU{}, stage {}{}{}{}{}{}, {} x {} x {}{}", row.run.model.name,
      setup.batch.world_size, setup.batch.world_size > 1 ? "s" : "", zero.stage,
      zero.offload_optimizer.device == OffloadDevice::kCpu
          ? zero.offload_optimizer.ratio < 1
                ? fmt::format(", optimizer {} on CPU", zero.offload_optimizer.ratio)
                : ", optimizer on CPU"
          : "",
      zero.offload_param.device == OffloadDevice::kCpu ? ", parameters on CPU" : "",
      setup.recompute == kNoRecompute ? "" : ", recompute",
      row.run.compiled ? row.run.compiled_loss ? ", compiled with its loss" : ", compiled" : "",
      setup.precision.dtype == Dtype::kF16 ? ", fp16" : "", setup.batch.micro_batch,
      setup.batch.grad_accum, setup.batch.seq_len,
      json.contains("limit") ? fmt::format(", held to {} GiB", json.at("limit").get<double>())
                             : "");
  row.group = setup.batch.world_size == 1 ? "1 GPU"
              : zero.stage == 3           ? "several GPUs, stage 3"
                                          : "several GPUs, stages 0 to 2";
  row.predicted = DeepSpeedFootprint(row.run);
  return row;
}

}  // namespace

std::vector<DeepSpeedRow> LoadDeepSpeedRows() {
  std::ifstream in(SourcePath("tests/data/runtimes/deepspeed_runs.jsonl"));
  std::vector<DeepSpeedRow> rows;
  std::string line;
  std::getline(in, line);  // where they were measured
  while (std::getline(in, line)) rows.push_back(RowOf(nlohmann::json::parse(line)));
  return rows;
}

std::string ValidationTable(const std::vector<DeepSpeedRow>& rows) {
  std::string table =
      "| run: micro-batch x micro-steps x sequence | initialisation | allocated | reserved | "
      "device "
      "| host |\n| --- | --- | --- | --- | --- | --- |\n";
  const auto cell = [](double predicted, double measured) {
    if (measured == 0) return fmt::format("{:.2f} / not known", predicted);
    return fmt::format("{:.2f} / {:.2f}, {:+.1f} %", predicted, measured,
                       100 * (predicted / measured - 1));
  };
  for (const DeepSpeedRow& row : rows) {
    const RuntimeFootprint& predicted = row.predicted;
    if (row.out_of_memory) {
      table += fmt::format(
          "| {} | predicted {:.2f}, out of memory in {} | | | | |\n", row.label,
          Gib(predicted.peaks[0].allocated_bytes),
          predicted.out_of_memory ? TorchPhaseName(*predicted.out_of_memory) : "no phase");
      continue;
    }
    const double device = Gib(predicted.StepReservedBytes() + predicted.context_bytes);
    table += fmt::format("| {} | {} | {} | {} | {} | {} |\n", row.label,
                         cell(Gib(predicted.peaks[0].allocated_bytes), row.init_peak),
                         cell(Gib(predicted.StepAllocatedBytes()), row.allocated),
                         cell(Gib(predicted.StepReservedBytes()), row.reserved),
                         row.gave_back() ? fmt::format("{:.2f} / given back", device)
                                         : cell(device, row.device_used),
                         cell(Gib(predicted.HostBytes()), row.host_rss));
  }
  return table;
}

}  // namespace zeroplan
