// The tensors that the modelling code of a PyTorch program allocates and keeps for backward, and
// the kernels that it launches, for each part of a layer. There is one row per style, data only,
// counted from the real modules' autograd graphs (benchmarks/peers/count_code.py; a test compares
// the rows with tests/data/runtimes/code_counts.jsonl).
#pragma once

#include <cstdint>
#include <string_view>

#include "planner/torch_recipe.h"

namespace zeroplan {

// A part of a layer. Its words, in the order of execution:
//
//   a4e   makes tensor a, 4 bytes for each element e
//   -a    frees it; -au: where there are elements u
//   =i    an input (i, j, l) is kept for backward
//   o:i   the result o overwrites the input i
//   W     makes the gradients of its parameters
//
// Forward gets the inputs i, j, l and makes the results o, O; the other tensors that are left are
// kept for backward. Backward gets g, G, L, the gradients of the results, and makes d, D, M, the
// gradients of the inputs. Elements: see TorchElements.
struct CodePart {
  std::string_view forward, backward;
  // Bytes that its kernels read and write, "20e 20k": 20 for each element e and for each k.
  std::string_view forward_moves, backward_moves;
  int forward_launches = 0, backward_launches = 0;

  bool Keeps(char given) const;
  // Bytes of an element of its result; 2 if it makes none.
  int result_bytes() const;
};

// The number of each element.
struct TorchElements {
  int64_t e = 0;  // elements of the part's first input
  int64_t k = 0;  // tokens x columns of keys
  int64_t r = 0;  // tokens x columns of queries and keys
  int64_t p = 0;  // tokens x columns of queries, keys and values
  int64_t t = 0;  // tokens
  int64_t n = 0;  // batch x heads x sequence
  int64_t s = 0;  // batch x heads x sequence x sequence: scores
  int64_t u = 0;  // as many as of queries if heads of keys are shared, else none
  int64_t q = 0;  // tokens x columns of queries
  int64_t m = 0;  // batch x sequence x sequence: a mask
  // For experts: rows (tokens x experts of a token) x hidden, rows x the experts' width, rows;
  // tokens x experts.
  int64_t h = 0, f = 0, c = 0, x = 0;
  // For a linear with an adapter: tokens x columns of its output; tokens x rank; elements of its
  // weight; blocks of 64 of the weight.
  int64_t y = 0, b = 0, w = 0, z = 0;

  int64_t operator[](char element) const;
};

// The elements of a part of which the first input has `e`.
TorchElements ElementsOf(int64_t batch, int64_t seq, int64_t heads, int64_t q_columns,
                         int64_t kv_columns, int64_t e);

struct CodeWord {
  enum Kind : uint8_t { kMakes, kFrees, kKeeps, kRenames, kParamGradients } kind = kMakes;
  char slot = 0;
  char element = 0;  // kMakes: the element; kFrees: the element of which there must be some, or
                     // none
  char from = 0;     // kRenames: the source
  int bytes = 0;     // kMakes: bytes of an element
};
// Removes the first word of `words` and returns it. REQUIRES: `words` is not empty.
CodeWord NextWord(std::string_view* words);
// The bytes of `moves` for the given elements.
double MovedBytes(std::string_view moves, const TorchElements& elements);

// The kernels of attention on a GPU of `compute_capability` (90; 0: unknown).
enum class TorchAttentionKernels : uint8_t { kFlash, kMemoryEfficient, kEager };
TorchAttentionKernels TorchAttentionKernelsOf(TorchAttention attention, int compute_capability,
                                              bool shared_heads);

// The way in which the loss is computed from the last hidden states.
enum class LossChunks : uint8_t {
  kOne,
  kEight,  // the head and the loss by eighths of the tokens
  // As many chunks as make a chunk's logits about as large as the hidden states (Liger). The
  // gradients of the hidden states and of the head are computed in the forward pass.
  kByHidden
};

struct StyleCode {
  std::string_view text;  // the assumption, for notes
  int stream_bytes = 2;   // bytes of an element between layers
  int norm_bytes = 2;     // bytes of an element of a norm's output; 4: each matmul casts it for
                          // itself
  CodePart rms_norm, layer_norm;
  CodePart head_norm;  // norm of queries or keys
  CodePart rotary;
  CodePart gated;  // i gate, j up
  CodePart gelu;
  CodePart add;  // i is the residual, j the summand
  // Concatenates the gradients of queries, keys and values if one matmul made all three.
  CodePart split;
  CodePart flash, efficient, eager;  // attention
  LossChunks chunks = LossChunks::kOne;
  bool chunks_cast_head = false;  // each chunk casts the head to 16 bit for itself
  CodePart loss;                  // i logits; or with kByHidden the hidden states
  bool padded_vocab = false;      // the program pads the vocabulary
  bool triton = false;            // Triton launches its kernels: TimeConstants::triton_launch
  bool transformers = false;      // its models are transformers':
                                  // TimeConstants::transformers_products and _launch
  bool fuses = true;              // inductor generates its own kernels for a compiled layer's parts

  const CodePart& attention(TorchAttentionKernels kernels) const {
    return kernels == TorchAttentionKernels::kFlash   ? flash
           : kernels == TorchAttentionKernels::kEager ? eager
                                                      : efficient;
  }
};

// `fp32_params`: the code runs under autocast with parameters in fp32, so tensors between layers
// are fp32. `autocast`: it runs under autocast with parameters in 16 bit.
const StyleCode& StyleCodeOf(CodeStyle style, bool fp32_params, bool autocast = false);
// The code that inductor generates: for a compiled layer; for SwiGLU, if the layer is not cut into
// graphs of its modules; for the loss.
const StyleCode& CompiledCode(bool fp32_params);
extern const CodePart kCompiledGated, kCompiledLoss;

// The tokens of a chunk with LossChunks::kByHidden.
int64_t LossChunkTokens(LossChunks chunks, int64_t tokens, int64_t hidden, int64_t vocab);

}  // namespace zeroplan
