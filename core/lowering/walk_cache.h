// What LowerToWalk takes from the choices of a model that were lowered before.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/lowering/lower.h"
#include "core/lowering/placement.h"

namespace zeroplan {

// Memory that section eval takes above the persistent buffers.
struct EvalMemory {
  std::array<uint64_t, kSpaces> bytes{};       // up to the end of the highest buffer
  std::array<uint64_t, kSpaces> live_bytes{};  // the largest sum of live bytes
};

// Evaluation is a forward pass without what a step keeps, and no one walks it for more than its
// memory, which a step's mostly covers. Choices that differ in what happens to gradients and states
// have the same one.
class EvalMemories {
 public:
  // The memory of a choice that evaluates as this one; nothing if none is known. `tensors`: of the
  // model.
  const EvalMemory* Find(const std::shared_ptr<const std::vector<ParamTensor>>& tensors,
                         const TrainSetup& setup, const LowerOptions& options) const;
  // Keeps that of `program`, lowered in full with these options.
  void Keep(const Program& program, const LowerOptions& options);

 private:
  // The parts of setup and options that evaluation depends on.
  struct Key {
    std::shared_ptr<const std::vector<ParamTensor>> tensors;
    TrainSetup setup;
    LowerOptions options;
  };
  struct Entry {
    Key key;
    EvalMemory memory;
  };
  static std::optional<Key> KeyOf(const std::shared_ptr<const std::vector<ParamTensor>>& tensors,
                                  const TrainSetup& setup, const LowerOptions& options);
  const Entry* FindKey(const Key& key) const;

  static constexpr size_t kMost = 8;
  std::vector<Entry> entries_;
};

// Whether a section eval that takes `memory` would change nothing of what is read of `program`,
// which is placed and has none: arenas, live peaks, and the peak of the forward pass.
bool CoversEval(const Program& program, const EvalMemory& memory);

struct WalkCache {
  PlacementCache places;
  EvalMemories evals;
};

// LowerToWalk (lower.h); where `cache` knows that evaluation takes less than a step there is no
// section eval.
Program LowerToWalk(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
                    const TrainSetup& setup, const LowerOptions& options, WalkCache& cache);

}  // namespace zeroplan
