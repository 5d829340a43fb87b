// Results that LowerToWalk reuses from earlier choices of the same model.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/lowering/lower.h"
#include "core/lowering/placement.h"

namespace zeroplan {

// Memory that section eval needs above the persistent buffers.
struct EvalMemory {
  std::array<uint64_t, kSpaces> bytes{};       // end of the highest buffer
  std::array<uint64_t, kSpaces> live_bytes{};  // largest sum of live bytes
};

// The memory of evaluations that are known. Evaluation is a forward pass that saves no activations;
// callers need only its memory, and a step's mostly covers it. Choices that differ only in the
// handling of gradients and states share one entry.
class EvalMemories {
 public:
  // Finds the memory of a choice whose evaluation is the same; null if none is known. `tensors`:
  // the model's.
  const EvalMemory* Find(const std::shared_ptr<const std::vector<ParamTensor>>& tensors,
                         const TrainSetup& setup, const LowerOptions& options) const;
  // Stores the memory of `program`, lowered in full with these options.
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

// Whether a section eval that needs `memory` would leave what callers read of `program` unchanged:
// arenas, live peaks, and the peak of the forward pass. REQUIRES: `program` is placed and lacks the
// section.
bool CoversEval(const Program& program, const EvalMemory& memory);

struct WalkCache {
  PlacementCache places;
  EvalMemories evals;
};

// LowerToWalk (lower.h), but without section eval if `cache` knows that evaluation needs less
// memory than a step.
Program LowerToWalk(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
                    const TrainSetup& setup, const LowerOptions& options, WalkCache& cache);

}  // namespace zeroplan
