// The graph of a model, part by part: what a family writes over the GraphBuilder.
#pragma once

#include "core/lowering/graph_builder.h"

namespace zeroplan {

// Each function emits one part, into the phase and layer that build_compute has put the builder at.
// The backward functions take what the forward ones have kept in the object; gradients of
// parameters go where the builder puts them.
class ModelGraph {
 public:
  virtual ~ModelGraph() = default;

  // The input of the first layer, [B*T, C].
  virtual Value Embed() = 0;
  // Layer `layer` of `x_MC`, the residual stream; returns the next layer's input. The last kernel
  // makes that output and nothing else that the backward pass needs: full recompute leaves it out.
  virtual Value Layer(int layer, const Value& x_MC) = 0;
  // What the head is multiplied with, of the last layer's output. For a single row in generation.
  virtual Value Final(const Value& x_MC) = 0;
  // The parameter that is the head (ParamUse::kHead).
  virtual int head() const = 0;

  // Turns the gradient of Final's value into that of the last layer's output.
  virtual Value FinalBackward(const Value& dy_MC) = 0;
  // Turns the gradient of the layer's output into that of its input, in place. REQUIRES: layers are
  // called from the last to the first.
  virtual void LayerBackward(int layer, const Value& dx_MC) = 0;
  virtual void EmbedBackward(const Value& dx_MC) = 0;
};

}  // namespace zeroplan
