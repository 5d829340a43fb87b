// Keeps what a run reports, for the page of `train --report`.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "cli/run/train/metrics_file.h"
#include "cli/run/train/progress.h"
#include "executor/train/trainer.h"
#include "planner/page/run_page.h"

namespace zeroplan {

// An observer that passes all on to another one first. Of a run on GPUs it looks at the power of
// the first one meanwhile.
class RunRecorder : public TrainObserver {
 public:
  // What is referred to outlives the object. `costs` is null for a run on the CPU.
  RunRecorder(const RunFacts& facts, const CostModel* costs, Backend backend, PageOrigin origin,
              TrainObserver& next);

  void OnStart(const StartReport& report) override;
  void OnStep(const StepReport& report) override;
  void OnValidation(int64_t step, double loss) override;
  void OnSaved(const SaveReport& report) override;
  void OnEnd(const RunReport& report) override;

  // The page, of what was seen so far. `failure`: what ended the run; "": nothing did.
  std::string Page(const std::string& failure = "");

 private:
  void See(const MachineLoad& load);  // in the sampler's thread
  std::optional<double> WattsSinceLastStep();

  RunRecord record_;
  const PageOrigin origin_;
  TrainObserver& next_;
  std::mutex mutex_;  // of what follows
  double watts_sum_ = 0;
  int looks_ = 0;  // since the last step
  std::optional<double> last_watts_, limit_watts_;
  std::unique_ptr<LoadSampler> sampler_;  // the last: its thread uses the others
};

// Calls `run` with an observer that passes on to `next`, and writes the page to `file` when it is
// over, however it ends. Throws what `run` throws; if that is nothing, Error(kRuntime) where the
// page cannot be written.
RunReport RunWithReport(const std::string& file, RunRecorder& recorder,
                        const std::function<RunReport()>& run);

}  // namespace zeroplan
