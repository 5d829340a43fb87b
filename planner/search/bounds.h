// The least memory that a choice needs and the highest speed that it reaches, without lowering it.
// Closed forms over the parameter layout give the terms that ZeRO determines, programs of one and
// two segments those that the model determines. A search cuts by these bounds; their memory and
// seconds never exceed those of the lowered program.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "core/lowering/lower.h"
#include "cost_models/cost_model.h"
#include "planner/search/memory_bound.h"
#include "planner/search/time_bound.h"

namespace zeroplan {

// One micro-step at any stage: its kernels, and the device bytes that are live at once beyond
// parameters, gradients and states.
struct ComputeBound {
  KernelTime kernels;
  // The kernels if layers are gathered in 8 bits; and the largest 8-bit copy of a weight, which may
  // be absent then.
  KernelTime gathered_kernels;
  ExchangeSeconds exchange;
  uint64_t weight_copy_bytes = 0;
  uint64_t transient_bytes = 0;
  // The live bytes while a tied head's gradient is live. 0: there is none.
  uint64_t backward_bytes = 0;
  // Recompute segments (without recompute: layers), and the bytes that each saves for its backward
  // pass, at least. The first `lower_segments` recompute more and save `lower_saved_bytes`.
  int64_t segments = 0, lower_segments = 0;
  uint64_t saved_bytes = 0, lower_saved_bytes = 0;
  // Activation bytes that go to the host in a micro-step and return.
  uint64_t offloaded_bytes = 0;
  ActivationMoves moves;
  // The most bytes live, beyond the same three classes, while a kernel of the last segment's
  // backward pass reads the largest tensor of a layer that has one below it. 0: unknown.
  uint64_t gathered_transient_bytes = 0;

  // Bytes that the first `left` segments have saved on the GPU, at least.
  uint64_t SavedOf(int64_t left) const {
    const int64_t lower = std::min(left, lower_segments);
    const uint64_t saved = static_cast<uint64_t>(lower) * lower_saved_bytes +
                           static_cast<uint64_t>(left - lower) * saved_bytes;
    return saved - std::min(saved, offloaded_bytes);
  }
};

// The terms of a group that its batch does not change.
struct GroupBound {
  GroupMemory memory;
  GroupTime time;
};

class Bounds {
 public:
  // `base`: the settings that candidates leave open. Model and base must outlive the bounds.
  Bounds(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
         const TrainSetup& base, const LowerOptions& options);

  const ComputeBound& Compute(int64_t micro_batch, RecomputeConfig recompute,
                              const CostModel& costs, const ProductsKind& products = {},
                              int sequence_ranks = 1);
  // Copies the results that `other` has computed. REQUIRES: the same model, setup, options and
  // GPUs; links may differ.
  void TakeCompute(const Bounds& other) {
    compute_ = other.compute_;
    uniform_ = other.uniform_;
    const auto by_links = [](const auto& entry) { return entry.first.first > 0; };
    std::erase_if(compute_, by_links);
    std::erase_if(uniform_, by_links);
  }
  // `group`'s batch is ignored.
  GroupBound Group(const Candidate& group, const Cluster& cluster, const CostModel& costs);

  // The least memory of a choice: at the peak of activations, or with a full reduce bucket.
  static MemoryBound Memory(const GroupBound& group, const ComputeBound& compute);
  // The least seconds of a step.
  static double StepSeconds(const GroupBound& group, const ComputeBound& compute,
                            int64_t grad_accum);

 private:
  const LayoutFacts& FactsFor(const TrainSetup& setup);
  // The kernels of a KernelTime, at the top clock.
  struct Work {
    GpuWork forward, loss, backward;
  };
  // If a layer's activations go to the host: their bytes; the bytes among them that no other
  // layer's forward pass uses; and the layer's backward work from the kernel that reads the last
  // returned tensor on.
  struct KeptOfLayer {
    uint64_t bytes = 0, own_bytes = 0;
    GpuWork after;
  };
  struct LoweredCompute {
    Work work, gathered_work;
    ExchangeSeconds exchange;
    uint64_t weight_copy_bytes = 0;
    // As in ComputeBound.
    uint64_t transient_bytes = 0, backward_bytes = 0, gathered_transient_bytes = 0;
    uint64_t last_layer_bytes = 0;  // transient_bytes while its backward pass runs
    Work behind;                    // kernels after the layers
    std::vector<KeptOfLayer> kept;  // by layer
  };
  // The real model with one kind of recompute for all layers, and the work that a layer adds.
  struct Uniform {
    LoweredCompute whole;
    Work of_layer, gathered_of_layer;
    ExchangeSeconds exchange_of_layer;
    int64_t segments = 0;
    uint64_t saved_bytes = 0;
    // LoweredCompute::kept of the first layer, and of each other but the last.
    KeptOfLayer kept_of_first, kept_of_others;
  };
  const Uniform& UniformOf(const TrainSetup& setup, const CostModel& costs,
                           const ProductsKind& products);
  void SetOffloaded(const RecomputeConfig& recompute, const std::vector<KeptOfLayer>& kept,
                    uint64_t last_layer_bytes, ComputeBound& bound) const;
  // The time of layers that are alike except for their recompute, `lower` that of the first ones
  // and `upper` that of the others, if `work` is their work.
  KernelTime MovesOf(const RecomputeConfig& recompute, const std::vector<KeptOfLayer>& kept,
                     const Uniform& lower, const Uniform& upper, const Work& work,
                     const CostModel& costs) const;
  static KernelTime AtItsClock(const Work& work, const CostModel& costs);
  LoweredCompute LowerCompute(const TrainSetup& setup, int64_t layers,
                              const CostModel& costs) const;
  void SetLive(const Program& program, int64_t layers, LoweredCompute& lowered) const;
  static void SetKept(const Program& program, const CostModel& costs, LoweredCompute& lowered);

  const ModelSpec& model_;
  const std::shared_ptr<const std::vector<ParamTensor>> tensors_;
  const TrainSetup& base_;
  const LowerOptions options_;
  const BoundAssumptions assumed_;
  using ComputeKey = std::tuple<int64_t, RecomputeConfig, ProductsKind, int>;
  // Keyed by GPUs too if links count (activations go to the host or ranks share sequences), else 0.
  using ByGpus = std::pair<int, ComputeKey>;
  std::map<ByGpus, ComputeBound> compute_;
  std::map<ByGpus, Uniform> uniform_;
  // By GPUs, groups, persistence threshold and whether moments are in blocks.
  std::map<std::tuple<int, Grouping, uint64_t, bool>, LayoutFacts> facts_;
};

}  // namespace zeroplan
