#include "executor/train/router_watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"

namespace zeroplan {
namespace {

// The totals begin with two losses and the number of targets that count.
constexpr size_t kHead = 3;

}  // namespace

RouterWatch::RouterWatch(const ModelSpec& model) : experts_(model.experts) {
  if (experts_ == 0) return;
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    if (model.HasExperts(layer)) layers_.push_back(layer);
  }
  idle_.assign(layers_.size() * static_cast<size_t>(experts_), 0);
}

std::optional<RouterReport> RouterWatch::Note(std::span<const double> totals) {
  if (experts_ == 0 || totals.empty()) return std::nullopt;
  ZEROPLAN_CHECK(totals.size() == kHead + idle_.size(), "{} totals of {} experts", totals.size(),
                 idle_.size());
  RouterReport report;
  report.experts = static_cast<int64_t>(idle_.size());
  const double counted = totals[2];
  if (counted > 0) {
    report.balance_loss = totals[0] / counted;
    report.z_loss = totals[1] / counted;
  }
  const std::span<const double> rows = totals.subspan(kHead);
  const auto experts = static_cast<size_t>(experts_);
  int64_t dead = 0;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    double sum = 0, most = 0;
    for (size_t e = 0; e < experts; ++e) {
      const double of_expert = rows[layer * experts + e];
      sum += of_expert;
      most = std::max(most, of_expert);
      int64_t& idle = idle_[layer * experts + e];
      idle = of_expert > 0 ? 0 : idle + 1;
      report.without += idle > 0 ? 1 : 0;
      dead += idle >= kDeadSteps ? 1 : 0;
      if (idle == kDeadSteps) died_ = {layer, e};
    }
    if (sum > 0) report.most = std::max(report.most, most * static_cast<double>(experts_) / sum);
  }
  if (died_ && idle_[died_->first * experts + died_->second] < kDeadSteps) died_.reset();
  if (died_ && quiet_ == 0) {
    report.warning = fmt::format(
        "{} of {} experts {} dead: without a token in the last {} steps, such as expert {} of "
        "layer {}; a larger ⟦router_aux_loss⟧ keeps more of them in use",
        dead, idle_.size(), dead == 1 ? "is" : "are", kDeadSteps, died_->second,
        layers_[died_->first]);
    died_.reset();
    quiet_ = kDeadSteps;
  }
  quiet_ -= quiet_ > 0 ? 1 : 0;
  return report;
}

}  // namespace zeroplan
