// Seconds that a step of a choice's program takes at least.
#pragma once

#include <cstdint>
#include <vector>

#include "cost_models/cost_model.h"
#include "planner/search/bound_facts.h"

namespace zeroplan {

// Seconds of collectives that share links, or a stream.
struct GroupComm {
  // Of each micro-step, in its forward half and from its backward half's begin on, and of the last
  // one only. Reductions are over before the next backward half begins.
  double forward = 0, backward = 0, last = 0;
  // Of the embeddings: gathers before anything runs, and reductions behind the backward pass, of
  // each micro-step and of the last one.
  double before = 0, behind = 0, behind_last = 0;
  double gather = 0;  // of parameters after the update

  GroupComm& operator+=(const GroupComm& other) {
    forward += other.forward;
    backward += other.backward;
    last += other.last;
    before += other.before;
    behind += other.behind;
    behind_last += other.behind_last;
    gather += other.gather;
    return *this;
  }
};

// What the batch does not change of a group's time, each part alone.
struct GroupTime {
  // All within the shard groups; and of several groups what the stream of reductions has, within
  // them and over them, which may run beside gathers within.
  GroupComm within, reducing;
  bool several_groups = false;
  bool overlap = true;  // updates and the next forward pass hide the gathers between them
  double gradient_copy_seconds = 0;  // to the host, from each backward half's begin on
  double fetch_seconds = 0;          // parameters from host or disk, in each micro-step
  double copied_fetch_seconds = 0;   // of that what PCIe takes
  double pcie_bytes_per_second = 0;
  // Before anything runs the embeddings are there: updated on the host and back before the first
  // micro-step, and fetched in each one, which is part of the fetch_seconds.
  double embedding_update_seconds = 0, embedding_fetch_seconds = 0;
  double norm_seconds = 0;    // of gradients on the GPU, before the update
  double update_seconds = 0;  // on the GPU
  // Seconds of the host: the norm beside the last backward half; and from the norm until the last
  // parameter is back, beside the update on the GPU and the first forward half.
  double host_norm_seconds = 0, host_update_seconds = 0;
  OverlapRates rates;
  double slowest_rank = 1;   // CostModel::SlowestRank, which kernels are to be multiplied by
  bool gathers_fp8 = false;  // GroupTerms'
};
GroupTime TimeOfGroup(const GroupTerms& terms, const Candidate& group, const TrainSetup& base,
                      const LayoutFacts& facts, const CostModel& costs);

// Kernels of a micro-step on the compute stream, whatever the stage.
struct KernelTime {
  double forward_seconds = 0;   // the last loss included
  double loss_seconds = 0;      // of these, from where the last parameter is used first
  double backward_seconds = 0;  // recompute included
};

// A layer whose activations may go to the host and come back; seconds of its kernels.
struct MovedLayer {
  double forward_seconds = 0, backward_seconds = 0;
  // Of the latter, from where what comes back last is read.
  double after_seconds = 0;
  // What goes to the host, and what of it has room on the GPU until then and no longer. 0: nothing.
  double bytes = 0, room_bytes = 0;
};
// A micro-step that waits for activations on their way, and for nothing else, in the turns of
// OffloadActivations. `behind`: its kernels behind the layers; those in front count as the first
// layer's.
KernelTime SecondsWithMoves(const std::vector<MovedLayer>& layers, const KernelTime& behind,
                            double pcie_bytes_per_second);

// What goes to the host in a micro-step's forward half and comes back in its backward half.
struct ActivationMoves {
  double bytes = 0;
  KernelTime seconds;  // SecondsWithMoves', at the slowest rank
};

// Exchanges of heads of a micro-step among ranks that share sequences. In the forward half kernels
// wait for each; recompute's are in the backward half.
struct ExchangeSeconds {
  double forward = 0, backward = 0;
};

// A step of `grad_accum` micro-steps.
double StepSecondsAtLeast(const GroupTime& group, const KernelTime& kernels,
                          const ActivationMoves& moves, const ExchangeSeconds& exchange,
                          int64_t grad_accum);

}  // namespace zeroplan
