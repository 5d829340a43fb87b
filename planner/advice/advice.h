// Why a plan is what it is, in words: what was chosen, what the best of every other stage loses and
// to what, and where the answer would change. Every number is a search's or a program's.
#pragma once

#include <string>
#include <vector>

#include "hwprofiles/profile.h"
#include "planner/search/search.h"

namespace zeroplan {

// One paragraph each, unwrapped. `hardware`: what the searcher's cost models were made of.
// REQUIRES: result.best.
std::vector<std::string> Advise(Searcher& searcher, const SearchResult& result,
                                const HardwareProfile& hardware);

// Bits for networks, bytes for links: "25 Gb/s", "300 GB/s".
std::string FormatBandwidth(double bytes_per_second, bool bits);

}  // namespace zeroplan
