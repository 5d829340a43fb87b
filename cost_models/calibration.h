// Fits a formula's constants to measured rows: linear least squares of the relative error, and a
// local correction of the residuals.
#pragma once

#include <array>
#include <vector>

namespace zeroplan {

// One measured time, and a formula that is linear in its coefficients: known_seconds + terms * c.
struct FitRow {
  std::vector<double> terms;
  double seconds = 0;
  double known_seconds = 0;
};

// Coefficients c >= 0, one a term, that minimise the sum over rows of ((known_seconds + terms * c -
// seconds) / seconds)^2. Every row counts by its relative error, so that microseconds and
// milliseconds weigh the same. Terms whose best coefficient is negative are left out (0), the most
// negative first. All 0 without rows. REQUIRES: equally many terms in all rows.
std::vector<double> FitRelative(const std::vector<FitRow>& rows);

// exp of the weighted mean of log(measured / formula) of the points near `at`, with weights
// exp(-distance^2), distance in powers of two, and a weight of `kPrior` on "no correction": 1 far
// from all points. Source: Nadaraya 1964, Watson 1964 (kernel regression).
class LocalCorrection {
 public:
  using Position = std::array<double, 3>;  // log2 of the sizes that distinguish shapes
  static constexpr double kPrior = 1;

  void Add(const Position& at, double measured_over_formula);
  double Factor(const Position& at) const;

 private:
  struct Point {
    Position at;
    double log_ratio;
  };
  std::vector<Point> points_;
};

}  // namespace zeroplan
