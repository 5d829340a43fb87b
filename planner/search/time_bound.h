// A lower bound on the seconds of a step of a choice's program.
#pragma once

#include <cstdint>
#include <vector>

#include "cost_models/cost_model.h"
#include "planner/search/bound_facts.h"

namespace zeroplan {

// Seconds of collectives that share links, or a stream.
struct GroupComm {
  // In each micro-step: those in its forward half and those from its backward half's begin on; and
  // those in the last micro-step only. Reductions end before the next backward half begins.
  double forward = 0, backward = 0, last = 0;
  // For the embeddings: gathers before anything runs, and reductions after the backward pass, of
  // each micro-step and of the last one.
  double before = 0, behind = 0, behind_last = 0;
  double gather = 0;  // parameters, after the update

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

// The time terms of a group that its batch does not change, each part alone.
struct GroupTime {
  // All collectives within the shard groups; and if there are several groups, those on the stream
  // of reductions, within and across groups, which may be concurrent with gathers within.
  GroupComm within, reducing;
  bool several_groups = false;
  bool overlap = true;  // updates and the next forward pass hide the gathers between them
  double gradient_copy_seconds = 0;  // to the host, from each backward half's begin on
  double fetch_seconds = 0;          // parameters from host or disk, in each micro-step
  double copied_fetch_seconds = 0;   // PCIe's part of fetch_seconds
  // The part over PCIe of all that a forward half uses, and of the layers that a backward half
  // fetches itself.
  double forward_fetch_seconds = 0, backward_fetch_seconds = 0;
  double pcie_bytes_per_second = 0;
  // The embeddings must be there before anything runs: updated on the host and copied back before
  // the first micro-step, and fetched in each one, which is part of fetch_seconds.
  double embedding_update_seconds = 0, embedding_fetch_seconds = 0;
  double norm_seconds = 0;    // norm of gradients on the GPU, before the update
  double update_seconds = 0;  // update on the GPU
  // Seconds of the host: the norm, concurrent with the last backward half; and from the norm until
  // the last parameter is back, concurrent with the update on the GPU and the first forward half.
  double host_norm_seconds = 0, host_update_seconds = 0;
  OverlapRates rates;
  double slowest_rank = 1;   // CostModel::SlowestRank, by which kernels are multiplied
  bool gathers_fp8 = false;  // as in GroupTerms
};
GroupTime TimeOfGroup(const GroupTerms& terms, const Candidate& group, const TrainSetup& base,
                      const LayoutFacts& facts, const CostModel& costs);

// Kernels of a micro-step on the compute stream, at any stage.
struct KernelTime {
  double forward_seconds = 0;   // including the last loss
  double loss_seconds = 0;      // the part from the first use of the last parameter on
  double backward_seconds = 0;  // including recompute
};

// A layer whose activations may go to the host and return; seconds of its kernels.
struct MovedLayer {
  double forward_seconds = 0, backward_seconds = 0;
  // The part of backward_seconds from the kernel that reads the last returned tensor on.
  double after_seconds = 0;
  // Bytes that go to the host, and those among them whose room on the GPU exists until then only.
  // 0: nothing.
  double bytes = 0, room_bytes = 0;
};
// The time of a micro-step that waits for moving activations, and for nothing else, in the order of
// OffloadActivations. `behind`: its kernels after the layers; those before them count as the first
// layer's.
KernelTime SecondsWithMoves(const std::vector<MovedLayer>& layers, const KernelTime& behind,
                            double pcie_bytes_per_second);

// Activations that go to the host in a micro-step's forward half and return in its backward half.
struct ActivationMoves {
  double bytes = 0;
  KernelTime seconds;  // SecondsWithMoves, at the slowest rank
};

// Exchanges of heads of a micro-step among ranks that share sequences. In the forward half kernels
// wait for each; recompute's exchanges are in the backward half.
struct ExchangeSeconds {
  double forward = 0, backward = 0;
};

// A step of `grad_accum` micro-steps.
double StepSecondsAtLeast(const GroupTime& group, const KernelTime& kernels,
                          const ActivationMoves& moves, const ExchangeSeconds& exchange,
                          int64_t grad_accum);

}  // namespace zeroplan
