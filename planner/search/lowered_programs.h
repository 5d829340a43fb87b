// The programs of a model's choices, lowered once for all searches that ask for them: searches that
// differ in bandwidths, in what fits, or in what they choose from play the same programs.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "core/lowering/lower.h"
#include "core/lowering/walk_cache.h"
#include "cost_models/memory_walk.h"
#include "planner/search/search_space.h"

namespace zeroplan {

// What a search reads of a choice's program.
struct LoweredChoice {
  std::array<uint64_t, kSpaces> arena_bytes{};      // of one rank
  std::array<uint64_t, kSpaces> live_peak_bytes{};  // the same without placement's gaps
  OutsideArenas outside;
  uint64_t instructions = 0;       // of all sections of the program
  uint64_t step_instructions = 0;  // of these, of a step's sections
  // For a StepTimer: sections micro_step and optimizer_step without Alloc and Free, no layout. From
  // three micro-steps on one program serves any number (see StepParts).
  Program step;
};

class LoweredPrograms {
 public:
  // The most programs that are kept; beyond that the one asked for longest ago goes.
  static constexpr uint64_t kMostBytes = 256'000'000;

  // `base`: what candidates leave open. REQUIRES: as Lower().
  LoweredPrograms(ModelSpec model, TrainSetup base, const LowerOptions& options,
                  uint64_t most_bytes = kMostBytes);

  std::shared_ptr<const LoweredChoice> Of(Candidate candidate);
  // The program in full, with as many micro-steps as it says.
  Program InFull(const Candidate& candidate) const;

  const std::shared_ptr<const std::vector<ParamTensor>>& tensors() const { return tensors_; }

 private:
  LoweredChoice Lowered(const Candidate& candidate);
  uint64_t LogitsChunks(const Candidate& candidate) const;

  struct Kept {
    std::shared_ptr<const LoweredChoice> choice;
    uint64_t bytes = 0;
    std::list<Candidate>::iterator at;
  };

  const ModelSpec model_;
  const TrainSetup base_;
  const LowerOptions options_;
  const std::shared_ptr<const std::vector<ParamTensor>> tensors_;
  mutable WalkCache walk_;
  // Instructions outside a step, by the choice (micro-batch 1, no recompute) and its chunks of
  // logits.
  std::map<std::pair<Candidate, uint64_t>, uint64_t> beside_step_;
  std::map<Candidate, Kept> kept_;
  std::list<Candidate> by_use_;  // the last one asked for comes first
  const uint64_t most_bytes_;
  uint64_t bytes_ = 0;
};

}  // namespace zeroplan
