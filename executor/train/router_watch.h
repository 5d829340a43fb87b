// How a step's tokens spread over the experts of a mixture, and which experts get none any more.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/model/model_spec.h"

namespace zeroplan {

// One step's routing, over all ranks, micro-steps and layers.
struct RouterReport {
  // Means over the micro-batches, each weighed by its targets that count; before coefficients.
  double balance_loss = 0, z_loss = 0;
  double most = 0;      // rows of the fullest expert over the mean of the layer's experts
  int64_t without = 0;  // experts that got no row
  int64_t experts = 0;  // summed over the layers
  // A warning, if an expert died since the last one.
  std::optional<std::string> warning;
};

class RouterWatch {
 public:
  // An expert without a row in so many steps one after the other is called dead. Warnings are at
  // least so many steps apart.
  static constexpr int64_t kDeadSteps = 50;

  explicit RouterWatch(const ModelSpec& model);

  // Takes Engine::RouterTotals of a step; nothing of a model without experts.
  std::optional<RouterReport> Note(std::span<const double> totals);

 private:
  int64_t experts_;                                // in each layer
  std::vector<int64_t> layers_;                    // that have experts
  std::vector<int64_t> idle_;                      // [layer, expert]: steps without a row
  std::optional<std::pair<size_t, size_t>> died_;  // layer and expert, without a warning yet
  int64_t quiet_ = 0;                              // steps without a warning from here on
};

}  // namespace zeroplan
