#include "cost_models/calibration.h"

#include <Eigen/Dense>
#include <cmath>

#include "core/base/error.h"

namespace zeroplan {

std::vector<double> FitRelative(const std::vector<FitRow>& rows) {
  if (rows.empty()) return {};
  const size_t terms = rows.front().terms.size();
  std::vector<size_t> kept(terms);
  for (size_t j = 0; j < terms; ++j) kept[j] = j;
  std::vector<double> result(terms, 0.0);
  while (!kept.empty()) {
    Eigen::MatrixXd a(rows.size(), kept.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      ZEROPLAN_CHECK(rows[i].terms.size() == terms && rows[i].seconds > 0);
      for (size_t j = 0; j < kept.size(); ++j) {
        a(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(j)) =
            rows[i].terms[kept[j]] / rows[i].seconds;
      }
    }
    // Terms differ by ten powers of ten (1 and bytes): scaled to one size before they are solved.
    const Eigen::VectorXd scale = a.colwise().norm().cwiseMax(1e-300);
    a = a * scale.cwiseInverse().asDiagonal();
    Eigen::VectorXd wanted(a.rows());
    for (size_t i = 0; i < rows.size(); ++i) {
      wanted(static_cast<Eigen::Index>(i)) = 1 - rows[i].known_seconds / rows[i].seconds;
    }
    const Eigen::VectorXd c = a.colPivHouseholderQr().solve(wanted);
    Eigen::Index least = 0;
    if (c.minCoeff(&least) < 0) {
      kept.erase(kept.begin() + least);
      continue;
    }
    for (size_t j = 0; j < kept.size(); ++j) {
      result[kept[j]] = c(static_cast<Eigen::Index>(j)) / scale(static_cast<Eigen::Index>(j));
    }
    break;
  }
  return result;
}

void LocalCorrection::Add(const Position& at, double measured_over_formula) {
  points_.push_back({at, std::log(measured_over_formula)});
}

double LocalCorrection::Factor(const Position& at) const {
  double weights = kPrior, sum = 0;
  for (const Point& point : points_) {
    double distance_squared = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      const double difference = at[i] - point.at[i];
      distance_squared += difference * difference;
    }
    if (distance_squared > 20) continue;  // a weight below 2e-9
    const double weight = std::exp(-distance_squared);
    weights += weight;
    sum += weight * point.log_ratio;
  }
  return std::exp(sum / weights);
}

}  // namespace zeroplan
