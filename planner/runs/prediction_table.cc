#include "planner/runs/prediction_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/lowering/lower.h"
#include "core/program/fingerprint.h"
#include "planner/estimate/choices.h"

namespace zeroplan {
namespace {

constexpr double kMilli = 1e3, kGiga = 1e-9;

Cluster ClusterOf(const MeasuredRun& run, const HardwareProfile& hardware) {
  Cluster cluster;
  cluster.hardware = hardware.name;
  cluster.gpu_name = hardware.gpu.name;
  cluster.gpus = run.setup.batch.world_size;
  cluster.gpus_per_node = run.gpus_per_node.value_or(
      std::min(cluster.gpus, static_cast<int>(std::llround(hardware.node.gpus.value))));
  cluster.gpu_capacity_bytes = static_cast<uint64_t>(hardware.gpu.usable_memory.value);
  cluster.runtime_bytes = RuntimeBytes(hardware, cluster.gpus);
  cluster.communicator_bytes = CommunicatorBytes(hardware, cluster.gpus);
  return cluster;
}

// "+3.1 %".
std::string ErrorText(double predicted, double measured) {
  return fmt::format("{:+.1f} %", (predicted / measured - 1) * 100);
}

// predicted | measured; what is not known is "-".
std::string Pair(std::optional<double> predicted, std::optional<double> measured, double scale,
                 int digits) {
  const auto number = [&](const std::optional<double>& value) {
    return value ? fmt::format("{:.{}f}", *value * scale, digits) : "-";
  };
  return fmt::format("{} | {}", number(predicted), number(measured));
}

// predicted | measured | error.
std::string Cells(std::optional<double> predicted, std::optional<double> measured, double scale,
                  int digits) {
  const bool both = predicted && measured && *measured > 0;
  return fmt::format("{} | {}", Pair(predicted, measured, scale, digits),
                     both ? ErrorText(*predicted, *measured) : "-");
}

// Behind the label of a run whose program is not the predicted one.
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

// The program of a run whose metrics do not hold what it was lowered from. Settings that they lack
// are zeroplan's own, with or without checkpoints, whichever gives the run's arenas.
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
  // Across nodes there is no time without a network.
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
    ThrowUsage("{}: plan.params: the run's {} has {} parameters, {} has {}; name it with --model",
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
      "error | tokens/s: predicted | measured | exposed communication, ms: predicted | measured | "
      "exposed offload, ms: predicted | measured | GPU memory, GB: predicted | in use | error |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  bool other_arenas = false;
  std::string other_programs;
  for (const Comparison& row : rows) {
    const TimeEstimate& time = row.predicted.time;
    const MeasuredRun& run = row.run;
    text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", RunLabel(row),
                        Cells(time.total_seconds, run.step_seconds, kMilli, 2),
                        Pair(time.tokens_per_second, run.tokens_per_second, 1, 0),
                        Pair(time.exposed_comm_seconds, run.exposed_comm_seconds, kMilli, 1),
                        Pair(time.exposed_offload_seconds, run.exposed_offload_seconds, kMilli, 1),
                        Cells(static_cast<double>(row.predicted.footprint.gpu_total()),
                              run.device_used_bytes, kGiga, 2));
    other_arenas = other_arenas || row.same == SameProgram::kOtherArenas;
    if (row.same == SameProgram::kOtherFingerprint) {
      other_programs += fmt::format(
          "(#) {}: what ran is the program {} of zeroplan {}, and what is predicted here is {}.\n",
          run.source, FormatFingerprint(run.program->fingerprint), run.program->version,
          FormatFingerprint(row.fingerprint));
    }
  }
  text += fmt::format(
      "\nPredicted with the profile {}. Measured are medians over steps, the first ones left out; "
      "memory in use is the GPU's, by anyone.\n",
      hardware.name);
  if (other_arenas) {
    text +=
        "(!) The run's arenas have other sizes than this choice has here: it ran with settings "
        "that metrics do not hold. --plan names its plan.\n";
  }
  return text + other_programs;
}

}  // namespace zeroplan
