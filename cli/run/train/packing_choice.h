// How train packs documents: what --packing, the plan and the data come to.
#pragma once

#include <span>
#include <string>

#include "cli/run/train/train_work.h"
#include "core/config/packing.h"

namespace zeroplan {

// Throws Error(kUsage) for what --packing asks of a plan that cannot have it.
void CheckPackingAsked(const TrainCommand& command, const TrainWork& work);

// What the run does, and work.lower with it. What was not asked for is --packing documents where
// `data` says which tokens count in the loss, as conversations do, and stream elsewhere; off for
// conversations where attention within documents would run on a GPU's plain kernels, or where a
// plan has no borders of documents. A line says so.
// REQUIRES: CheckPackingAsked passed.
Packing SettlePacking(const TrainCommand& command, Backend backend,
                      std::span<const std::string> data, TrainWork& work);

}  // namespace zeroplan
