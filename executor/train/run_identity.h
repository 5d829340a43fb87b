// What decides the numbers of a run, as words: ranks agree on it before the first step, and a
// resume with its checkpoint.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/packing.h"
#include "core/config/zero_config.h"
#include "executor/train/run_agreement.h"

namespace zeroplan {

// What a resume may change only where --allow-change names it: other samples would be trained on,
// or held-out ones.
inline constexpr std::string_view kHeldFacts[] = {"data", "order", "seq-len"};

// By name: those, and "global batch", "lr", "betas", ..., "schedule" and "precision". `steps`: the
// length of the run, which schedules without one of their own decay over. `data`: the digest of its
// content. What merely says how the work is cut (micro-batch, ranks, stage, offload, recompute) is
// not among them.
NamedFacts DecidingFacts(const TrainSetup& setup, int64_t steps, bool shuffle,
                         const std::string& data, Packing packing = Packing::kStream);

struct RunChange {
  std::string name;
  std::string sentence;  // "lr: 0.001 in the checkpoint, 0.0005 from here on"
};

// Held against what the checkpoint was saved with. Throws Error(kUsage) naming every held fact that
// differs and is not in `allowed`, with the checkpoint. Returns every other difference.
std::vector<RunChange> CompareWithCheckpoint(const NamedFacts& now,
                                             const std::map<std::string, std::string>& saved,
                                             const std::vector<std::string>& allowed,
                                             const std::string& checkpoint);

}  // namespace zeroplan
