// Metrics of runs: reading throws Error or gives figures that are finite, and a line cut off behind
// them changes nothing.
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/log.h"
#include "planner/runs/metrics_reader.h"
#include "tests/fuzz/need.h"

namespace zeroplan {
namespace {

std::optional<MeasuredRun> Read(std::string_view text) {
  try {
    return ReadMetrics(text, "input");
  } catch (const Error& error) {
    Need(error.code() == ExitCode::kUsage && !std::string_view(error.what()).empty());
    return std::nullopt;
  }
}

bool IsFigure(const std::optional<double>& value) {
  return !value || (std::isfinite(*value) && *value >= 0);
}

void CheckMetrics(std::string_view text) {
  const std::optional<MeasuredRun> run = Read(text);
  if (!run) return;
  Need(run->steps > 0 && run->warm_up >= 0);
  Need(std::isfinite(run->step_seconds) && run->step_seconds > 0);
  Need(IsFigure(run->tokens_per_second));
  Need(IsFigure(run->exposed_comm_seconds) && IsFigure(run->exposed_offload_seconds));
  Need(IsFigure(run->device_used_bytes));
  ValidateSetup(run->setup, "read");  // an Error here is not caught
  if (!text.ends_with('\n')) return;
  const std::optional<MeasuredRun> torn = Read(std::string(text) + R"({"event": "st)");
  Need(torn && torn->steps == run->steps && torn->step_seconds == run->step_seconds &&
       torn->setup == run->setup && torn->planned_bytes == run->planned_bytes);
}

}  // namespace
}  // namespace zeroplan

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  zeroplan::SetLogLevel(zeroplan::LogLevel::kQuiet);
  zeroplan::CheckMetrics({reinterpret_cast<const char*>(data), size});
  return 0;
}
