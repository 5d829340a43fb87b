// The programs of a model's choices, lowered once for all searches: searches that differ in
// bandwidths, in capacity, or in their spaces play the same programs.
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

// The parts of a choice's program that a search reads.
struct LoweredChoice {
  std::array<uint64_t, kSpaces> arena_bytes{};      // one rank's
  std::array<uint64_t, kSpaces> live_peak_bytes{};  // the same without gaps of placement
  OutsideArenas outside;
  uint64_t instructions = 0;       // in all sections of the program
  uint64_t step_instructions = 0;  // among them those of a step's sections
  // For a StepTimer: sections micro_step and optimizer_step without Alloc and Free, no layout. One
  // program serves every number of micro-steps from three on (see StepParts).
  Program step;
};

class LoweredPrograms {
 public:
  // The size of the cache; beyond it the least recently used program is dropped.
  static constexpr uint64_t kMostBytes = 256'000'000;

  // `base`: the settings that candidates leave open. REQUIRES: as Lower().
  LoweredPrograms(ModelSpec model, TrainSetup base, const LowerOptions& options,
                  uint64_t most_bytes = kMostBytes);

  std::shared_ptr<const LoweredChoice> Of(Candidate candidate);
  // The complete program, with the candidate's number of micro-steps.
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
  std::list<Candidate> by_use_;  // the last one used comes first
  const uint64_t most_bytes_;
  uint64_t bytes_ = 0;
};

}  // namespace zeroplan
