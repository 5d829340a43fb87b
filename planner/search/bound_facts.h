// The facts of a model and of a group of choices that bounds use before lowering: sums over the
// parameter layout, and the named assumptions beyond them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program/layout.h"
#include "core/settings/zero_config.h"
#include "cost_models/closed_form.h"
#include "planner/search/search_space.h"

namespace zeroplan {

// If a model breaks one of these assumptions, its bounds are looser, or absent, but they hold.
struct BoundAssumptions {
  // Elements of the embedding whose transpose makes the logits; 0: the head is untied, or it is not
  // trained. A tied matrix's gradient is live from the loss to the end of the backward pass, and at
  // stage 3 the matrix is gathered twice in a forward pass. If broken, bounds count neither, fetch
  // the parameters outside the layers once, and leave the gradients after the layers out of the
  // backward half.
  double tied_head_elements = 0;
  // All layers have the same tensors, hence run the same kernels: models of one and of two segments
  // give the kernels' time and the activations of any number. If broken, the whole model is lowered
  // instead. Among unlike layers bounds use the one that makes them least, and they do not count
  // units that are kept gathered from the forward pass.
  bool uniform_layers = false;
};
BoundAssumptions AssumptionsOf(const std::vector<ParamTensor>& tensors, int64_t layers);

// Layers whose gathered units have the same number of elements.
struct LayerGathers {
  double elements = 0;
  double layers = 0;
};

// Elements of a stage 3 layout: sums of the tensors alone, without alignment, except for the
// bucket. NF4 parameters count as the elements of the compute dtype that have as many bytes.
struct LayoutFacts {
  BoundAssumptions assumed;
  double all = 0;
  // trained elements of all and of the layers: only those have gradients and states
  double trained = 0, trained_layers = 0;
  double persistent = 0;  // kept whole on every rank
  double layers = 0;      // sum over all layers
  double largest_layer = 0;
  double largest_trained_layer = 0;  // trained elements of a layer
  double largest_tensor = 0;         // within the layers
  double largest_unit = 0;           // largest unit gathered at once in the layers
  // A layer has several trained units that are gathered, as dense part and experts: one of them is
  // there while the other is not, nor its gradients.
  bool split_layers = false;
  double embedding = 0, embedding_gather = 0;  // elements of the embeddings; those gathered
  // If the head is untied: the elements of the units after the layers, and the elements gathered
  // outside the layers.
  double own_head = 0, gathered_once = 0;
  std::vector<LayerGathers> layer_gathers;  // rising; the layers that gather anything
  // The reduce bucket if the config leaves it open: elements, and whole layers.
  uint64_t auto_reduce_bucket = 0;
  double auto_reduce_layers = 1;

  // Elements of all units gathered in the layers.
  double gathered_layers() const {
    double elements = 0;
    for (const LayerGathers& gathers : layer_gathers) elements += gathers.layers * gathers.elements;
    return elements;
  }
};
LayoutFacts FactsOf(const ParamLayout& layout, int64_t layers, const BoundAssumptions& assumed,
                    Dtype compute);

// A group's choices as terms of the formulas, for one rank.
struct GroupTerms {
  GroupTerms(const TrainSetup& setup, const LayoutFacts& facts);  // batch apart

  int ranks = 1, stage = 0;
  ShardGroups groups;  // the ranks' groups, without accumulation, where they need least memory
  bool crosses_each = false;  // CrossesEachMicroStep with accumulation
  double psi = 0;             // parameters
  double trained = 0;         // trained parameters
  double whole = 0;           // trained parameters kept whole on every rank at stage 3
  double reused = 0;          // elements kept from forward to backward, at most
  double kept = 0;  // elements of the layers kept so, at least; unknown if anything is frozen
  double away = 0;  // share of the states on host or disk
  double param_bytes = 2, grad_bytes = 2, state_bytes = 12;  // bytes of a parameter
  // Bytes of a parameter's gradient as kernels write it, as collectives send it, and as it is
  // copied to the host from stage 2 on.
  double written_grad_bytes = 2, sent_grad_bytes = 2, host_grad_bytes = 2;
  bool params_away = false, sharded = false, in_place = false;
  bool grads_in_blocks = false;  // quantized: reduced unit by unit
  // Layers may be gathered in 8 bits (GatherFp8), so that matmuls with an untransposed weight need
  // no 8-bit copy of it; bytes of a gathered element of them, at least.
  bool gathers_fp8 = false;
  double gathered_bytes = 2;
  double shard_align = 0;  // a shard is a multiple of at most this many elements

  // Ranks that share the parameters, and ranks that share the optimizer states.
  double shards() const { return groups.shards; }
  double owners() const { return groups.across_stage > 0 ? groups.ranks : groups.shards; }
  double trained_shard() const { return trained / owners(); }
  bool all_trained() const { return trained == psi; }
};

}  // namespace zeroplan
