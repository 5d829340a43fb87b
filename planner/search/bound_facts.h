// The facts of a model and of a group of choices that bounds use before anything is lowered: sums
// over the parameter layout, and the assumptions beyond them, by name.
#pragma once

#include <cstdint>
#include <vector>

#include "core/config/zero_config.h"
#include "core/program/layout.h"
#include "cost_models/closed_form.h"
#include "planner/search/search_space.h"

namespace zeroplan {

// Where a model breaks one of these, its bounds are looser, or nothing, but they hold.
struct BoundAssumptions {
  // Elements of the embedding whose transpose makes the logits; 0: the head is a matrix of its own,
  // or it is not trained.
  // A tied matrix's gradient is open from the loss to the end of the backward pass, and at stage 3
  // the matrix is gathered twice in a forward pass. Broken: neither is counted, what lies outside
  // of the layers is fetched once, and gradients behind the layers are no part of the backward
  // half.
  double tied_head_elements = 0;
  // All layers have the same tensors, hence run the same kernels: models of one and of two segments
  // tell the kernels' time and the activations of any number. Broken: the whole model is lowered
  // instead, and of unlike layers the one counts that makes a bound least.
  bool uniform_layers = false;
};
BoundAssumptions AssumptionsOf(const std::vector<ParamTensor>& tensors, int64_t layers);

// Layers whose gathered units have the same number of elements.
struct LayerGathers {
  double elements = 0;
  double layers = 0;
};

// Elements of a stage 3 layout; sums of the tensors alone, without alignment, but for the bucket.
// What is kept in NF4 counts as so many elements of the compute dtype as have its bytes.
struct LayoutFacts {
  BoundAssumptions assumed;
  double all = 0;
  // Of all and of the layers those that are trained, which alone have gradients and states.
  double trained = 0, trained_layers = 0;
  double persistent = 0;  // kept whole on every rank
  double layers = 0;      // of all layers together
  double largest_layer = 0;
  double largest_trained_layer = 0;            // of what is trained
  double largest_tensor = 0;                   // of the layers
  double largest_unit = 0;                     // of what is gathered of the layers at once
  double embedding = 0, embedding_gather = 0;  // of the embeddings; of what is gathered of them
  // Where the head is a matrix of its own: the kernels behind the layers, and the units gathered
  // outside of them.
  double own_head = 0, gathered_once = 0;
  std::vector<LayerGathers> layer_gathers;  // rising; of the layers of which anything is
  // What is reduced together where the config leaves it open: elements, and whole layers.
  uint64_t auto_reduce_bucket = 0;
  double auto_reduce_layers = 1;

  // Elements of all that is gathered of the layers.
  double gathered_layers() const {
    double elements = 0;
    for (const LayerGathers& gathers : layer_gathers) elements += gathers.layers * gathers.elements;
    return elements;
  }
};
LayoutFacts FactsOf(const ParamLayout& layout, int64_t layers, const BoundAssumptions& assumed,
                    Dtype compute);

// A group's choices in the words of the formulas, of one rank.
struct GroupTerms {
  GroupTerms(const TrainSetup& setup, const LayoutFacts& facts);  // batch apart

  int ranks = 1, stage = 0;
  ShardGroups groups;         // of the ranks, without accumulation, where they take least memory
  bool crosses_each = false;  // with it: CrossesEachMicroStep
  double psi = 0;             // parameters
  double trained = 0;         // of these
  double whole = 0;           // of these kept whole on every rank of stage 3
  double reused = 0;          // kept from forward to backward, at most
  double kept = 0;            // of the layers kept so at least; where anything is frozen, not known
  double away = 0;            // share of the states on host or disk
  double param_bytes = 2, grad_bytes = 2, state_bytes = 12;  // a parameter
  // Bytes of a parameter's gradient as kernels write it, as collectives send it, and as it goes to
  // the host from stage 2 on.
  double written_grad_bytes = 2, sent_grad_bytes = 2, host_grad_bytes = 2;
  bool params_away = false, sharded = false, in_place = false;
  bool grads_in_blocks = false;  // quantized: reduced unit by unit
  // Layers may be gathered in eight bits (GatherFp8), so that products with a weight as it lies
  // take no copy of it; bytes of an element that is gathered of them, at least.
  bool gathers_fp8 = false;
  double gathered_bytes = 2;
  double shard_align = 0;  // elements that a shard is a multiple of, at most

  // Ranks that share the parameters, and that share the optimizer states.
  double shards() const { return groups.shards; }
  double owners() const { return groups.across_stage > 0 ? groups.ranks : groups.shards; }
  double trained_shard() const { return trained / owners(); }
  bool all_trained() const { return trained == psi; }
};

}  // namespace zeroplan
