// The display of a running `train`: on a terminal the progress line (core/base/terminal.h),
// elsewhere and with --no-progress a line now and then. All of it on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cli/run/train/metrics_file.h"
#include "cli/run/train/watch_view.h"
#include "core/base/full_screen.h"
#include "executor/process/pipe_lines.h"
#include "executor/train/trainer.h"
#include "machine/machine_load.h"
#include "planner/page/run_page.h"

namespace zeroplan {

class LoadSampler;

// A step in one line: loss, norm, learning rate, speed, and on a GPU strict MFU, waits for
// communication, and memory in use over the planned bytes (without a plan, memory in use only).
std::string StepText(const StepReport& report, int64_t steps,
                     const std::optional<uint64_t>& planned_gpu_bytes);

// Additional displays, on this rank's host.
struct ProgressOptions {
  bool monitor = false;  // the load of GPUs and host, in the line of a step
  bool saves = false;    // at the end, and when it is stopped
  // everything as a view over the whole terminal; REQUIRES: FullScreen is possible
  bool watch = false;
};

class Progress : public TrainObserver {
 public:
  // `metrics` may be null; all references must outlive the object.
  Progress(const RunFacts& facts, MetricsFile* metrics, const ProgressOptions& options = {});
  ~Progress() override;

  void OnStart(const StartReport& report) override;
  void OnStep(const StepReport& report) override;
  void OnValidation(int64_t step, double loss) override;
  void OnSaved(const SaveReport& report) override;
  void OnEnd(const RunReport& report) override;

 private:
  void Line(const std::string& text);
  std::optional<uint64_t> PlannedGpuBytes() const;
  uint64_t PlannedHostBytes() const;
  double SecondsLeft(int64_t step, double elapsed) const;
  std::vector<LinePart> PartsOf(const StepReport& report);
  // A line: the steps that are left, when they begin, and, where `seconds` of them are predicted,
  // when they end.
  void SayLength(double seconds);
  // Sets the answer to Ctrl-C while a step of about so many seconds runs; 0: unknown.
  void AnswerStops(double step_seconds) const;
  void Draw(const StepReport& report);
  void Watch(const StepReport& report);
  // Restores the terminal and stops sampling.
  void EndWatching();
  // The bytes of each arena that the run touched, and the planned ones where they differ.
  void SayMemory(const RunReport& report);
  void HoldAgainstPrediction(const RunReport& report);
  void SayInterval(const ChosenInterval& chosen);

  const RunFacts& facts_;
  int64_t steps_ = 0;  // the whole run's
  MetricsFile* metrics_;
  const bool terminal_;  // stderr has a progress line
  std::chrono::steady_clock::time_point next_draw_{};
  int64_t first_step_ = 0;
  int64_t said_interval_ = 0;  // steps between saves, as last printed
  std::chrono::steady_clock::time_point begin_;
  const ProgressOptions options_;
  std::mutex mutex_;  // guards watched_, which the sampler's thread draws
  WatchState watched_;
  RankMessages rank_messages_;
  std::unique_ptr<FullScreen> screen_;
  std::unique_ptr<LoadSampler> sampler_;  // last, because its thread uses the other members
};

// Calls `run` with an observer that records a run's reports and passes them on to `next`, and
// writes the page of `train --report` to `file` when the run is over, however it ends. For a run on
// GPUs it samples the power of the first one. `costs` is null for a run on the CPU. Rethrows
// exceptions of `run`; without one, throws Error(kRuntime) if the page cannot be written.
RunReport RunWithReport(const std::string& file, const PageOrigin& origin, const RunFacts& facts,
                        const CostModel* costs, Backend backend, TrainObserver& next,
                        const std::function<RunReport(TrainObserver&)>& run);

}  // namespace zeroplan
