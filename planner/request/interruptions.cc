#include <fmt/format.h>

#include "core/base/error.h"
#include "planner/request/resolve.h"

namespace zeroplan {

std::optional<Interruptions> ResolveInterruptions(const GoalFields& fields) {
  const auto goes_with_rate = [&](const char* field, const Given<double>& given) {
    if (!given || fields.interruptions) return;
    ThrowUsage(
        "{}: {} has no effect without ⟦interruptions⟧; add how often the run is interrupted, such "
        "as ⟦interruptions⟧ 0.1/h",
        field, given.text);
  };
  goes_with_rate("⟦notice⟧", fields.notice);
  goes_with_rate("⟦restart_time⟧", fields.restart_time);
  if (!fields.interruptions) return std::nullopt;
  Interruptions asked{.rate = *fields.interruptions, .notice_seconds = fields.notice};
  asked.restart_seconds = fields.restart_time.value_or(asked.restart_seconds);
  return asked;
}

void AssumeRestart(const Request& request, Assumptions& assumptions) {
  const GoalFields& goal = request.goal;
  if (!ResolveInterruptions(goal)) return;
  const Runtime& runtime = request.runtime.of();
  if (!runtime.has_programs()) {
    ThrowUsage(
        "⟦interruptions⟧: {} is not allowed with {}: saves of zeroplan's own executor alone are "
        "predicted; leave it out, or use ⟦runtime⟧ zeroplan",
        goal.interruptions.text, runtime.name());
  }
  if (goal.restart_time) return;
  assumptions.assumed.push_back(
      fmt::format("⟦restart_time⟧ {:g}min", Interruptions{}.restart_seconds / 60));
}

}  // namespace zeroplan
