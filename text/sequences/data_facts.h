// What a run's data comes to, counted with its own sampler.
#pragma once

#include "core/config/data_facts.h"
#include "text/files/token_dataset.h"
#include "text/sequences/batch_sampler.h"

namespace zeroplan {

// `sampler` is of `data`. Takes about as long as packing it. Of documents that the sampler packs
// they are packed the other way too, for the comparison.
DataFacts FactsOf(const TokenDataset& data, const BatchSampler& sampler);

}  // namespace zeroplan
