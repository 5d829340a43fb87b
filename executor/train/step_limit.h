// How long a step may take before it is taken for hung.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace zeroplan {

class StepLimit {
 public:
  // `asked` in seconds, 0: none. Unset: kFactor times what is predicted or the median of the last
  // steps, whichever is longer, and kFloor at least; kFirst where neither is known.
  explicit StepLimit(std::optional<double> asked) : asked_(asked) {}

  void Predict(double seconds) { predicted_ = seconds; }
  void Note(double seconds);
  // 0: none.
  double seconds() const;
  // For what has no time to go by (set-up, loading, saving): how long a rank may stand still.
  double still_seconds() const { return asked_ && *asked_ <= 0 ? 0 : kStill; }

  static constexpr double kFloor = 300, kFactor = 20, kFirst = 3600, kStill = 1800;

 private:
  static constexpr size_t kWindow = 32;

  std::optional<double> asked_;
  double predicted_ = 0;
  std::vector<double> last_;  // a ring
  size_t noted_ = 0;
};

}  // namespace zeroplan
