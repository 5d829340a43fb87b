#include "planner/estimate/cause_seconds.h"

namespace zeroplan {

CauseSeconds SecondsLost(const TimeEstimate& other, const TimeEstimate& best) {
  const CauseSeconds mine = SecondsForTokens(other, *best.tokens_per_second * *best.total_seconds);
  return {mine.compute - *best.compute_seconds, mine.exposed_comm - *best.exposed_comm_seconds,
          mine.exposed_offload - *best.exposed_offload_seconds,
          mine.optimizer - best.optimizer_seconds.value_or(0), mine.total - *best.total_seconds};
}

}  // namespace zeroplan
