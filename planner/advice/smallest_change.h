// For a request in which nothing fits: the smallest change with which something does, found by
// planning it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/search/search.h"

namespace zeroplan {

struct Change {
  std::string options;  // "--checkpointing full --micro-batch 4", or "--gpus 4 ..."
  Found found;          // the choice that fits with the change
  ChoiceEstimate estimate;
};

// `asked`: a space in which nothing fits, partly pinned by the user. `full`: the full space for the
// same number of GPUs. Frees as few of micro-batch, recompute, stage and offload as needed, the
// fastest among equally few; then tries lighter optimizer states (⟦allow⟧), and for a PyTorch
// program a lighter recipe (Liger's kernels, states in 8 bit); then more host memory, up to 16
// times; then more GPUs (whole nodes), doubled up to 1024 times or kMaxPlannedGpus, first with the
// request as it is. `set_gpus` puts the machines of that many GPUs, or of a few more, into a search
// (they must outlive the call); it may throw Error for more GPUs than the hardware supports.
// Nothing: no change makes anything fit.
std::optional<Change> SmallestChange(
    const SearchInputs& asked, const SearchSpace& full,
    const std::function<void(int gpus, SearchInputs& inputs)>& set_gpus);

// `inputs` with `bytes` of memory on each host. Keeps a reserve that the user set.
// REQUIRES: the present memory is known.
SearchInputs WithHostMemory(SearchInputs inputs, uint64_t bytes);
// The least host memory, to a sixteenth and at most 16 times the present one, with which the inputs
// of `like` fit. Nothing: the host is not what is short.
std::optional<Change> MoreHostMemory(const ChoiceSearch& like);

// The same five settings, each freed alone: the best choice that fits, in the order of the names
// above. Settings with which nothing fits are left out.
std::vector<Change> SingleChanges(const SearchInputs& asked, const SearchSpace& full);

}  // namespace zeroplan
