#include "tests/planner/runtimes/runtime_rows.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "core/base/error.h"
#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

DeepSpeedRow DeepSpeedRowOf(const nlohmann::json& json) {
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
  zero.overlap_comm = json.value("overlap_comm", true);
  zero.sub_group_elements = json.value("sub_group_size", zero.sub_group_elements);
  zero.reduce_bucket_elements = json.value("reduce_bucket_size", kAuto);
  zero.prefetch_bucket_elements = json.value("stage3_prefetch_bucket_size", kAuto);
  if (json.contains("offload_optimizer")) zero.offload_optimizer.device = OffloadDevice::kCpu;
  if (json.contains("offload_param")) zero.offload_param.device = OffloadDevice::kCpu;
  zero.offload_optimizer.ratio = json.value("ratio", 1.0);
  setup.recompute = json.at("recompute").get<bool>() ? FullRecompute() : kNoRecompute;
  setup.precision.dtype = json.at("dtype") == "fp16" ? Dtype::kF16 : Dtype::kBF16;
  setup.precision.grad_accum_dtype = setup.precision.dtype;
  row.run.recipe.compile.layers = json.at("compiled");
  row.run.recipe.compile.loss = json.value("compiled_loss", false);
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
  row.step_seconds = json.value("step_ms", 0.0) / 1e3;
  row.small_host = json.contains("host");
  row.later = json.contains("later");
  row.chosen = json.contains("chosen");
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
      row.run.recipe.compile.layers
          ? row.run.recipe.compile.loss ? ", compiled with its loss" : ", compiled"
          : "",
      setup.precision.dtype == Dtype::kF16 ? ", fp16"
      : zero.overlap_comm                  ? ""
                                           : ", overlap_comm off",
      setup.batch.micro_batch, setup.batch.grad_accum, setup.batch.seq_len,
      json.contains("limit") ? fmt::format(", held to {} GiB", json.at("limit").get<double>())
                             : "");
  row.group = setup.batch.world_size == 1 ? "1 GPU"
              : zero.stage == 3           ? "several GPUs, stage 3"
                                          : "several GPUs, stages 0 to 2";
  row.predicted = DeepSpeedFootprint(row.run);
  return row;
}

Fsdp2Row Fsdp2RowOf(const nlohmann::json& json) {
  Fsdp2Row row;
  row.run.model = LoadModel(json.at("model").get<std::string>());
  TrainSetup& setup = row.run.setup;
  setup.zero.stage = json.at("stage");
  setup.batch.world_size = json.at("gpus");
  setup.batch.micro_batch = json.at("micro_batch");
  setup.batch.seq_len = json.at("seq_len");
  if (row.run.model.family->name() == "gpt2") row.run.model.positions = setup.batch.seq_len;
  if (json.at("recompute").get<bool>()) setup.recompute = FullRecompute();
  const bool offload = json.at("offload");
  if (offload) {
    setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
    setup.zero.offload_param.device = OffloadDevice::kCpu;
  }
  row.run.recipe.compile.layers = json.value("compiled", true);
  row.run.recipe.compile.loss = json.at("compiled_loss");
  row.allocated = json.value("allocated", 0.0);
  row.reserved = json.value("reserved", 0.0);
  row.device_used = json.value("device_used", 0.0);
  row.host_rss = json.value("host_rss", 0.0);
  row.step_seconds = static_cast<double>(setup.batch.micro_batch * setup.batch.seq_len) /
                     json.at("tok_s").get<double>();
  row.small_host = json.contains("host");
  row.later = json.contains("later");
  row.chosen = json.contains("chosen");
  row.predicted = Fsdp2Footprint(row.run);
  row.label = fmt::format(
      "{}, {} GPU{}, {}{}{}{}, {} x {}", row.run.model.name, setup.batch.world_size,
      setup.batch.world_size > 1 ? "s" : "", setup.zero.stage == 3 ? "resharded" : "not resharded",
      offload ? ", all on CPU" : "", setup.recompute == kNoRecompute ? "" : ", recompute",
      row.run.recipe.compile.loss     ? ", compiled with its loss"
      : row.run.recipe.compile.layers ? ", compiled"
                                      : "",
      setup.batch.micro_batch, setup.batch.seq_len);
  return row;
}

template <typename Row>
std::vector<Row> ReadRows(const char* file, Row (*row_of)(const nlohmann::json&)) {
  std::ifstream in(SourcePath(file));
  std::vector<Row> rows;
  std::string line;
  std::getline(in, line);  // where they were measured
  while (std::getline(in, line)) rows.push_back(row_of(nlohmann::json::parse(line)));
  return rows;
}

// The hosts that the runs were measured on: one of eight GPUs, and one of two.
HardwareProfile Host(bool small) {
  HardwareProfile profile = LoadProfile(MeasuredH200());
  if (!small) return profile;
  const HardwareProfile measured =
      LoadProfile(SourcePath("benchmarks/measure/results/hw_measure_2x_h200.json"));
  NodeProfile& node = profile.node;
  node.triad_bandwidth = measured.node.triad_bandwidth;
  node.adam_bandwidth = measured.node.adam_bandwidth;
  node.pcie = measured.node.pcie;
  return profile;
}

std::shared_ptr<TorchMachine> MachineOf(bool small, int gpus) {
  static std::map<std::pair<bool, int>, std::shared_ptr<TorchMachine>> machines;
  auto& machine = machines[{small, gpus}];
  if (!machine) {
    machine = std::make_shared<TorchMachine>(Host(small), ClusterShape{gpus, small ? 2 : 8});
  }
  return machine;
}

template <typename Run, TorchFootprint (*kFootprint)(const Run&, TorchTimer*)>
std::function<RuntimeTime(const TimeConstants&)> Predictor(Run run,
                                                           std::shared_ptr<TorchMachine> machine) {
  run.limit_bytes.reset();
  return [run, machine](const TimeConstants& constants) {
    TorchTimer timer(machine.get(), constants);
    kFootprint(run, &timer);
    return *timer.Time(run.setup.batch.grad_accum);
  };
}

TimedRow OtherRowOf(const nlohmann::json& json) {
  TorchPlay run;
  run.model = LoadModel(json.at("model").get<std::string>());
  TrainSetup& setup = run.setup;
  setup.zero = ReaderZeroDefaults(/*stage=*/3);
  setup.batch = {json.at("micro_batch"), 1, 1, json.at("seq_len")};
  run.recipe.compile = {true, json.value("compiled_loss", false)};
  TimedRow row;
  row.group = "PyTorch alone";
  row.label = fmt::format("{}: {}, 1 GPU, {} x 1 x {}", row.group, run.model.name,
                          setup.batch.micro_batch, setup.batch.seq_len);
  row.measured = static_cast<double>(setup.batch.micro_batch * setup.batch.seq_len) /
                 json.at("tok_s").get<double>();
  row.predict = Predictor<TorchPlay, Fsdp2Footprint>(std::move(run), MachineOf(/*small=*/false, 1));
  return row;
}

std::vector<TimedRow> RowsWithTime(bool chosen) {
  std::vector<TimedRow> rows;
  const auto group = [&](const auto& row, std::string name) {
    return name + (row.chosen ? ", chosen" : row.later ? ", later" : "");
  };
  const auto recomputes_at_stage_3 = [](const DeepSpeedRow& row) {
    const TrainSetup& setup = row.run.setup;
    return setup.zero.stage == 3 && setup.recompute.kind != RecomputeKind::kNone &&
           setup.zero.offload_optimizer.device == OffloadDevice::kNone;
  };
  for (DeepSpeedRow& row : LoadDeepSpeedRows()) {
    if (row.step_seconds == 0 || (row.chosen && !recomputes_at_stage_3(row)) != chosen) continue;
    const TrainSetup& setup = row.run.setup;
    const bool offload = setup.zero.offload_optimizer.device == OffloadDevice::kCpu;
    rows.push_back({row.label,
                    recomputes_at_stage_3(row)
                        ? kStage3RecomputeGroup
                        : group(row, offload ? "DeepSpeed, offload" : "DeepSpeed"),
                    row.step_seconds,
                    Predictor<TorchPlay, DeepSpeedFootprint>(
                        row.run, MachineOf(row.small_host, setup.batch.world_size))});
  }
  for (Fsdp2Row& row : LoadFsdp2Rows()) {
    if (row.chosen != chosen) continue;
    rows.push_back({row.label, group(row, "FSDP2"), row.step_seconds,
                    Predictor<TorchPlay, Fsdp2Footprint>(
                        row.run, MachineOf(row.small_host, row.run.setup.batch.world_size))});
  }
  return rows;
}

}  // namespace

std::vector<DeepSpeedRow> LoadDeepSpeedRows() {
  return ReadRows("tests/data/runtimes/deepspeed_runs.jsonl", DeepSpeedRowOf);
}
std::vector<Fsdp2Row> LoadFsdp2Rows() {
  return ReadRows("tests/data/runtimes/fsdp2_runs.jsonl", Fsdp2RowOf);
}

std::vector<TimedRow> LoadTimedRows() { return RowsWithTime(false); }
std::vector<TimedRow> LoadChosenRows() { return RowsWithTime(true); }

std::vector<TimedRow> LoadOtherRows() {
  return ReadRows("tests/data/runtimes/other_runs.jsonl", OtherRowOf);
}

RunErrors RunErrorsOf(std::vector<double> errors) {
  if (errors.empty()) return {};
  const auto [least, most] = std::minmax_element(errors.begin(), errors.end());
  RunErrors of{static_cast<int>(errors.size()), 0, *least, *most};
  for (double& error : errors) error = std::abs(error);
  std::sort(errors.begin(), errors.end());
  of.median = errors[errors.size() / 2];
  return of;
}

std::string ErrorsText(const std::vector<double>& errors) {
  const RunErrors of = RunErrorsOf(errors);
  return of.runs == 0
             ? "{}"
             : fmt::format("{{{}, {:.4f}, {:.4f}, {:.4f}}}", of.runs, of.median, of.least, of.most);
}

void CheckErrors(const RunErrors& said, const std::vector<double>& errors) {
  const RunErrors of = RunErrorsOf(errors);
  const auto near = [](double value) { return doctest::Approx(value).epsilon(0.0002).scale(1); };
  CHECK(said.runs == of.runs);
  CHECK(said.median == near(of.median));
  CHECK(said.least == near(of.least));
  CHECK(said.most == near(of.most));
}

void CheckDataHolds(const std::string& table) {
  std::ifstream in(SourcePath("tests/data/runtimes/predicted.txt"));
  std::stringstream text;
  text << in.rdbuf();
  std::istringstream lines(table);
  std::string line;
  while (std::getline(lines, line)) {
    CHECK_MESSAGE(text.str().find(line) != std::string::npos, line);
  }
}

}  // namespace zeroplan
