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

// Of a built-in machine's name, or a file of the source tree.
HardwareProfile ProfileOf(const std::string& hw) {
  return LoadProfile(hw.find('/') == std::string::npos ? hw : SourcePath(hw));
}

TimedRow OtherRowOf(const nlohmann::json& json) {
  const ModelSpec model = LoadModel(json.at("model").get<std::string>());
  TrainSetup setup;
  setup.zero = ReaderZeroDefaults(json.at("stage"));
  setup.zero.overlap_comm = true;
  if (json.value("offload", false)) setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  setup.batch = {json.at("micro_batch"), 1, json.at("gpus"), json.at("seq_len")};
  setup.recompute = json.value("recompute", false) ? FullRecompute() : kNoRecompute;
  setup.precision.fp32_reduction = json.value("fp32_reduction", false);
  const bool compiled = json.value("compiled", false);
  const bool compiled_loss = json.value("compiled_loss", false);
  const auto machine = std::make_shared<TorchMachine>(
      ProfileOf(json.at("hw")),
      ClusterShape{setup.batch.world_size, std::min(setup.batch.world_size, 8)});
  TimedRow row;
  row.group = json.at("group");
  const bool alone = row.group == "PyTorch alone";
  row.label = fmt::format("{}: {}, {} GPU{}{}{}{}, {} x 1 x {}", row.group, model.name,
                          setup.batch.world_size, setup.batch.world_size > 1 ? "s" : "",
                          alone ? "" : fmt::format(", stage {}", setup.zero.stage),
                          json.value("offload", false) ? ", optimizer on CPU" : "",
                          setup.recompute == kNoRecompute ? "" : ", recompute",
                          setup.batch.micro_batch, setup.batch.seq_len);
  row.measured = static_cast<double>(setup.batch.micro_batch * setup.batch.seq_len) /
                 json.at("tok_s").get<double>();
  if (json.at("runtime") == "fsdp2") {
    row.predict = Predictor<TorchPlay, Fsdp2Footprint>(
        {model, setup, {compiled, compiled_loss}, {}}, machine);
  } else {
    row.predict = Predictor<TorchPlay, DeepSpeedFootprint>(
        {model, setup, {compiled, compiled_loss}, {}}, machine);
  }
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

std::vector<TimedRow> LoadPublishedRows() {
  std::vector<TimedRow> rows;
  std::ifstream file(SourcePath("tests/fixtures/published_runs.txt"));
  std::map<std::pair<std::string, int>, std::shared_ptr<TorchMachine>> machines;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#' || line.starts_with("id ")) continue;
    std::istringstream words(line);
    std::string id, machine, offload, recompute, style;
    TorchPlay run;
    run.model = LoadModel("gpt2");
    ModelSpec& model = run.model;
    BatchSpec& batch = run.setup.batch;
    double tokens_per_second = 0;
    words >> id >> machine >> batch.world_size >> run.setup.zero.stage >> offload >> recompute >>
        model.layers >> model.hidden >> model.heads >> model.vocab >> batch.seq_len >>
        batch.micro_batch >> batch.grad_accum >> style >> tokens_per_second;
    ZEROPLAN_CHECK(words, "{}", line);
    const bool mosaic = id.starts_with("mpt-") || id.starts_with("mgpt-");
    if (style != "framework" || offload != "none" || !mosaic) continue;
    model.ffn = 4 * model.hidden;
    model.padded_vocab = (model.vocab + 127) / 128 * 128;
    model.positions = batch.seq_len;
    run.setup.recompute = recompute == "full" ? FullRecompute() : kNoRecompute;
    // FSDP's mixed precision "DEFAULT" reduces in fp32, "PURE" does not.
    run.setup.precision.fp32_reduction = id.find("amp_bf16") != std::string::npos;
    auto& made = machines[{machine, batch.world_size}];
    if (!made) {
      const HardwareProfile profile = LoadProfile(machine);
      made = std::make_shared<TorchMachine>(
          profile, ClusterShape{batch.world_size, std::min(batch.world_size, 8)});
    }
    const auto tokens = static_cast<double>(batch.micro_batch * batch.grad_accum * batch.seq_len);
    rows.push_back(
        {id, machine, tokens / tokens_per_second, Predictor<TorchPlay, Fsdp2Footprint>(run, made)});
  }
  return rows;
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
