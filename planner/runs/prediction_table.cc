#include "planner/runs/prediction_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/lowering/lower.h"
#include "core/program/fingerprint.h"
#include "cost_models/cost_model.h"
#include "cost_models/step_time.h"
#include "planner/estimate/choices.h"
#include "planner/report/report_columns.h"
#include "planner/report/report_text.h"

namespace zeroplan {

namespace {

constexpr double kMilli = 1e3, kGiga = 1e-9;

Cluster ClusterOf(const MeasuredRun& run, const HardwareProfile& hardware) {
  Cluster cluster;
  cluster.hardware = hardware.name;
  cluster.gpu_name = hardware.gpu.name;
  cluster.gpus = run.setup.batch.world_size;
  cluster.gpus_per_node =
      run.gpus_per_node.value_or(std::min(cluster.gpus, hardware.node.gpu_count()));
  cluster.gpu_capacity_bytes = static_cast<uint64_t>(hardware.gpu.usable_memory.value);
  cluster.runtime_bytes = RuntimeBytes(hardware, cluster.gpus);
  cluster.communicator_bytes = CommunicatorBytes(hardware, cluster.gpus);
  return cluster;
}

// "+3.1 %": so much more was measured than predicted, as a share of the prediction.
std::string MoreText(double predicted, double measured) {
  return fmt::format("{:+.1f} %", (measured / predicted - 1) * 100);
}

// Unknown values are "-".
std::string Number(const std::optional<double>& value, double scale, int digits) {
  return value ? fmt::format("{:.{}f}", *value * scale, digits) : "-";
}

// Predicted and measured step, tokens, communication, offload and memory. Step and memory also have
// the difference.
std::vector<std::string> CellsOf(const Comparison& row) {
  const TimeEstimate& time = row.predicted.time;
  const MeasuredRun& run = row.run;
  std::vector<std::string> cells;
  const auto pair = [&](std::optional<double> predicted, std::optional<double> measured,
                        double scale, int digits, bool with_difference) {
    cells.push_back(Number(predicted, scale, digits));
    cells.push_back(Number(measured, scale, digits));
    if (!with_difference) return;
    const bool both = predicted && measured && *predicted > 0;
    cells.push_back(both ? MoreText(*predicted, *measured) : "-");
  };
  pair(time.total_seconds, run.step_seconds, kMilli, 2, true);
  pair(time.tokens_per_second, run.tokens_per_second, 1, 0, false);
  pair(time.exposed_comm_seconds, run.exposed_comm_seconds, kMilli, 1, false);
  pair(time.exposed_offload_seconds, run.exposed_offload_seconds, kMilli, 1, false);
  pair(static_cast<double>(row.predicted.footprint.gpu_total()), run.device_used_bytes, kGiga, 2,
       true);
  return cells;
}

// The mark after the label of a run whose program is not the predicted one.
std::string_view Mark(SameProgram same) {
  switch (same) {
    case SameProgram::kYes:
      return "";
    case SameProgram::kOtherArenas:
      return " (!)";
    case SameProgram::kOtherFingerprint:
      return " (#)";
  }
  return "";
}

std::string RunLabel(const Comparison& row) {
  const BatchSpec& batch = row.run.setup.batch;
  return fmt::format("{} x {}, {} x {} of {}, {}, {}{}", batch.world_size, row.run.model,
                     batch.micro_batch, batch.grad_accum, batch.seq_len,
                     DtypeName(row.run.setup.precision.dtype), SetupLabel(row.run.setup),
                     Mark(row.same));
}

// The meanings of the marks after labels, a line each.
std::vector<std::string> Remarks(const std::vector<Comparison>& rows) {
  std::vector<std::string> remarks;
  if (std::any_of(rows.begin(), rows.end(),
                  [](const Comparison& row) { return row.same == SameProgram::kOtherArenas; })) {
    remarks.emplace_back(
        "(!) The run's arenas have other sizes than this choice has here: it ran with settings "
        "that metrics do not hold. ⟦plan⟧ names its plan.");
  }
  for (const Comparison& row : rows) {
    if (row.same != SameProgram::kOtherFingerprint) continue;
    remarks.push_back(fmt::format(
        "(#) {}: what ran is the program {} of zeroplan {}, and what is predicted here is {}.",
        row.run.source, FormatFingerprint(row.run.program->fingerprint), row.run.program->version,
        FormatFingerprint(row.fingerprint)));
  }
  return remarks;
}

// The program of a run whose metrics lack the inputs of lowering. Missing settings are zeroplan's
// defaults, with or without checkpoints, depending on which results in the run's arenas.
Program OlderProgram(const MeasuredRun& run, const ModelSpec& model,
                     const HardwareProfile& hardware) {
  LowerOptions lower;
  lower.backend = Backend::kCuda;
  lower.flash_attention = hardware.gpu.flash_attention;
  lower.checkpoints = false;
  Program program = Lower(model, run.setup, lower);
  if (program.arena_bytes == run.planned_bytes) return program;
  lower.checkpoints = true;
  return Lower(model, run.setup, lower);
}

SameProgram HowSame(const MeasuredRun& run, const Program& program, uint64_t fingerprint) {
  if (run.program) {
    return run.program->fingerprint == fingerprint ? SameProgram::kYes
                                                   : SameProgram::kOtherFingerprint;
  }
  return program.arena_bytes == run.planned_bytes ? SameProgram::kYes : SameProgram::kOtherArenas;
}

}  // namespace

Comparison CompareProgram(const MeasuredRun& run, const Program& program,
                          const HardwareProfile& hardware) {
  const Cluster cluster = ClusterOf(run, hardware);
  // There is no prediction for several nodes without a network.
  std::optional<CostModel> costs;
  if (cluster.nodes() == 1 || hardware.network) {
    costs.emplace(hardware, ClusterShape{cluster.gpus, cluster.gpus_per_node});
  }
  Comparison row;
  row.run = run;
  row.predicted = EstimateProgram(program, cluster, costs ? &*costs : nullptr);
  row.fingerprint = Fingerprint(program);
  row.same = HowSame(run, program, row.fingerprint);
  return row;
}

Comparison Compare(const MeasuredRun& run, const std::optional<ModelSpec>& model,
                   const HardwareProfile& hardware) {
  if (model && model->ParamCount() != run.params) {
    ThrowUsage("{}: plan.params: the run's {} has {} parameters, {} has {}; name it with ⟦model⟧",
               run.source, run.model, run.params, model->name, model->ParamCount());
  }
  if (run.program) {
    const ProgramRecord& ran = *run.program;
    return CompareProgram(run, Lower(ran.model, ran.setup, ran.lower), hardware);
  }
  ZEROPLAN_CHECK(model.has_value(), "older metrics do not hold their model");
  return CompareProgram(run, OlderProgram(run, *model, hardware), hardware);
}

std::string PredictionTable(const std::vector<Comparison>& rows, const HardwareProfile& hardware) {
  std::string text =
      "| run: GPUs x model, micro-batch x micro-steps, choice | step, ms: predicted | measured | "
      "more than predicted | tokens/s: predicted | measured | exposed communication, ms: predicted "
      "| measured | "
      "exposed offload, ms: predicted | measured | GPU memory, GB: predicted | in use | more than "
      "predicted |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const Comparison& row : rows) {
    text += fmt::format("| {} | {} |\n", RunLabel(row), fmt::join(CellsOf(row), " | "));
  }
  text += fmt::format(
      "\nPredicted with the profile {}. Measured are medians over steps, the first ones left out; "
      "memory in use is the GPU's, by anyone.\n",
      hardware.name);
  for (const std::string& remark : Remarks(rows)) text += remark + "\n";
  return text;
}

std::string PredictionText(const std::vector<Comparison>& rows, const HardwareProfile& hardware,
                           size_t page_columns) {
  std::vector<std::vector<std::string>> cells;
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::vector<std::string> of_run = CellsOf(rows[r]);
    of_run.insert(of_run.begin(), std::to_string(r + 1));
    cells.push_back(std::move(of_run));
    text += Wrap(fmt::format("{}: {}", r + 1, RunLabel(rows[r])), 4, page_columns);
  }
  ReportColumns columns;
  const auto add = [&](const char* title, size_t at_least) {
    size_t width = std::max(std::string_view(title).size(), at_least);
    for (const auto& row : cells) width = std::max(width, row[columns.count()].size());
    return columns.Add(title, width);
  };
  columns.BeginGroup("");
  add("run", 0);
  columns.BeginGroup("ms a step");
  add("pred", 0);
  add("meas", 0);
  add("more", 0);
  columns.BeginGroup("tokens/s");
  const size_t tokens = add("pred", 0);
  add("meas", 0);
  columns.BeginGroup("comm ms");
  const size_t comm = add("pred", 0);
  add("meas", 0);
  columns.BeginGroup("offload ms");
  const size_t offload = add("pred", 5);
  add("meas", 5);
  columns.BeginGroup("GB of a GPU");
  add("pred", 0);
  add("meas", 0);
  add("more", 0);
  // A group keeps both columns or loses both.
  std::vector<std::string_view> left_out;
  const std::pair<std::string_view, size_t> expendable[] = {
      {"offload ms", offload}, {"comm ms", comm}, {"tokens/s", tokens}};
  for (const auto& [group, first] : expendable) {
    if (columns.width() <= page_columns) break;
    columns.LeaveOut({first, first + 1}, 0);
    left_out.push_back(group);
  }
  text += '\n' + columns.Header(Paints(false));
  for (const auto& row : cells) text += columns.Row(row) + '\n';
  if (!left_out.empty()) {
    text += Wrap(fmt::format("Left out for want of room: {}; a wider terminal and ⟦format⟧ "
                             "markdown have all.",
                             fmt::join(left_out, ", ")),
                 2, page_columns);
  }
  text +=
      '\n' + Wrap(fmt::format("pred: predicted with the profile {}; meas: measured, medians "
                              "over steps, the first ones left out; more: so much more than "
                              "predicted, in per cent of the prediction. comm, offload: what the "
                              "step waits for them. Memory in use is the GPU's, by anyone.",
                              hardware.name),
                  2, page_columns);
  for (const std::string& remark : Remarks(rows)) text += Wrap(remark, 2, page_columns);
  return text;
}

RunPrediction PredictRun(const Program& program, const HardwareProfile& hardware,
                         int gpus_per_node) {
  const int gpus = program.setup.batch.world_size;
  const ClusterShape shape{gpus, gpus_per_node};
  RunPrediction prediction;
  prediction.hardware = hardware.name;
  Cluster cluster;
  cluster.gpus = gpus;
  cluster.gpus_per_node = gpus_per_node;
  cluster.runtime_bytes = RuntimeBytes(hardware, gpus);
  cluster.communicator_bytes = CommunicatorBytes(hardware, gpus);
  prediction.footprint = FootprintOf(program, cluster);
  if (shape.nodes() == 1 || hardware.network) {
    const CostModel costs(hardware, shape);
    prediction.step = StepTimer(costs).Time(program);
    prediction.step_seconds = prediction.step->total_seconds;
  }
  return prediction;
}

std::optional<Shortage> GpuShortage(const RunPrediction& prediction, const GpuLimit& limit) {
  Cluster cluster;
  cluster.gpu_capacity_bytes = limit.bytes;
  cluster.gpu_reserve_bytes = limit.reserve_bytes;
  const std::vector<Shortage> shortages = Check(prediction.footprint, CapacityOf(cluster));
  return shortages.empty() ? std::nullopt : std::optional(shortages.front());
}

void CheckGpuMemory(const RunPrediction& prediction, const GpuLimit& limit) {
  const std::optional<Shortage> shortage = GpuShortage(prediction, limit);
  if (!shortage) return;
  throw Error(
      ExitCode::kNothingFits,
      fmt::format("⟦gpu_memory⟧: {} of a GPU's memory are needed ({} outside the arena by {}), {} "
                  "more than {} less {} kept free (⟦gpu_reserve⟧); 'zeroplan plan' with the same "
                  "⟦gpu_memory⟧ finds what fits",
                  FormatBytes(shortage->needs), FormatBytes(prediction.footprint.runtime_bytes),
                  prediction.hardware, FormatBytes(shortage->short_by()), FormatBytes(limit.bytes),
                  FormatBytes(limit.reserve_bytes)));
}

std::optional<double> DensePeak(const HardwareProfile& hardware, Dtype dtype) {
  const auto found = hardware.gpu.dense_peaks.find(dtype);
  if (found == hardware.gpu.dense_peaks.end()) return std::nullopt;
  return found->second.value;
}

}  // namespace zeroplan
