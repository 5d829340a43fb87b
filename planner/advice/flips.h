// Where a search's answer changes: GPU memory, batch, and bandwidth between GPUs. Found by
// bisection over searches and confirmed by a search of the whole space on both sides.
#pragma once

#include <array>
#include <functional>
#include <optional>

#include "planner/search/search.h"

namespace zeroplan {

// What an answer is called: stage, where states and parameters live, which recompute. Two choices
// of one kind differ in batch, buckets, shares or the recomputed segments' length only.
bool SameKind(const Candidate& a, const Candidate& b);

struct Flip {
  double at = 0;               // bytes, sequences or factor on a bandwidth where the answer changes
  std::optional<Found> after;  // the answer beyond it; none: nothing fits
  double gap = 0;              // how much better than that a choice not judged could be, at most
};

// What one flip may cost: instructions lowered before it is given up. More than programs of
// ordinary depth need.
inline constexpr uint64_t kFlipBudget = 6'000'000;

// The smallest GPU memory above the present one (up to 16 times), or the largest below it, at which
// another kind wins: "from `at` on", "below `at`", exact to the byte. `gave_up`, if given, says
// whether nothing was found because of kFlipBudget.
std::optional<Flip> MemoryFlip(ChoiceSearch& searcher, const Found& now, bool larger,
                               bool* gave_up = nullptr);

// The global batch (sequences; the present one doubled or halved up to six times) at which another
// kind wins.
std::optional<Flip> BatchFlip(ChoiceSearch& searcher, const Found& now, bool larger,
                              bool* gave_up = nullptr);

// Factors on a bandwidth (or their inverses) at which a search of the whole space is made before
// no flip is reported.
inline constexpr std::array kCheckedScales = {8.0, 64.0};

// A crossover is checked by searches this far from it on both sides: nearer, choices are ties.
inline constexpr double kCrossoverMargin = 1.03;

// The factor on the link's bandwidth, up to 64 or down to 1/64, at which another stage wins. `at`
// is the factor. `gave_up`, if given, says whether nothing was found because stages are too close
// for searches of the budget to tell.
std::optional<Flip> BandwidthFlip(ChoiceSearch& searcher, const Found& now, const ScaledLink& link,
                                  bool faster, bool* gave_up = nullptr);

}  // namespace zeroplan
