// For what does not fit: the smallest change that does, found by planning it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/search/search.h"

namespace zeroplan {

struct Change {
  std::string options;  // "--checkpointing full --micro-batch 4", or "--gpus 4 ..."
  Found found;          // what fits with it
  ChoiceEstimate estimate;
};

// `asked`: a space in which nothing fits, some of it pinned by the user. `full`: all there is for
// the same number of GPUs. Frees as few of micro-batch, recompute, stage and offload as it takes,
// of equally many the fastest; then lighter optimizer states (⟦allow⟧), and of a PyTorch program a
// lighter recipe (Liger's kernels, states in 8 bit); then more host memory, up to 16 times; then
// more GPUs (whole nodes), doubled up to 1024 times or kMaxPlannedGpus, first with what was asked.
// `set_gpus` puts the machines of so many GPUs, or of a few more, into a search (they must outlive
// the call); it may throw Error for more GPUs than the hardware goes to. Nothing: not even that
// fits.
std::optional<Change> SmallestChange(
    const SearchInputs& asked, const SearchSpace& full,
    const std::function<void(int gpus, SearchInputs& inputs)>& set_gpus);

// Of the same five, each freed alone: the best that fits, in the order of the names above. Those
// with which nothing fits are left out.
std::vector<Change> SingleChanges(const SearchInputs& asked, const SearchSpace& full);

}  // namespace zeroplan
