// What a person sees while `train` runs: on a terminal the progress line (core/base/terminal.h),
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
// communication, and memory in use of what is planned (bytes; without a plan, what is in use).
std::string StepText(const StepReport& report, int64_t steps,
                     const std::optional<uint64_t>& planned_gpu_bytes);

// What is shown besides, of this rank's host.
struct ProgressOptions {
  bool monitor = false;  // what GPUs and host are doing, in the line of a step
  bool watch = false;    // all of it as a view over the whole terminal; REQUIRES: it takes one
};

class Progress : public TrainObserver {
 public:
  // `metrics` may be null; all that is referred to outlives the object.
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
  void Draw(const StepReport& report);
  void Watch(const StepReport& report);
  // Back to the terminal as it was; nothing is looked at any more.
  void EndWatching();
  void HoldAgainstPrediction(const RunReport& report);
  void SayInterval(const ChosenInterval& chosen);

  const RunFacts& facts_;
  int64_t steps_ = 0;  // of the whole run
  MetricsFile* metrics_;
  const bool terminal_;  // has a progress line
  std::chrono::steady_clock::time_point next_draw_{};
  int64_t first_step_ = 0;
  int64_t said_interval_ = 0;  // steps between saves, as they were last said
  std::chrono::steady_clock::time_point begin_;
  const ProgressOptions options_;
  std::mutex mutex_;  // of watched_, which the sampler's thread draws
  WatchState watched_;
  RankMessages rank_messages_;
  std::unique_ptr<FullScreen> screen_;
  std::unique_ptr<LoadSampler> sampler_;  // the last: its thread uses the others
};

// Calls `run` with an observer that keeps what a run reports and passes it on to `next`, and writes
// the page of `train --report` to `file` when it is over, however it ends. Of a run on GPUs it
// looks at the power of the first one meanwhile. `costs` is null for a run on the CPU. Throws what
// `run` throws; if that is nothing, Error(kRuntime) where the page cannot be written.
RunReport RunWithReport(const std::string& file, const PageOrigin& origin, const RunFacts& facts,
                        const CostModel* costs, Backend backend, TrainObserver& next,
                        const std::function<RunReport(TrainObserver&)>& run);

}  // namespace zeroplan
