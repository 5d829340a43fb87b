// The one definition of an error in tests, tables and margins.
#pragma once

namespace zeroplan {

// By how much a run took more (below 0: less) than predicted, as a share of the prediction. Both in
// the same unit.
constexpr double ShareOff(double predicted, double measured) { return measured / predicted - 1; }

// The largest ShareOff of runs that are predicted within `of_run` of what they took: a goal of 12 %
// of the run is one of 13.6 % of the prediction.
constexpr double MostOff(double of_run) { return of_run / (1 - of_run); }

}  // namespace zeroplan
