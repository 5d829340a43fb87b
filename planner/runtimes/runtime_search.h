// The choice that is best in another runtime: searched by that runtime's own time, within its own
// memory. Nothing of zeroplan's step program is asked.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "planner/runtimes/runtime_estimate.h"
#include "planner/search/search_space.h"

namespace zeroplan {

// Keys of DeepSpeed's that are searched beside the space: in each list the preferred value first.
struct RuntimeKeys {
  // Stages 1 to 3: elements of reduce_bucket_size, falling. One is tried where a larger one's
  // reserved memory does not fit with its margin.
  std::vector<uint64_t> reduce_buckets = {500'000'000, 200'000'000, 100'000'000, 50'000'000};
  // Stages 1 to 3. On by preference: DeepSpeed's default at stages 1 and 2 is off, and slower.
  std::vector<bool> overlap_comm = {true};
  // All others: a config's; unset: DeepSpeed's defaults.
  std::optional<ZeroConfig> others;
  // FSDP2: whether selective recompute is a choice. torchtitan has it, transformers and accelerate
  // do not.
  bool selective = false;
};

// Every choice of `space` for `runtime`, in full. Of `space` count stages, offloads (none and the
// CPU; DeepSpeed's shares below 1 at stage 3 alone and there by fifths, FSDP2's all or nothing),
// recompute (none and every layer; selective with that key) and batches, for the first number of
// GPUs. `base`: what the space leaves open. Where the runtime can do nothing that the space asks
// for: one choice that it asks for, so that judging it throws what says why.
std::vector<TrainSetup> RuntimeSetups(OtherRuntime runtime, const ModelSpec& model,
                                      const SearchSpace& space, const TrainSetup& base,
                                      const RuntimeKeys& keys);

struct RuntimeSearchInputs {
  OtherRuntime runtime = OtherRuntime::kDeepSpeed;
  ModelSpec model;
  Cluster cluster;
  const HardwareProfile* hardware = nullptr;  // of the cluster; outlives the search
  TorchCompile compile;
  std::vector<TrainSetup> setups;
  std::function<void(uint64_t played)> progress;  // unset: no one
};

// How sure it is that a choice stays within GPU memory. Margins: fitted.h's.
enum class MemoryRoom : uint8_t {
  kAmple,         // with reserved memory larger by its margin
  kTight,         // as predicted, not with the margin: then the allocator would empty its cache
  kEmptiesCache,  // only where the allocator gives cached memory back while it runs
  kAtRisk,        // tensors larger by the margin of allocated memory would not fit
  kNone,          // it does not fit
};
std::string_view MemoryRoomName(MemoryRoom room);  // "ample", "tight", ...

struct RuntimeJudged {
  OtherRuntime runtime = OtherRuntime::kDeepSpeed;
  RuntimeChoice choice;
  MemoryRoom room = MemoryRoom::kNone;
  double tokens_per_second = 0;  // all GPUs

  bool fits() const { return room != MemoryRoom::kNone; }
};

// Tokens a second that choices are compared by. A choice with offload has to be faster by
// kOffloadMargin (search.h) to be preferred, DeepSpeed's stage 3 by kStage3Margin (its time is
// that of Python code around every module, known less well than kernels' is), with recompute by
// kStage3RecomputeMargin (a slow host took 1.45 times the prediction, docs/runtimes.md), one whose
// reserved memory fits without its margin by kTightMargin, one that empties its cache by
// kCacheMargin and by kSegmentSeconds for each segment that it gives back and asks for again in a
// step (the driver waits for the GPU to free one): each may be slower than its time says. One at
// risk is taken only where nothing else fits. All of these are cautions, not measurements.
inline constexpr double kStage3Margin = 0.03, kStage3RecomputeMargin = 0.15, kTightMargin = 0.03,
                        kCacheMargin = 0.05, kSegmentSeconds = 2e-3;
double RuntimeMerit(const RuntimeJudged& judged);
// Choices this close in merit are not told apart; the simplest is taken: nothing offloaded, a lower
// stage, less recompute, fewer keys that are not the preferred value.
inline constexpr double kRuntimeTieMargin = 0.005;

struct RuntimeStageBest {
  int stage = 0;
  std::optional<RuntimeJudged> best;     // none: nothing of the stage fits
  std::optional<RuntimeJudged> closest;  // then: what lacks least GPU memory of what was played
};

struct RuntimeSearchStats {
  uint64_t candidates = 0;
  uint64_t cut_by_memory = 0;  // a smaller choice of its kind had tensors that did not fit
  uint64_t cut_by_time = 0;    // could not be faster than what is known to fit
  uint64_t had_room = 0;       // a larger reduce bucket had ample room
  uint64_t played = 0;         // steps played, those for bounds included
};

struct RuntimeSearchResult {
  std::optional<size_t> best;  // into stages; none: nothing fits
  std::vector<RuntimeStageBest> stages;
  RuntimeSearchStats stats;
};

// Throws Error(kUsage) for a setup that the runtime's model does not know, and for hardware that
// lacks what its time depends on. REQUIRES: inputs.setups is not empty.
RuntimeSearchResult SearchRuntime(const RuntimeSearchInputs& inputs);
// For tests: the same, each setup judged.
RuntimeSearchResult SweepRuntime(const RuntimeSearchInputs& inputs);

}  // namespace zeroplan
