// The formulas of the ZeRO papers, against which the walked programs are tested.
#pragma once

#include <cstdint>

#include "core/settings/zero_config.h"

namespace zeroplan {

// Bytes of model states per parameter: P (parameters), G (gradients), S (optimizer: fp32 master
// where parameters are 16-bit, and Adam's two moments). Source: ZeRO, arXiv 1910.02054, section 3.1
// (K = 12). `with_params`: states are in the same memory as the parameters, so masters that are
// parameters, or have one as a half, need no additional bytes for it.
struct StateBytesPerParam {
  uint64_t params, grads;
  double optimizer;
};
StateBytesPerParam StateBytes(const PrecisionConfig& precision, bool with_params = true);

// Bytes of one parameter that Adam reads and writes, at least: master and moments both ways, and in
// 16 bit its gradient and the new parameter, which is also read if it is the master or a half of
// it: 28 with fp32 states, 26 with masters in halves, 14 with all in bf16.
double UpdateBytesPerParam(const PrecisionConfig& precision);

// Model states of one of `ranks` GPUs, in bytes, before alignment. Persistent parameters of stage 3
// stay whole. Source: section 5 and figure 1 of the paper; section 3 of ZeRO-Infinity, arXiv
// 2104.07857.
struct ModelStates {
  double params, grads, optimizer;
  double total() const { return params + grads + optimizer; }
};
ModelStates ModelStatesPerGpu(int stage, double psi, double psi_persistent, int ranks,
                              const PrecisionConfig& precision);

// Ranks in shard groups: the `shards` ranks of a group share the states that a stage shards; `ranks
// / shards` groups hold replicas, or share optimizer states (across_stage 1) or gradients too (2).
// `grads_cross`: gradients are reduced over the groups in every micro-step (CrossesEachMicroStep),
// so a rank keeps only the gradients that it updates. Sources: MiCS, arXiv 2205.00119, section 3.1
// (groups of replicas); PyTorch FSDP, arXiv 2304.11277, section 3.2.2 (hybrid sharding, its factor
// F); ZeRO++, arXiv 2306.10209, section 3.2 (hpZ: parameters within a node, the rest over all).
struct ShardGroups {
  int ranks = 1, shards = 1;
  int across_stage = 0;
  bool grads_cross = false;

  int replicas() const { return ranks / shards; }
};
// The groups of `setup`'s ranks; at stage 0 and without groups one group of all.
ShardGroups ShardGroupsOf(const TrainSetup& setup);
ModelStates ModelStatesPerGpu(int stage, double psi, double psi_persistent,
                              const ShardGroups& groups, const PrecisionConfig& precision);

// Elements that one rank sends in one optimizer step of `grad_accum` micro-steps. Source: ZeRO,
// section 7 (2 psi at stages 0 to 2, 3 psi at stage 3, for one micro-step), with repetitions added.
struct VolumeTerms {
  int stage = 0;
  double psi = 0;             // parameters
  double psi_persistent = 0;  // stage 3: kept whole on every rank
  double psi_reused = 0;      // stage 3: kept from forward to backward
  int64_t grad_accum = 1;
  int ranks = 1;
  bool reduce_scatter = true;  // false: all-reduce, then keep the own shard
};
double ElementsSentPerStep(const VolumeTerms& terms);

// The same in shard groups, whose parameters are in `groups`: elements sent to ranks of the own
// group, and to ranks of other groups with the same shard. Within a group of S ranks a step equals
// ZeRO's of S ranks. Over R groups each rank sends its S-th of the gradients: all-reduced, 2 (R -
// 1) / R of it, or reduced to the group that owns a part, (R - 1) / R, once a step or in every
// micro-step (grads_cross); and if groups own parts of the states, their new parameters once a
// step. Without reduce_scatter gradients are all-reduced over all ranks at once. Sources: MiCS,
// arXiv 2205.00119, sections 3.3 and 3.4 (2-hop gradient synchronization); ZeRO++, arXiv
// 2306.10209, table 1; PyTorch FSDP, arXiv 2304.11277, section 3.2.2 (traffic across hosts).
struct AxisElements {
  double within = 0, across = 0, all = 0;
  double total() const { return within + across + all; }
};
AxisElements ElementsSentByAxis(const VolumeTerms& terms, const ShardGroups& groups);

// Bytes over PCIe of one GPU in one optimizer step, by offload choice (a share `ratio` of the
// optimizer on the host), excluding tokens and the 128-byte step state. Gradients go to the host
// once a micro-step at stages 2 and 3, where the host adds them up, and once a step at stage 1,
// where the GPU adds them up; updated parameters return once. Offloaded parameter shards are copied
// once a gather instead, and copied back only if the GPU updated them. Sources: ZeRO-Offload, arXiv
// 2101.06840, section 3 (4 psi for 16 bit and one micro-step); ZeRO-Infinity, arXiv 2104.07857,
// section 4.
struct PcieTerms {
  int stage = 0;
  double psi = 0;             // parameters
  double psi_persistent = 0;  // stage 3: always on the GPU
  double psi_reused = 0;      // stage 3: gathered once less
  int64_t grad_accum = 1;
  int ranks = 1;
  double optimizer_on_host = 0;    // share: 0 without offload, ratio with it (disk counts as host)
  bool params_away = false;        // offload_param
  uint64_t param_bytes = 2;        // in the compute dtype; equal for whole gradients
  uint64_t stage1_grad_bytes = 2;  // in the accumulated gradient's dtype
};
double PcieBytesPerStep(const PcieTerms& terms);

}  // namespace zeroplan
