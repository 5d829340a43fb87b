// Counts a run's data with its own sampler.
#pragma once

#include "core/config/data_facts.h"
#include "text/files/token_dataset.h"
#include "text/sequences/batch_sampler.h"

namespace zeroplan {

// `sampler` must be of `data`. Takes about as long as packing it. If the sampler packs documents,
// packs them the other way too, for the comparison.
DataFacts FactsOf(const TokenDataset& data, const BatchSampler& sampler);

}  // namespace zeroplan
