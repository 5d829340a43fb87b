// What every transformer's graph is made of, over the Emitter: parameters, activations and their
// gradients, norms, products, attention, embedding, head and loss, each forward and backward.
//
// A forward operation returns what its backward takes: the values it read and made. So a layer's
// saved activations are the operations that its forward returned, and nothing is looked up by
// position. Order of the list is order of execution; kernels of one operation follow one another,
// the gradient of a weight before that of the data, so that what the former alone needs is freed
// first.
//
// Legend: B micro-batch, T sequence, C hidden, H heads of queries, G of keys and values, D head
// size, M = B*T rows, K and N the two sides of a matrix (of query, key and value together N =
// (H+2G)*D), V vocabulary, Vp padded vocabulary, P the compute dtype.
//
// Where ranks share sequences (BatchSpec::sequence_ranks), T is what a rank has of one, but from
// ToHeads to ToRows: there T is all of it, and H and G are the rank's heads.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "core/lowering/emitter.h"
#include "core/lowering/lower.h"
#include "core/program/program.h"

namespace zeroplan {

// A parameter that an operation does without: a product's bias, an embedding's positions.
inline constexpr int kNoParam = -1;

// A tensor of the graph, [rows, cols] in P: an activation or the gradient of one.
struct Value {
  BufferId buffer = kNoBuffer;
  int64_t rows = 0, cols = 0;
};

// What a buffer is called in dumps and reports, and the layer beside it: the builder's own unless
// said otherwise.
struct Label {
  static constexpr int kHere = -1000;

  Label(const char* name, int of = kHere) : text(name), layer(of) {}  // NOLINT: implicit

  const char* text;  // static string
  int layer;         // -2: none
};

struct Norm {
  int weight = 0, bias = kNoParam;  // RMS norms have no bias
  Value x_MC, y_MC;
  BufferId stats = kNoBuffer;  // F32 for each row: layer norm's mean and 1/std, RMS norm's rstd
};

struct Linear {
  int weight = 0, bias = kNoParam;
  Value x_MK, y_MN;
  // Of its adapters, a value for each pair of A and B: scale * x A^T.
  std::vector<Value> xa_MR;
  Value pre_MN;  // where y is GELU of the product: the product, with its bias
};

// Query and key heads, turned by their positions.
struct Rotary {
  int norm = kNoParam;  // the RMS norm of each head before
  // The same buffer without a norm: heads are turned in place.
  Value qkv_MN, out_MN;
  BufferId rstd = kNoBuffer;  // F32, [M, H+G]: of a norm
  BufferId table_TD = kNoBuffer;
};

// silu(gate) * up, of a product that makes both.
struct SwiGlu {
  Linear gate_up;  // [M, 2F]
  Value y_MF;
};

struct Attention {
  Value qkv_MN, out_MHD;
  // What backward needs besides: with fused attention lse [B,H,T] in F32, else the probabilities
  // [B,H,T,T] in P.
  BufferId saved = kNoBuffer;
};

class GraphBuilder {
 public:
  // Emits into `section` of `program` for `batch` sequences. REQUIRES: the units' param_full
  // buffers, state and tokens exist; for backward the grad_full buffers too.
  GraphBuilder(Program& program, Section section, int64_t batch, const LowerOptions& options);

  const ModelSpec& model() const { return program_.model; }

  // For generation: each layer's keys and values go to its buffer of `caches` (Role::kKeysValues),
  // and section decode, of one token, finds those before it there. REQUIRES: one sequence.
  void KeepKeysValues(std::vector<BufferId> caches) { caches_ = std::move(caches); }

  // Where the next instructions and buffers belong. Parameters of layers are those of `layer`.
  void At(Phase phase, int layer);

  // Token and position embedding, [M, C]: tokens (+ positions) of the row.
  Value Embedding(int tokens, int positions, Label label);
  // Gradients of the tables. Where the token table is not the head's as well, it is zeroed first.
  void EmbeddingBackward(int tokens, int positions, const Value& dx_MC);

  // Layer norm over each row; the statistics are a buffer "ln_stats".
  Norm NormForward(const Value& x_MC, int weight, int bias, Label label);
  // dx = or, with `add`, += the gradient of norm.x_MC.
  void NormBackward(const Norm& norm, const Value& dy_MC, const Value& dx_MC, bool add);

  // RMS norm of each row; rstd is a buffer "rstd".
  Norm RmsNormForward(const Value& x_MC, int weight, Label label);
  void RmsNormBackward(const Norm& norm, const Value& dy_MC, const Value& dx_MC, bool add);

  // y = x*w (+ bias) (+ residual): residual additions ride on products. K and N are the weight's.
  Linear LinearForward(const Value& x_MK, int weight, int bias, Label label,
                       const Value& residual_MN = {});
  // y = gelu(x*w (+ bias)); `pre` labels the product.
  Linear LinearGeluForward(const Value& x_MK, int weight, int bias, Label pre, Label label);
  // Gradients of weight and bias, then of x, which is returned. dy is of the product: where y is
  // GELU of it, GELU's gradient is already in.
  Value LinearBackward(const Linear& linear, const Value& dy_MN, Label label);
  // The same, and dx += the gradient of x.
  void LinearBackwardAdd(const Linear& linear, const Value& dy_MN, const Value& dx_MK);
  // The backward pass of a product whose x is GELU of another, `inner`: returns the gradient of
  // inner.pre_MN, as inner's backward takes it.
  Value LinearBackwardThroughGelu(const Linear& linear, const Linear& inner, const Value& dy_MN,
                                  Label label);

  // y = silu(gate)*up of gate and up = x*w (+ bias); `pre` labels the product.
  SwiGlu SwiGluForward(const Value& x_MC, int weight, int bias, Label pre, Label label);
  // Gradients of weight and bias, then of x, which is returned. The product becomes its own
  // gradient in place.
  Value SwiGluBackward(const SwiGlu& swiglu, const Value& dy_MF, Label label);

  // With sequences over ranks, from a rank's positions with all heads to all positions with the
  // rank's heads, and back: what happens to heads happens in between. `x` is query, key and value
  // together or the attention's output; the same value where a rank has whole sequences.
  Value ToHeads(const Value& x_MN, Label label) { return ToHeads(x_MN, label, Role::kActivation); }
  Value ToRows(const Value& x_MN, Label label) { return ToRows(x_MN, label, Role::kActivation); }
  // The gradients of ToRows and of ToHeads.
  Value ToRowsBackward(const Value& dx_MN, Label label) {
    return ToHeads(dx_MN, label, Role::kActivationGrad);
  }
  Value ToHeadsBackward(const Value& dx_MN, Label label) {
    return ToRows(dx_MN, label, Role::kActivationGrad);
  }

  // What turns heads by their positions, F32, for the whole micro-step: cosines and sines [T, D].
  BufferId RotaryTable();
  // Turns the query and key heads of qkv in place; with `norm` (kNoParam: none) an RMS norm of each
  // goes before and the result has a buffer of its own, which `label` names.
  Rotary RotaryForward(const Value& qkv_MN, int norm, BufferId table_TD, Label label);
  // The gradient of out_MN becomes that of qkv_MN in place; the norm's gradient too.
  void RotaryBackward(const Rotary& rotary, const Value& dqkv_MN);

  // Causal attention of all heads, scale 1/sqrt(D).
  Attention AttentionForward(const Value& qkv_MN, Label label);
  Value AttentionBackward(const Attention& attention, const Value& dout_MHD, Label label);

  // Logits and loss by chunks of rows, so that no more than a chunk of logits exists at once; adds
  // the mean loss to StepState. With `train` also the gradients of logits, head and `y_MC`; the
  // last is returned. `head` is [Vp, C], tied or not.
  Value HeadLoss(const Value& y_MC, int head, bool train);
  // The row StepState::position of `x_MC`.
  Value SelectRow(const Value& x_MC, Label label);
  // Logits of one row, [Vp] in F32, to `logits_host`.
  void RowLogits(const Value& y_1C, int head, BufferId logits_host);

  // A gradient of `cols` columns for each row, of which there are as many as tokens or `rows`. Its
  // maker writes it whole.
  Value Gradient(Label label, int64_t cols, int64_t rows = 0);

 private:
  const ParamTensor& Tensor(int param) const;
  int TensorIndex(int param) const;
  Ref Slot(int param, const std::vector<BufferId>& by_unit) const;
  Ref Param(int param) const { return Slot(param, params_); }
  // Null for one that is not trained.
  Ref Grad(int param) const { return Trains(param) ? Slot(param, grads_) : Ref{}; }
  // The same, or memory for what nobody wants where the kernel writes it all the same.
  Ref GradOrScratch(int param);
  bool Trains(int param) const { return param != kNoParam && Tensor(param).trainable; }
  // A kernel's parameters are all trained or none is.
  void CheckTogether(int param, int other) const;
  // Sides of a matrix that rows are multiplied with, and the flag that says how it lies.
  int64_t In(int weight) const;
  int64_t Out(int weight) const;
  uint8_t Lies(int weight) const { return Tensor(weight).out_in ? kTransposed : kNoFlags; }

  KernelDims AttentionDims() const;
  KernelDims RotaryDims() const;
  Value ToHeads(const Value& x_MN, Label label, Role role);
  Value ToRows(const Value& x_MN, Label label, Role role);
  // Dims of PackHeads and UnpackHeads for a value of `cols` columns, where attention's output has
  // `output_cols`.
  KernelDims ExchangeDims(int64_t cols, int64_t output_cols) const;
  // Parts of each sequence, one for each rank that shares it, to these ranks.
  Value Exchange(const Value& parts, Label label);
  Value Activation(Label label, int64_t rows, int64_t cols);
  BufferId AddActivation(Label label, uint64_t elements, Dtype dtype);
  // The parameter with rows of single tokens of an embedding or head; kNoParam: it has none.
  int TokenRows(int weight) const;
  // Exchanges the columns of those tokens: what the rows made, and the matrix that they are not of.
  void SwapColumns(const Ref& own_Rn, const Ref& logits_RVp, int64_t rows, int64_t n);
  // Makes the logits of the tokens that the rows `own` are of, and puts them into their columns.
  void OwnLogits(const Ref& y_RC, int own, const Ref& own_Rn, const Ref& logits_RVp, int64_t rows);
  // The pairs of A and B that the layer has for a matrix.
  int AdapterPairs(int weight) const;
  KernelDims AdapterDims(int weight, int pair, int64_t rows) const;
  // y = x*w (+ bias) (+ residual), with what an adapter adds.
  void ProductForward(Linear& linear, const Value& residual_MN, const Value& y_MN);
  // What the adapter with the matrix `down` reads of x: with dropout another value, made anew.
  Value AdapterInput(int down, const Value& x_MK);
  // y = or, with `add`, += x as the dropout of that adapter has it.
  void Dropout(int down, const Value& x_MK, const Value& y_MK, bool add);
  // The gradients of the weight and bias of `linear`, and of its adapters' B: returns those of
  // linear.xa_MR.
  std::vector<Value> WeightBackward(const Linear& linear, const Value& dy_MN);
  // dx = or, with `add`, += the gradient of x, through the matrix and the adapters. With those of
  // A.
  void DataBackward(const Linear& linear, const Value& dy_MN, const std::vector<Value>& dxa_MR,
                    const Value& dx_MK, bool add);
  Ref All(BufferId id) const { return Whole(program_, id); }
  Ref All(const Value& value) const {
    return value.buffer == kNoBuffer ? Ref{} : Whole(program_, value.buffer);
  }
  Ref Inputs() const;
  // The number of the batch's first sequence.
  Ref SequenceNumber() const;
  // Where each position's document starts; null: rows are whole texts.
  Ref Starts() const;
  // Rows [begin, begin + rows) of a value, for the head's products.
  Ref Rows(const Value& value, int64_t begin, int64_t rows) const;

  Program& program_;
  Emitter emit_;
  const bool decodes_;  // section decode: a sequence is one token, at StepState::position
  const int64_t batch_;
  const int64_t seq_, whole_seq_;   // of a sequence what this rank has, and all of it
  const int64_t heads_, kv_heads_;  // that this rank attends with
  const Dtype dtype_, grad_dtype_;
  const uint64_t logits_chunk_bytes_;
  const bool flash_attention_;
  const float dropout_;    // of what adapters read; 0: none
  const bool fused_gelu_;  // the backend's products apply GELU to their sums
  // The layer of a parameter's first tensor, by parameter id; outside the layers it is the only
  // one.
  static constexpr int kNoHome = -2;
  std::vector<int> home_layer_;
  std::vector<int> tensor_of_;            // [layer + 1][id]: index into the table, -1 for none
  std::vector<BufferId> params_, grads_;  // by unit
  std::vector<BufferId> caches_;          // by layer; empty: nothing is kept
  Phase phase_ = Phase::kForward;
  int layer_ = kEmbeddingLayer;
};

// The graph of a model, part by part: what a family writes over the GraphBuilder. Each function
// emits one part, into the phase and layer that build_compute has put the builder at. The backward
// functions take what the forward ones have kept in the object; gradients of parameters go where
// the builder puts them.
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
