// What a person sees while `train` runs: on a terminal a bar that redraws itself, elsewhere a line
// now and then. All of it on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cli/train/metrics_file.h"
#include "executor/train/trainer.h"

namespace zeroplan {

// A step in one line: loss, norm, learning rate, speed, and on a GPU strict MFU, waits for
// communication, and memory in use of what is planned (bytes; without a plan, what is in use).
std::string StepText(const StepReport& report, int64_t steps,
                     const std::optional<uint64_t>& planned_gpu_bytes);

class Progress : public TrainObserver {
 public:
  // `metrics` may be null; all that is referred to outlives the object.
  Progress(const RunFacts& facts, MetricsFile* metrics);

  void OnStart(const StartReport& report) override;
  void OnStep(const StepReport& report) override;
  void OnValidation(int64_t step, double loss) override;
  void OnSaved(const SaveReport& report) override;
  void OnEnd(const RunReport& report) override;

 private:
  void Line(const std::string& text);
  std::string TextOf(const StepReport& report) const;
  void Draw(const StepReport& report);
  void HoldAgainstPrediction(const RunReport& report);

  const RunFacts& facts_;
  int64_t steps_ = 0;  // of the whole run
  MetricsFile* metrics_;
  const bool terminal_;
  bool bar_shown_ = false;
  int64_t first_step_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace zeroplan
