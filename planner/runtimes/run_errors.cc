#include "planner/runtimes/run_errors.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>

#include "core/base/error.h"
#include "planner/runtimes/fitted.h"

namespace zeroplan {
namespace {

// "4 % less".
std::string OneDifference(double error) {
  return fmt::format("{:.0f} % {}", 100 * std::abs(error), error < 0 ? "less" : "more");
}

// Whether `words` stand in `name` with nothing of a word before or behind: "H200" is in no "GH200".
bool HasWords(std::string_view name, std::string_view words) {
  const size_t at = name.find(words);
  if (at == std::string_view::npos) return false;
  const auto parts = [&](size_t place) {
    return place >= name.size() || !std::isalnum(static_cast<unsigned char>(name[place]));
  };
  return (at == 0 || parts(at - 1)) && parts(at + words.size());
}

}  // namespace

std::string DifferenceText(const RunErrors& errors) {
  ZEROPLAN_CHECK(errors.runs > 0);
  if (errors.runs == 1) return OneDifference(errors.most) + " than predicted";
  if (errors.runs == 2) {
    return fmt::format("{} and {} than predicted", OneDifference(errors.least),
                       OneDifference(errors.most));
  }
  // A share that rounds to 0 is neither.
  constexpr double kRounds = 0.005;
  const bool more = errors.least > -kRounds;
  if (more || errors.most < kRounds) {
    return fmt::format("{} than predicted in the median, {:.0f} % at most",
                       OneDifference(more ? errors.median : -errors.median), 100 * errors.worst());
  }
  return fmt::format("{:.0f} % more or less than predicted in the median, {} and {} at most",
                     100 * errors.median, OneDifference(errors.most), OneDifference(errors.least));
}

const PublishedMargin* PublishedMarginOf(std::string_view runtime,
                                         const HardwareProfile& hardware) {
  for (const PublishedMargin& margin : kPublishedMargins) {
    if (margin.runtime == runtime && IsCard(hardware, margin.gpu)) return &margin;
  }
  return nullptr;
}

const PublishedMargin* PublishedOnAnotherForm(std::string_view runtime,
                                              const HardwareProfile& hardware) {
  const PublishedMargin* most = nullptr;
  for (const PublishedMargin& margin : kPublishedMargins) {
    if (margin.runtime != runtime || IsCard(hardware, margin.gpu)) continue;
    if (margin.time.runs == 0 || !HasWords(hardware.gpu.name, margin.kind)) continue;
    if (most == nullptr || most->time.runs < margin.time.runs) most = &margin;
  }
  return most;
}

bool HostWasMeasured(const HardwareProfile& hardware) {
  const std::optional<Figure>& host =
      hardware.node.adam_bandwidth ? hardware.node.adam_bandwidth : hardware.node.triad_bandwidth;
  return host && host->source == FigureSource::kMeasured;
}

}  // namespace zeroplan
