// What the modelling code that a PyTorch program trains makes, keeps for backward and launches,
// part by part of a layer: one row a style, data alone. Counted from the real modules' autograd
// graphs (benchmarks/peers/count_code.py; a test holds the rows to
// tests/data/runtimes/code_counts.jsonl).
#pragma once

#include <cstdint>
#include <string_view>

#include "planner/torch_recipe.h"

namespace zeroplan {

// A part of a layer. Its words, in the order in which it does so:
//
//   a4e   makes tensor a, 4 bytes for each element e
//   -a    frees it; -au: where there are elements u
//   =i    what it was given (i, j, l) is kept for backward
//   o:i   its result is what it was given, overwritten
//   W     the gradients of its parameters are made
//
// Forward it is given i, j, l and makes o, O; what is left beside these is kept for backward. There
// it is given g, G, L, gradients of its results, and makes d, D, M, those of what it was given.
// Elements: see TorchElements.
struct CodePart {
  std::string_view forward, backward;
  // Bytes that its kernels read and write, "20e 20k": 20 for each element e and for each k.
  std::string_view forward_moves, backward_moves;
  int forward_launches = 0, backward_launches = 0;

  bool Keeps(char given) const;
  // Of an element of its result; 2 where it makes none.
  int result_bytes() const;
};

// How many of each element there are.
struct TorchElements {
  int64_t e = 0;  // of the part's first input
  int64_t k = 0;  // tokens x columns of keys
  int64_t r = 0;  // tokens x columns of queries and keys
  int64_t p = 0;  // tokens x columns of queries, keys and values
  int64_t t = 0;  // tokens
  int64_t n = 0;  // batch x heads x sequence
  int64_t s = 0;  // batch x heads x sequence x sequence: scores
  int64_t u = 0;  // as many as of queries where heads of keys are shared, else none
  int64_t q = 0;  // tokens x columns of queries
  int64_t m = 0;  // batch x sequence x sequence: a mask
  // Of experts: rows (tokens x experts a token) x hidden, rows x their width, rows; tokens x
  // experts.
  int64_t h = 0, f = 0, c = 0, x = 0;
  // Of a linear with an adapter: tokens x columns of its output, and x rank; its weight's elements,
  // and blocks of 64 of these.
  int64_t y = 0, b = 0, w = 0, z = 0;

  int64_t operator[](char element) const;
};

// The part's elements; `e` of its first input.
TorchElements ElementsOf(int64_t batch, int64_t seq, int64_t heads, int64_t q_columns,
                         int64_t kv_columns, int64_t e);

struct CodeWord {
  enum Kind : uint8_t { kMakes, kFrees, kKeeps, kRenames, kParamGradients } kind = kMakes;
  char slot = 0;
  char element = 0;  // of kMakes; of kFrees the one that there have to be, or none
  char from = 0;     // of kRenames
  int bytes = 0;     // of kMakes
};
// The next word of `words`, which is cut off them. REQUIRES: words are left.
CodeWord NextWord(std::string_view* words);
// Sum of `moves`, for as many elements.
double MovedBytes(std::string_view moves, const TorchElements& elements);

// Which kernels attention has on a GPU of `compute_capability` (90; 0: not known).
enum class AttentionKernels : uint8_t { kFlash, kMemoryEfficient, kEager };
AttentionKernels AttentionKernelsOf(TorchAttention attention, int compute_capability,
                                    bool shared_heads);

// How the loss is made of the last hidden states.
enum class LossChunks : uint8_t {
  kOne,
  kEight,  // the head and the loss by eighths of the tokens
  // So many that a chunk's logits are about as large as the hidden states (Liger), with the
  // gradients of these and of the head made in the forward pass.
  kByHidden
};

struct StyleCode {
  std::string_view text;  // what it assumes, in notes
  int stream_bytes = 2;   // of an element between layers
  int norm_bytes = 2;     // of one that a norm makes; 4: products cast it, each for itself
  CodePart rms_norm, layer_norm;
  CodePart head_norm;  // of queries or keys
  CodePart rotary;
  CodePart gated;  // i gate, j up
  CodePart gelu;
  CodePart add;  // i the residual, j what is added
  // Gradients of queries, keys and values put together where one product made all.
  CodePart split;
  CodePart flash, efficient, eager;  // attention
  LossChunks chunks = LossChunks::kOne;
  bool chunks_cast_head = false;  // each to 16 bit, for itself
  CodePart loss;                  // i logits; or with kByHidden the hidden states
  bool padded_vocab = false;      // the program pads the vocabulary
  bool triton = false;            // its kernels: TimeConstants::triton_launch
  bool transformers = false;      // its models: TimeConstants::transformers_products and _launch
  bool fuses = true;              // inductor makes its own kernels of a compiled layer's parts

  const CodePart& attention(AttentionKernels kernels) const {
    return kernels == AttentionKernels::kFlash   ? flash
           : kernels == AttentionKernels::kEager ? eager
                                                 : efficient;
  }
};

// `fp32_params`: under autocast with parameters in fp32, so that what is between layers is fp32.
// `autocast`: with parameters in 16 bit.
const StyleCode& StyleCodeOf(CodeStyle style, bool fp32_params, bool autocast = false);
// What inductor leaves of a compiled layer, of SwiGLU where nothing cuts the layer into graphs of
// its modules, and of the loss.
const StyleCode& CompiledCode(bool fp32_params);
extern const CodePart kCompiledGated, kCompiledLoss;

// LossChunks::kByHidden: tokens of a chunk.
int64_t LossChunkTokens(LossChunks chunks, int64_t tokens, int64_t hidden, int64_t vocab);

}  // namespace zeroplan
