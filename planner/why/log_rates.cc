#include "planner/why/log_rates.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <utility>

#include "planner/why/log_text.h"

namespace zeroplan {
namespace {

constexpr size_t kMostRates = 4096;

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::optional<ProgressBar> BarIn(std::string_view text) {
  const size_t percent = text.find("%|");
  if (percent == std::string_view::npos) return std::nullopt;
  const size_t bar = text.find("| ", percent + 2);
  if (bar == std::string_view::npos) return std::nullopt;
  const std::string_view counts = text.substr(bar + 2);
  const size_t slash = counts.find('/');
  if (slash == std::string_view::npos || slash > 12) return std::nullopt;
  ProgressBar found;
  const auto done = CountAfter(counts, ""), total = CountAfter(counts, "/");
  if (!done || !total) return std::nullopt;
  found.done = *done;
  found.total = *total;
  size_t label = percent;
  while (label > 0 &&
         (text[label - 1] == ' ' || std::isdigit(static_cast<unsigned char>(text[label - 1])))) {
    --label;
  }
  found.label = std::string(Trimmed(text.substr(0, label)));
  while (found.label.ends_with(':')) found.label.pop_back();
  const size_t close = counts.find(']');
  const std::string_view times = counts.substr(0, close);
  const size_t comma = times.find(',');
  if (close == std::string_view::npos || comma == std::string_view::npos) return found;
  const std::string_view rate = times.substr(comma);
  const std::optional<double> value = NumberAfter(rate, ",");
  if (value && *value > 0 && HasPart(rate, "s/it")) found.seconds = *value;
  if (value && *value > 0 && HasPart(rate, "it/s")) found.seconds = 1 / *value;
  return found;
}

void StepRates::Add(double value, int64_t line) {
  if (++seen_ % every_ != 0) return;
  values_.push_back(value);
  line_ = line;
  if (values_.size() < kMostRates) return;
  for (size_t i = 0; i < values_.size() / 2; ++i) values_[i] = values_[2 * i];
  values_.resize(values_.size() / 2);
  every_ *= 2;
}

std::optional<LogFigure> StepRates::Settled(std::string from) const {
  if (values_.size() < 2) return std::nullopt;
  const auto half = values_.begin() + static_cast<std::ptrdiff_t>(values_.size() / 2);
  return LogFigure{Median({half, values_.end()}), line_, std::move(from)};
}

}  // namespace zeroplan
