#include "cli/run/train/run_recorder.h"

#include <cmath>
#include <utility>

#include "cli/common/output.h"
#include "core/base/error.h"
#include "core/base/log.h"

namespace zeroplan {

RunRecorder::RunRecorder(const RunFacts& facts, const CostModel* costs, Backend backend,
                         PageOrigin origin, TrainObserver& next)
    : record_{.program = facts.program,
              .memory = facts.memory,
              .costs = costs,
              .prediction = facts.prediction,
              .backend = backend == Backend::kCpu ? "CPU" : "CUDA"},
      origin_(std::move(origin)),
      next_(next) {}

void RunRecorder::OnStart(const StartReport& report) {
  next_.OnStart(report);
  record_.done = report.done;
  record_.planned_steps = report.steps;
  if (!record_.prediction) return;
  sampler_ =
      std::make_unique<LoadSampler>(1, kLookEvery, [this](const MachineLoad& load) { See(load); });
}

void RunRecorder::See(const MachineLoad& load) {
  if (load.gpus.empty() || !load.gpus.front().watts) return;
  const std::lock_guard lock(mutex_);
  last_watts_ = load.gpus.front().watts;
  limit_watts_ = load.gpus.front().limit_watts;
  watts_sum_ += *last_watts_;
  ++looks_;
}

std::optional<double> RunRecorder::WattsSinceLastStep() {
  const std::lock_guard lock(mutex_);
  if (looks_ == 0) return last_watts_;
  const double mean = watts_sum_ / looks_;
  watts_sum_ = 0;
  looks_ = 0;
  return mean;
}

void RunRecorder::OnStep(const StepReport& report) {
  next_.OnStep(report);
  RunStep step;
  step.step = report.step;
  if (std::isfinite(report.state.loss_sum)) step.loss = report.state.loss_sum;
  step.step_seconds = report.step_seconds;
  step.tokens_per_second = report.tokens_per_second;
  step.exposed_comm_seconds = report.times.exposed_comm_seconds;
  step.exposed_offload_seconds = report.times.exposed_offload_seconds;
  step.device_used_bytes = report.device_used_bytes;
  step.watts = WattsSinceLastStep();
  record_.steps.push_back(step);
}

void RunRecorder::OnValidation(int64_t step, double loss) {
  next_.OnValidation(step, loss);
  if (std::isfinite(loss)) record_.validations.emplace_back(step, loss);
}

void RunRecorder::OnSaved(const SaveReport& report) {
  next_.OnSaved(report);
  record_.saves.push_back(report.step);
}

void RunRecorder::OnEnd(const RunReport& report) {
  next_.OnEnd(report);
  RunEnd end;
  end.steps = report.steps;
  end.skipped_steps = report.skipped_steps;
  end.touched_bytes = report.high_water.touched_bytes;
  end.device_used_bytes = report.device_used_bytes;
  end.step_seconds_median = report.step_seconds_median;
  end.interrupted = report.interrupted;
  end.out_of_patience = report.out_of_patience;
  record_.end = end;
}

std::string RunRecorder::Page(const std::string& failure) {
  record_.failure = failure;
  const std::lock_guard lock(mutex_);
  record_.limit_watts = limit_watts_;
  return RenderPage(RunPage(record_, origin_));
}

RunReport RunWithReport(const std::string& file, RunRecorder& recorder,
                        const std::function<RunReport()>& run) {
  RunReport report;
  try {
    report = run();
  } catch (const Error& error) {
    try {
      WriteOutput(file, recorder.Page(error.what()));
    } catch (const Error& second) {
      LogWarning("--report {}: {}", file, second.what());
    }
    throw;
  }
  WriteOutput(file, recorder.Page());
  return report;
}

}  // namespace zeroplan
