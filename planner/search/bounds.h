// What a choice needs at least and achieves at most, without lowering it: closed forms for what
// ZeRO decides, programs of two segments for what the transformer decides. A search cuts by these;
// they never exceed (memory, seconds) what the lowered program has.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/lowering/lower.h"
#include "cost_models/cost_model.h"
#include "planner/footprint.h"
#include "planner/search/search_space.h"

namespace zeroplan {

using MemoryBound = MemoryTotals;

// Of one micro-step, whatever the stage: what its kernels take on the compute stream, and the
// device bytes that live at once beyond parameters, gradients and states.
struct ComputeBound {
  double forward_seconds = 0;   // up to the first layer's backward: the loss included
  double backward_seconds = 0;  // recompute included
  uint64_t transient_bytes = 0;
};

// Everything of a group that its batch does not change.
struct GroupBound {
  MemoryBound memory;                // without the micro-step's transients
  uint64_t filled_bucket_bytes = 0;  // what gpu_bytes grows by where the reduce bucket is full
  // Collectives of each micro-step, in its forward and its backward half, and of the last one only.
  double forward_comm_seconds = 0, backward_comm_seconds = 0, last_comm_seconds = 0;
  double carried_comm_seconds = 0;   // gathers after the update, in the first forward half
  double gradient_copy_seconds = 0;  // to the host, in each backward half
  double fetch_seconds = 0;          // parameters from host or disk, in each micro-step
  double norm_seconds = 0;           // of gradients on the GPU, before the update
  double update_seconds = 0;         // on the GPU
  // On the host, beside the last backward half; and from the norm until the last parameter is back,
  // beside the update on the GPU and the first forward half.
  double host_norm_seconds = 0, host_update_seconds = 0;
  OverlapRates rates;
};

class Bounds {
 public:
  // `base`: what the candidates leave open. The model must outlive the bounds.
  Bounds(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
         const TrainSetup& base, const LowerOptions& options);

  const ComputeBound& Compute(int64_t micro_batch, RecomputeConfig recompute,
                              const CostModel& costs);
  // `group`'s batch is ignored.
  GroupBound Group(const Candidate& group, const Cluster& cluster, const CostModel& costs);

  // What a choice holds at least: at the peak of activations, or with a full reduce bucket.
  static MemoryBound Memory(const GroupBound& group, const ComputeBound& compute);
  // At least this long a step takes.
  static double StepSeconds(const GroupBound& group, const ComputeBound& compute,
                            int64_t grad_accum);

 private:
  // Stage 3: elements kept whole on every rank, of the smallest unit that is gathered, and of one
  // layer's units that are gathered, and all of its units.
  struct Sharding {
    double persistent = 0, smallest_gather = 0, layer_gather = 0, layer = 0;
    double embedding = 0, embedding_gather = 0;  // the same of the embeddings
  };
  const Sharding& ShardingOf(int gpus);
  // What the formulas need of a group, in bytes and elements of one rank.
  struct Terms {
    int n = 1, stage = 0;
    double psi = 0, whole = 0, reused = 0;  // parameters; kept whole; kept from forward to backward
    double away = 0;                        // share of the states on host or disk
    double param_bytes = 2;                 // of the compute dtype
    double gathered_after = 0;              // bytes of the gather after the update
    double largest_unit = 0;                // elements
    bool params_away = false, sharded = false, in_place = false;
  };
  Terms TermsOf(const Candidate& group);
  MemoryBound MemoryOf(const Terms& t, const Candidate& group, const Cluster& cluster);
  void AddCollectives(const Terms& t, const Candidate& group, const CostModel& costs,
                      GroupBound& bound);
  void AddCopies(const Terms& t, const Candidate& group, const CostModel& costs,
                 GroupBound& bound) const;
  double GatherSeconds(const Terms& t, const Candidate& group, const CostModel& costs) const;
  void AddUpdate(const Terms& t, const Candidate& group, const CostModel& costs,
                 GroupBound& bound) const;

  const ModelSpec& model_;
  std::shared_ptr<const std::vector<ParamTensor>> tensors_;
  const TrainSetup& base_;
  const LowerOptions options_;
  std::map<std::pair<int64_t, RecomputeConfig>, ComputeBound> compute_;
  std::map<int, Sharding> sharding_;
};

}  // namespace zeroplan
