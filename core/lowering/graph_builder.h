// The operations of a transformer's graph, over the Emitter: parameters, activations and their
// gradients, norms, matmuls, attention, embedding, head and loss, each forward and backward.
//
// A forward operation returns the values that it read and made, which its backward operation needs.
// So a layer's saved activations are the operations that its forward pass returned, and nothing is
// looked up by position. List order is execution order. The kernels of one operation follow one
// another, the gradient of a weight before that of the data, so that the buffers that only the
// weight's gradient reads are freed first.
//
// Legend: B micro-batch, T sequence, C hidden, H heads of queries, G of keys and values, D head
// size, M = B*T rows, K and N the two sides of a matrix (of query, key and value together N =
// (H+2G)*D), V vocabulary, Vp padded vocabulary, P the compute dtype.
//
// If ranks share sequences (BatchSpec::sequence_ranks), T is a rank's part of one, except from
// ToHeads to ToRows: there T is the whole sequence, and H and G are the rank's heads.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "core/lowering/emitter.h"
#include "core/lowering/lower.h"
#include "core/program/program.h"

namespace zeroplan {

// An operation's absent parameter: the bias of a matmul, the positions of an embedding.
inline constexpr int kNoParam = -1;

// A tensor of the graph, [rows, cols] in P: an activation or the gradient of one.
struct Value {
  BufferId buffer = kNoBuffer;
  int64_t rows = 0, cols = 0;
};

// A buffer's name in dumps and reports, and its layer there. Default: the builder's current layer.
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
  // x times the A of each adapter pair, scale * x A^T, one value a pair.
  std::vector<Value> xa_MR;
  Value pre_MN;  // set if y = GELU(pre): the matmul's result, bias included
};

// Query and key heads, rotated by their positions (rotary embedding).
struct Rotary {
  int norm = kNoParam;  // the RMS norm applied to each head first
  // The same buffer if there is no norm: heads are rotated in place.
  Value qkv_MN, out_MN;
  BufferId rstd = kNoBuffer;  // F32, [M, H+G]: 1/rms of the norm
  BufferId table_TD = kNoBuffer;
};

// silu(gate) * up; one matmul makes both.
struct SwiGlu {
  Linear gate_up;  // [M, 2F]
  Value y_MF;
};

// The parameters of a layer's experts, by id.
struct ExpertParams {
  int router;   // [E, C], with a shared expert [E+1, C]: the last row makes its gate
  int gate_up;  // [E*2F, C]: of each expert gate, then up
  int down;     // [E*C, F]
  int shared_gate_up = kNoParam, shared_down = kNoParam;  // those of a shared expert
};

// Experts in place of an MLP: each row of x goes to k of E experts, whose results, weighed by the
// router, are summed. R = M*k rows in expert order (core/program/expert_kernel_rows.inc).
struct Experts {
  ExpertParams params;
  Value x_MC, y_MC;
  Linear router;                // y_MN are the logits, in F32
  BufferId picks = kNoBuffer;   // I32 [M, k]
  BufferId gates = kNoBuffer;   // F32 [M, k]
  BufferId starts = kNoBuffer;  // I32 [E+1]
  BufferId order = kNoBuffer;   // I32 [R]
  BufferId places = kNoBuffer;  // I32 [M, k]
  Value rows_RC, gate_up_R2F, swiglu_RF;
  // The shared expert: gates, F32 [M], and the MLP over all rows.
  BufferId shared_gates = kNoBuffer;
  Linear shared_gate_up, shared_down;
};

struct Attention {
  Value qkv_MN, out_MHD;
  // Read by the backward pass: with fused attention lse [B,H,T] in F32, else the probabilities
  // [B,H,T,T] in P.
  BufferId saved = kNoBuffer;
};

class GraphBuilder {
 public:
  // Emits into `section` of `program` for `batch` sequences. REQUIRES: the units' param_full
  // buffers, state and tokens exist; for backward the grad_full buffers too.
  GraphBuilder(Program& program, Section section, int64_t batch, const LowerOptions& options);

  const ModelSpec& model() const { return program_.model; }

  // For generation: writes each layer's keys and values to its buffer of `caches`
  // (Role::kKeysValues); section decode, of one token, reads the earlier tokens' keys and values
  // there. REQUIRES: one sequence.
  void KeepKeysValues(std::vector<BufferId> caches) { caches_ = std::move(caches); }

  // Sets the phase and layer of the next instructions and buffers. Parameters of layers are those
  // of `layer`.
  void At(Phase phase, int layer);

  // Token and position embedding, [M, C]: the sum of the rows of both tables.
  Value Embedding(int tokens, int positions, Label label);
  // Gradients of the tables. Zeroes that of the token table first, unless the head shares the
  // table.
  void EmbeddingBackward(int tokens, int positions, const Value& dx_MC);

  // Layer norm over each row; the statistics are a buffer "ln_stats".
  Norm NormForward(const Value& x_MC, int weight, int bias, Label label);
  // dx = or, with `add`, += the gradient of norm.x_MC.
  void NormBackward(const Norm& norm, const Value& dy_MC, const Value& dx_MC, bool add);

  // RMS norm of each row; rstd is a buffer "rstd".
  Norm RmsNormForward(const Value& x_MC, int weight, Label label);
  void RmsNormBackward(const Norm& norm, const Value& dy_MC, const Value& dx_MC, bool add);

  // y = x*w (+ bias) (+ residual): the matmul adds the residual. K and N are the weight's.
  Linear LinearForward(const Value& x_MK, int weight, int bias, Label label,
                       const Value& residual_MN = {});
  // y = gelu(x*w (+ bias)); `pre` labels the matmul's result.
  Linear LinearGeluForward(const Value& x_MK, int weight, int bias, Label pre, Label label);
  // Gradients of weight and bias, then of x; returns the last. dy is the gradient of the matmul's
  // result: if y is its GELU, GELU's gradient is already applied.
  Value LinearBackward(const Linear& linear, const Value& dy_MN, Label label);
  // The same, and dx += the gradient of x.
  void LinearBackwardAdd(const Linear& linear, const Value& dy_MN, const Value& dx_MK);
  // The backward pass of a matmul whose x is the GELU of another matmul, `inner`. Returns the
  // gradient of inner.pre_MN, the dy of inner's backward pass.
  Value LinearBackwardThroughGelu(const Linear& linear, const Linear& inner, const Value& dy_MN,
                                  Label label);

  // y = silu(gate)*up of gate and up = x*w (+ bias); `pre` labels the matmul's result.
  SwiGlu SwiGluForward(const Value& x_MC, int weight, int bias, Label pre, Label label);
  // Gradients of weight and bias, then of x; returns the last. The matmul's result becomes its own
  // gradient in place.
  Value SwiGluBackward(const SwiGlu& swiglu, const Value& dy_MF, Label label);

  // y = residual + the experts' results. The last kernel makes y and nothing else.
  Experts ExpertsForward(const Value& x_MC, const ExpertParams& params, Label label,
                         const Value& residual_MC);
  // Gradients of all parameters, then of x; returns the last.
  Value ExpertsBackward(const Experts& experts, const Value& dy_MC, Label label);
  // Between the passes: auxiliary losses of all layers' routing, and what their gradients take.
  // Nothing without such losses and counts (a model without experts).
  void BalanceExperts();

  // If ranks share sequences: exchanges a rank's positions with all heads for all positions with
  // the rank's heads, and back. Operations on heads come between the two. `x` is query, key and
  // value together, or the attention's output. Returns `x` itself where a rank has whole sequences.
  Value ToHeads(const Value& x_MN, Label label) { return ToHeads(x_MN, label, Role::kActivation); }
  Value ToRows(const Value& x_MN, Label label) { return ToRows(x_MN, label, Role::kActivation); }
  // The gradients of ToRows and of ToHeads.
  Value ToRowsBackward(const Value& dx_MN, Label label) {
    return ToHeads(dx_MN, label, Role::kActivationGrad);
  }
  Value ToHeadsBackward(const Value& dx_MN, Label label) {
    return ToRows(dx_MN, label, Role::kActivationGrad);
  }

  // The rotary table of the whole micro-step, F32: cosines and sines [T, D].
  BufferId RotaryTable();
  // Rotates the query and key heads of qkv in place. With `norm` (kNoParam: none) applies an RMS
  // norm to each head first; then the result has a buffer of its own, labelled `label`.
  Rotary RotaryForward(const Value& qkv_MN, int norm, BufferId table_TD, Label label);
  // Turns the gradient of out_MN into that of qkv_MN, in place, and makes the norm's gradient.
  void RotaryBackward(const Rotary& rotary, const Value& dqkv_MN);

  // Causal attention of all heads, scale 1/sqrt(D).
  Attention AttentionForward(const Value& qkv_MN, Label label);
  Value AttentionBackward(const Attention& attention, const Value& dout_MHD, Label label);

  // Logits and loss by chunks of rows, so that no more than a chunk of logits exists at once; adds
  // the mean loss to StepState. With `train` also the gradients of logits, head and `y_MC`; returns
  // the last. `head` is [Vp, C], tied or not.
  Value HeadLoss(const Value& y_MC, int head, bool train);
  // The row StepState::position of `x_MC`.
  Value SelectRow(const Value& x_MC, Label label);
  // Writes the logits of one row, [Vp] in F32, to `logits_host`.
  void RowLogits(const Value& y_1C, int head, BufferId logits_host);

  // A gradient with `cols` columns and `rows` rows (0: one for each token). The operation that
  // makes it writes it whole.
  Value Gradient(Label label, int64_t cols, int64_t rows = 0);

 private:
  const ParamTensor& Tensor(int param) const;
  int TensorIndex(int param) const;
  Ref Slot(int param, const std::vector<BufferId>& by_unit) const;
  Ref Param(int param) const { return Slot(param, params_); }
  // Null for a parameter that is not trained.
  Ref Grad(int param) const { return Trains(param) ? Slot(param, grads_) : Ref{}; }
  // The same, or scratch memory for an unwanted gradient that the kernel writes anyway.
  Ref GradOrScratch(int param);
  bool Trains(int param) const { return param != kNoParam && Tensor(param).trainable; }
  // Checks that a kernel's parameters are all trained or none is.
  void CheckTogether(int param, int other) const;
  // The sides of a matrix that multiplies rows, and the flag for its layout in memory.
  int64_t In(int weight) const;
  int64_t Out(int weight) const;
  uint8_t Lies(int weight) const { return Tensor(weight).out_in ? kTransposed : kNoFlags; }

  KernelDims AttentionDims() const;
  KernelDims RotaryDims() const;
  Value ToHeads(const Value& x_MN, Label label, Role role);
  Value ToRows(const Value& x_MN, Label label, Role role);
  // Dims of PackHeads and UnpackHeads for a value of `cols` columns, if attention's output has
  // `output_cols`.
  KernelDims ExchangeDims(int64_t cols, int64_t output_cols) const;
  // Sends each rank of the sequence group its part of each sequence.
  Value Exchange(const Value& parts, Label label);
  Value Activation(Label label, int64_t rows, int64_t cols);
  BufferId AddActivation(Label label, uint64_t elements, Dtype dtype);
  KernelDims RouteDims(int64_t rows) const;
  // y = g * silu(gate) * up of all rows.
  Value GatedSwiGlu(const Value& gate_up, BufferId gates, BufferId order, Label label);
  // The parameter with the single-token rows of an embedding or head; kNoParam: there is none.
  int TokenRows(int weight) const;
  // Swaps the columns of those tokens between the logits of the rows of their own and the logits of
  // the whole matrix.
  void SwapColumns(const Ref& own_Rn, const Ref& logits_RVp, int64_t rows, int64_t n);
  // Makes the logits of the tokens whose rows are in `own`, and puts them into their columns.
  void OwnLogits(const Ref& y_RC, int own, const Ref& own_Rn, const Ref& logits_RVp, int64_t rows);
  // The number of adapter pairs (A and B) of a matrix in this layer.
  int AdapterPairs(int weight) const;
  KernelDims AdapterDims(int weight, int pair, int64_t rows) const;
  // y = x*w (+ bias) (+ residual), plus the adapters' results.
  void ProductForward(Linear& linear, const Value& residual_MN, const Value& y_MN);
  // The input of the adapter with the matrix `down`: x, or with dropout another value, made again.
  Value AdapterInput(int down, const Value& x_MK);
  // y = or, with `add`, += the dropout of x for that adapter.
  void Dropout(int down, const Value& x_MK, const Value& y_MK, bool add);
  // Makes the gradients of the weight and bias of `linear`, and of its adapters' B. Returns the
  // gradients of linear.xa_MR.
  std::vector<Value> WeightBackward(const Linear& linear, const Value& dy_MN);
  // dx = or, with `add`, += the gradient of x, through the matrix and the adapters. Makes the
  // gradients of A too.
  void DataBackward(const Linear& linear, const Value& dy_MN, const std::vector<Value>& dxa_MR,
                    const Value& dx_MK, bool add);
  Ref All(BufferId id) const { return Whole(program_, id); }
  Ref All(const Value& value) const {
    return value.buffer == kNoBuffer ? Ref{} : Whole(program_, value.buffer);
  }
  Ref Inputs() const;
  // The number of the batch's first sequence.
  Ref SequenceNumber() const;
  // The start of each position's document; null: rows are whole texts.
  Ref Starts() const;
  // Rows [begin, begin + rows) of a value, for the head's matmuls.
  Ref Rows(const Value& value, int64_t begin, int64_t rows) const;

  Program& program_;
  Emitter emit_;
  const bool decodes_;  // section decode: a sequence is one token, at StepState::position
  const int64_t batch_;
  const int64_t seq_, whole_seq_;   // positions of a sequence: this rank's, and all
  const int64_t heads_, kv_heads_;  // heads that this rank attends with
  const Dtype dtype_, grad_dtype_;
  const uint64_t logits_chunk_bytes_;
  const bool flash_attention_;
  const float dropout_;    // dropout of the adapters' input; 0: none
  const bool fused_gelu_;  // the backend's matmuls can apply GELU to their results
  // The layer of a parameter's first tensor, by parameter id. A parameter outside the layers has
  // one tensor only.
  static constexpr int kNoHome = -2;
  std::vector<int> home_layer_;
  std::vector<int> tensor_of_;            // [layer + 1][id]: index into the table, -1 for none
  std::vector<BufferId> params_, grads_;  // by unit
  std::vector<BufferId> caches_;          // by layer; empty: keys and values are not kept
  // Results of RouterStats, a row for each layer with experts, and of BalanceLoss. Training alone.
  BufferId router_stats_ = kNoBuffer, balance_ = kNoBuffer;
  int64_t routed_layers_ = 0;  // layers whose statistics are there
  Phase phase_ = Phase::kForward;
  int layer_ = kEmbeddingLayer;
};

// The graph of a model, part by part; a model family implements it over the GraphBuilder. Each
// function emits one part, in the phase and layer that build_compute has set. The backward
// functions use the values that the forward functions stored in the object; gradients of parameters
// go where the builder puts them.
class ModelGraph {
 public:
  virtual ~ModelGraph() = default;

  // The input of the first layer, [B*T, C].
  virtual Value Embed() = 0;
  // Emits layer `layer` over `x_MC`, the residual stream; returns the next layer's input. The last
  // kernel makes that output and nothing else that the backward pass needs: full recompute leaves
  // it out.
  virtual Value Layer(int layer, const Value& x_MC) = 0;
  // The head's input, from the last layer's output. A single row in generation.
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
