// Logs of runs: any bytes are read, in pieces of any size to the same, and what is kept of them is
// bounded.
#include <cmath>
#include <string>
#include <string_view>

#include "planner/why/run_log.h"
#include "tests/fuzz/need.h"

namespace zeroplan {
namespace {

bool IsFigure(const std::optional<LogFigure>& figure) {
  return !figure || (std::isfinite(figure->value) && figure->value >= 0);
}

void CheckRunLog(std::string_view text) {
  const RunLog log = ParseLog(text, "input");
  Need(log.bytes == text.size());
  Need(log.failures.size() <= 64 && log.memory_lines.size() <= 64);
  for (const auto& [field, fact] : log.facts) Need(!fact.text.empty() && fact.line <= log.lines);
  for (const auto* figure : {&log.step_seconds, &log.samples_per_second, &log.allocated,
                             &log.reserved, &log.tokens_per_second_of_gpu}) {
    Need(IsFigure(*figure));
  }
  LogReader reader("input");
  for (size_t at = 0; at < text.size(); at += 7) reader.Take(text.substr(at, 7));
  const RunLog again = reader.Finish();
  Need(again.lines == log.lines && again.facts.size() == log.facts.size());
  Need((again.Cause() == nullptr) == (log.Cause() == nullptr));
  Need(log.Cause() == nullptr || again.Cause()->message == log.Cause()->message);
}

}  // namespace
}  // namespace zeroplan

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  zeroplan::CheckRunLog({reinterpret_cast<const char*>(data), size});
  return 0;
}
