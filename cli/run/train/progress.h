// What a person sees while `train` runs: on a terminal the progress line (core/base/terminal.h),
// elsewhere and with --no-progress a line now and then. All of it on stderr.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/run/train/metrics_file.h"
#include "cli/run/train/watch_view.h"
#include "core/base/full_screen.h"
#include "executor/process/pipe_lines.h"
#include "executor/train/trainer.h"
#include "machine/machine_load.h"

namespace zeroplan {

// Looks at the machine beside a run, in a thread of its own.

// Often enough to see a run, too seldom to be felt in it.
inline constexpr std::chrono::milliseconds kLookEvery{500};

class LoadSampler {
 public:
  // Calls `seen` in its thread with each look, `every` so often, until it is destroyed; `gpus` as
  // of MachineMeter. `seen` throws nothing.
  LoadSampler(int gpus, std::chrono::milliseconds every,
              std::function<void(const MachineLoad&)> seen);
  ~LoadSampler();
  LoadSampler(const LoadSampler&) = delete;
  LoadSampler& operator=(const LoadSampler&) = delete;

 private:
  void Serve();

  MachineMeter meter_;
  const std::chrono::milliseconds every_;
  const std::function<void(const MachineLoad&)> seen_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

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

  const RunFacts& facts_;
  int64_t steps_ = 0;  // of the whole run
  MetricsFile* metrics_;
  const bool terminal_;  // has a progress line
  std::chrono::steady_clock::time_point next_draw_{};
  int64_t first_step_ = 0;
  std::chrono::steady_clock::time_point begin_;
  const ProgressOptions options_;
  std::mutex mutex_;  // of watched_, which the sampler's thread draws
  WatchState watched_;
  RankMessages rank_messages_;
  std::unique_ptr<FullScreen> screen_;
  std::unique_ptr<LoadSampler> sampler_;  // the last: its thread uses the others
};

}  // namespace zeroplan
