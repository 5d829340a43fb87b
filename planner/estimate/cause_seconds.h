// Seconds of a step by cause, for as many tokens as another choice's step has: how choices of
// different batches are compared.
#pragma once

#include "planner/estimate/estimate.h"

namespace zeroplan {

struct CauseSeconds {
  double compute = 0, exposed_comm = 0, exposed_offload = 0, optimizer = 0, total = 0;
  double host_overhead = 0;
};

// What `time` has for a step, times `tokens` over the tokens of that step. REQUIRES: it is known.
inline CauseSeconds SecondsForTokens(const TimeEstimate& time, double tokens) {
  const double scale = tokens / (*time.tokens_per_second * *time.total_seconds);
  return {*time.compute_seconds * scale,         *time.exposed_comm_seconds * scale,
          *time.exposed_offload_seconds * scale, time.optimizer_seconds.value_or(0) * scale,
          *time.total_seconds * scale,           time.host_overhead_seconds.value_or(0) * scale};
}

// What `other` loses to `best`, in seconds of a step of the best's tokens. Not inline: whoever
// prints it gets the same bits.
CauseSeconds SecondsLost(const TimeEstimate& other, const TimeEstimate& best);

}  // namespace zeroplan
