// What a v1::Report draws from.
#pragma once

#include <zeroplan/zeroplan.h>

#include <functional>
#include <string>
#include <vector>

#include "cost_models/cost_model.h"
#include "planner/page/estimate_page.h"

namespace zeroplan {

struct v1::Report::State {
  // The page of the answer. Holds the answer; called by several threads at once.
  std::function<zeroplan::Page(const CostModel& costs, const PageOrigin& origin)> page;
  // The profile of `costs`. A cost model remembers what it was asked, so each drawing has one of
  // its own.
  HardwareProfile hardware;
  ClusterShape shape;
  PageOrigin origin;  // its command: the command line that asks the same
};

}  // namespace zeroplan
