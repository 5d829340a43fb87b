// The least memory that a choice needs and the most speed that it reaches, without lowering it.
// Closed forms over the parameter layout give what ZeRO decides, programs of one and two segments
// what the model decides. A search cuts by these; they never exceed (memory, seconds) what the
// lowered program has.
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

// One micro-step, whatever the stage: its kernels, and the device bytes that live at once beyond
// parameters, gradients and states.
struct ComputeBound {
  KernelTime kernels;
  // The same where layers are gathered in eight bits, and the largest copy of a weight in eight
  // bits, which may not be there then.
  KernelTime gathered_kernels;
  ExchangeSeconds exchange;
  uint64_t weight_copy_bytes = 0;
  uint64_t transient_bytes = 0;
  // The same from where a tied head's gradient is written on. 0: none is.
  uint64_t backward_bytes = 0;
  // Recompute segments (without: layers), and of them what each saves for its backward, at least.
  // Of the first `lower_segments`, which recompute more, that is `lower_saved_bytes`.
  int64_t segments = 0, lower_segments = 0;
  uint64_t saved_bytes = 0, lower_saved_bytes = 0;
  // What goes to the host in a micro-step and comes back.
  uint64_t offloaded_bytes = 0;
  ActivationMoves moves;
  // The most that is live, beyond the same, while a kernel of the last segment's backward reads the
  // largest tensor of a layer that has one below it. 0: not known.
  uint64_t gathered_transient_bytes = 0;

  // What the first `left` segments have saved on the GPU, at least.
  uint64_t SavedOf(int64_t left) const {
    const int64_t lower = std::min(left, lower_segments);
    const uint64_t saved = static_cast<uint64_t>(lower) * lower_saved_bytes +
                           static_cast<uint64_t>(left - lower) * saved_bytes;
    return saved - std::min(saved, offloaded_bytes);
  }
};

// Everything of a group that its batch does not change.
struct GroupBound {
  GroupMemory memory;
  GroupTime time;
};

class Bounds {
 public:
  // `base`: what the candidates leave open. Model and base must outlive the bounds.
  Bounds(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
         const TrainSetup& base, const LowerOptions& options);

  const ComputeBound& Compute(int64_t micro_batch, RecomputeConfig recompute,
                              const CostModel& costs, const ProductsKind& products = {},
                              int sequence_ranks = 1);
  // Takes over what `other` has computed. REQUIRES: the same model, setup, options and GPUs; links
  // may differ.
  void TakeCompute(const Bounds& other) {
    compute_ = other.compute_;
    uniform_ = other.uniform_;
    const auto by_links = [](const auto& entry) { return entry.first.first > 0; };
    std::erase_if(compute_, by_links);
    std::erase_if(uniform_, by_links);
  }
  // `group`'s batch is ignored.
  GroupBound Group(const Candidate& group, const Cluster& cluster, const CostModel& costs);

  // What a choice holds at least: at the peak of activations, or with a full reduce bucket.
  static MemoryBound Memory(const GroupBound& group, const ComputeBound& compute);
  // The seconds that a step takes at least.
  static double StepSeconds(const GroupBound& group, const ComputeBound& compute,
                            int64_t grad_accum);

 private:
  const LayoutFacts& FactsFor(const TrainSetup& setup);
  // KernelTime's, at the top clock.
  struct Work {
    GpuWork forward, loss, backward;
  };
  // Of a layer what goes to the host where its activations do; of this what no other layer's
  // forward pass uses; and its backward pass from where what comes back last is read.
  struct KeptOfLayer {
    uint64_t bytes = 0, own_bytes = 0;
    GpuWork after;
  };
  struct LoweredCompute {
    Work work, gathered_work;
    ExchangeSeconds exchange;
    uint64_t weight_copy_bytes = 0;
    // ComputeBound's.
    uint64_t transient_bytes = 0, backward_bytes = 0, gathered_transient_bytes = 0;
    uint64_t last_layer_bytes = 0;  // transient_bytes while its backward pass runs
    Work behind;                    // of work: kernels behind the layers
    std::vector<KeptOfLayer> kept;  // by layer
  };
  // The real model with one kind of recompute for all layers, and what a layer adds to it.
  struct Uniform {
    LoweredCompute whole;
    Work of_layer, gathered_of_layer;
    ExchangeSeconds exchange_of_layer;
    int64_t segments = 0;
    uint64_t saved_bytes = 0;
    // LoweredCompute's, of the first layer and of each other but the last.
    KeptOfLayer kept_of_first, kept_of_others;
  };
  const Uniform& UniformOf(const TrainSetup& setup, const CostModel& costs,
                           const ProductsKind& products);
  void SetOffloaded(const RecomputeConfig& recompute, const std::vector<KeptOfLayer>& kept,
                    uint64_t last_layer_bytes, ComputeBound& bound) const;
  // Of layers that are alike but for their recompute, the first ones' and the others', that make
  // `work`.
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
  // By GPUs too, else 0, where links count: activations go to the host or ranks share sequences.
  using ByGpus = std::pair<int, ComputeKey>;
  std::map<ByGpus, ComputeBound> compute_;
  std::map<ByGpus, Uniform> uniform_;
  // By GPUs, groups, persistence threshold and whether moments are kept in blocks.
  std::map<std::tuple<int, Grouping, uint64_t, bool>, LayoutFacts> facts_;
};

}  // namespace zeroplan
