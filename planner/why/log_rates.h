// Progress bars, and rates of steps in the order of the log.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/why/run_log.h"

namespace zeroplan {

// A progress bar of tqdm: " 10%|#    | 10/100 [00:12<01:48,  1.21s/it]".
struct ProgressBar {
  std::string label;  // "Loading checkpoint shards"; empty: it has none
  int64_t done = 0, total = 0;
  std::optional<double> seconds;  // seconds of an iteration
};
std::optional<ProgressBar> BarIn(std::string_view text);

// Rates of steps; beyond a limit it drops every second one.
class StepRates {
 public:
  void Add(double value, int64_t line);
  // The median of their second half, because the first steps are slow. Unset: too few rates.
  std::optional<LogFigure> Settled(std::string from) const;

 private:
  std::vector<double> values_;
  int64_t line_ = 0;
  uint64_t seen_ = 0, every_ = 1;
};

}  // namespace zeroplan
