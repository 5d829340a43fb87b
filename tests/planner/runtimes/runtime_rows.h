// The measured runs of tests/data/runtimes, and what is predicted for each.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hwprofiles/profile.h"
#include "planner/runtimes/run_errors.h"
#include "planner/runtimes/runtimes.h"
#include "planner/runtimes/torch_based.h"
#include "tests/share_off.h"

namespace zeroplan {

inline TorchFootprint DeepSpeedFootprint(const TorchPlay& run, TorchTimer* timer = nullptr) {
  return dynamic_cast<const TorchBased&>(DeepSpeedRuntime()).Play(run, timer);
}
inline TorchFootprint Fsdp2Footprint(const TorchPlay& run, TorchTimer* timer = nullptr) {
  return dynamic_cast<const TorchBased&>(Fsdp2Runtime()).Play(run, timer);
}

struct DeepSpeedRow {
  TorchPlay run;
  std::string label;  // "gpt2-xl, 8 GPUs, stage 2, ..."
  std::string group;  // of the context's constants: "1 GPU", "several, stages 0 to 2", ...
  // GiB; 0: not known.
  double after_init = 0, init_peak = 0, allocated = 0, reserved = 0, device_used = 0, host_rss = 0;
  bool out_of_memory = false;  // it did not run: no figures
  double step_seconds = 0;
  bool small_host = false;  // 32 cores, in place of 128
  bool later = false;       // measured when the model of times had been fitted
  bool chosen = false;      // a choice of plan --runtime, or what it was compared with
  TorchFootprint predicted;

  // The driver was asked after the allocator had given memory back, so its figure is no peak.
  bool gave_back() const { return device_used < reserved; }
};
std::vector<DeepSpeedRow> LoadDeepSpeedRows();

struct Fsdp2Row {
  TorchPlay run;
  std::string label;
  // GiB; 0: not known.
  double allocated = 0, reserved = 0, device_used = 0, host_rss = 0;
  double step_seconds = 0;
  bool small_host = false, later = false, chosen = false;
  TorchFootprint predicted;
};
std::vector<Fsdp2Row> LoadFsdp2Rows();

// A run whose step was timed.
struct TimedRow {
  std::string label, group;
  double measured = 0;  // seconds
  std::function<RuntimeTime(const TimeConstants&)> predict;
};
// Of DeepSpeed, without offload: runs of one choice took up to 1.38 times as long on one host as
// on another.
inline constexpr char kStage3RecomputeGroup[] = "DeepSpeed, stage 3, recompute";
// What the constants are fitted to: those that were not chosen, and of the others those of
// kStage3RecomputeGroup, which joined.
std::vector<TimedRow> LoadTimedRows();
// Those that were chosen; nothing was fitted to them.
std::vector<TimedRow> LoadChosenRows();
// Those of other_runs.jsonl, which nothing was fitted to.
std::vector<TimedRow> LoadOtherRows();

// Errors as shares of the prediction.
struct Errors {
  double worst = 0, sum = 0;
  int count = 0;

  // Nothing where it was not measured. Returns the error.
  double Add(double predicted, double measured) {
    if (measured == 0) return 0;
    const double error = std::abs(ShareOff(predicted, measured));
    worst = std::max(worst, error);
    sum += error;
    ++count;
    return error;
  }
  double mean() const { return sum / count; }
};

// `errors` (ShareOff) as fitted.h has them: "{10, 0.0430, -0.1480, 0.1740}".
RunErrors RunErrorsOf(std::vector<double> errors);
std::string ErrorsText(const std::vector<double>& errors);
// `said` is what `errors` show, to 0.02 %.
void CheckErrors(const RunErrors& said, const std::vector<double>& errors);

inline double Gib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// Each line of `table` is in tests/data/runtimes/predicted.txt.
void CheckDataHolds(const std::string& table);

}  // namespace zeroplan
