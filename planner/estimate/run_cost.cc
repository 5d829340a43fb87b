#include "planner/estimate/run_cost.h"

#include "core/base/error.h"
#include "core/base/units.h"

namespace zeroplan {

RunCost CostOf(const RunGoal& goal, const BatchSpec& batch, double step_seconds) {
  ZEROPLAN_CHECK(goal.tokens.has_value());
  const int64_t step_tokens = batch.global_batch() * batch.seq_len;
  RunCost cost;
  cost.steps = static_cast<int64_t>(
      CeilDiv(static_cast<uint64_t>(*goal.tokens), static_cast<uint64_t>(step_tokens)));
  cost.seconds = static_cast<double>(cost.steps) * step_seconds;
  cost.gpu_hours = cost.seconds / 3600 * batch.world_size;
  if (goal.gpu_hour_price) cost.price = cost.gpu_hours * *goal.gpu_hour_price;
  return cost;
}

}  // namespace zeroplan
