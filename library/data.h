// Training data of an answer: how the library reads it, and what it comes to.
#pragma once

#include <zeroplan/zeroplan.h>

#include <optional>

#include "planner/estimate/estimate.h"
#include "planner/request/request.h"

namespace zeroplan {

// For one question. Unset in a build that reads none.
DataReader ReaderOfLibrary();

// Unset where the goal has no data.
std::optional<v1::Data> DataOf(const RunGoal& goal, const BatchSpec& batch);

}  // namespace zeroplan
