#include "executor/train/run_limits.h"

#include <chrono>
#include <cstdint>
#include <utility>

#include "core/base/terminal.h"

namespace zeroplan {
namespace {

constexpr std::chrono::hours kForEver(24 * 365);

}  // namespace

void RunLimits::ExpectMoves(std::string what) const {
  if (group_.rank() == 0) ShowProgress(what);
  SetMeeting(still_seconds(), what);
  watch_.Expect(std::move(what), Watch::Seconds(still_seconds()), /*renews=*/true);
}

void RunLimits::SetMeeting(double seconds, const std::string& purpose) const {
  group_.SetDeadline(
      seconds > 0 ? std::chrono::seconds(static_cast<int64_t>(seconds) + 1) : kForEver, purpose);
}

}  // namespace zeroplan
