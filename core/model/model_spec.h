// The shape of a transformer: the model itself, apart from training (config) and hardware.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/rotary_scaling.h"

namespace zeroplan {

class ModelFamily;

// The dimensions that decoder-only transformers share. core/families derives a family's tensors,
// graph and config.json from them. model_fields.h lists the fields for files, messages and
// fingerprints.
struct ModelSpec {
  std::string name;
  const ModelFamily* family = nullptr;  // not null in a model that was read, derived or preset
  int64_t layers = 0;
  int64_t hidden = 0;  // width of the residual stream, C
  int64_t heads = 0;   // query heads
  int64_t ffn = 0;     // width of the MLP
  int64_t vocab = 0;   // real tokens, V; logits at and past V are masked
  int64_t padded_vocab =
      0;                  // rows of vocabulary in memory, Vp >= V, a multiple of 128 when V > 256
  int64_t positions = 0;  // the longest sequence
  float layer_norm_eps = 1e-5f;  // RMS norms' eps too
  float init_std = 0.02f;

  // Fields that not all families have; files leave them out at their defaults.
  int64_t kv_heads = 0;   // heads of keys and values; 0: as many as heads
  int64_t head_size = 0;  // D; 0: hidden over heads
  int64_t window = 0;     // tokens that attention looks back at; 0: all
  bool tied_head = true;  // the logits' matrix is the token embedding; else a separate one
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool qk_norm = false;        // RMS norms of each query and key head
  bool qk_norm_whole = false;  // the same over all query heads together, and all key heads
  // Rotary positions, with the terms of the kernel row RotaryTable.
  RotaryScaling rope_scaling = RotaryScaling::kNone;
  int64_t rope_positions = 0;  // the context before its extension; 0: not needed
  float rope_theta = 10000;
  float rope_factor = 1, rope_low = 1, rope_high = 1, rope_attention_factor = 1;
  // Mixtures of experts: a layer's MLP is `experts` of them, of which each token is sent to
  // experts_per_token. 0: every layer has one MLP of width ffn.
  int64_t experts = 0, experts_per_token = 0;
  int64_t expert_ffn = 0;  // width of an expert; 0: ffn
  int64_t shared_ffn = 0;  // width of an MLP that all tokens pass in addition; 0: none
  // A token's weights of its experts add up to 1; else they are their softmax's values.
  bool normalized_gates = false;
  // Layers that have one MLP of width ffn in place of experts: "0,4-7".
  std::string dense_layers;
  // Coefficients of the auxiliary losses of routing (KernelId::kBalanceLoss); 0: without.
  float router_aux_loss = 0, router_z_loss = 0;
  // Patterns of published tensors' names that are not trained,
  // "model.embed_tokens.*,*.norm.weight": * matches any text, ? a character, [...] one of some.
  std::string frozen;
  // Adapters (core/model/lora.h): their rank, 0 for none; the published linears that have one,
  // "q_proj,v_proj" or "all-linear"; modules that are trained whole in addition.
  int64_t lora_rank = 0;
  float lora_alpha = 0;
  float lora_dropout = 0;  // dropout of adapters' inputs in training
  bool lora_rslora = false;
  bool lora_quantized = false;  // QLoRA: frozen matrices are in NF4 (ParamRow::quantized)
  std::string lora_targets, lora_saved;
  // Tokens whose rows of the embedding, and of a tied head, are trained in addition to the
  // adapters, in this order: "7,200-205"; and those of an untied head.
  std::string lora_tokens, lora_head_tokens;

  // Heads of keys and values; several query heads in a row share one.
  int64_t KvHeads() const { return kv_heads > 0 ? kv_heads : heads; }
  int64_t HeadSize() const { return head_size > 0 ? head_size : hidden / heads; }
  // Columns of a layer's query, key and value together.
  int64_t QkvColumns() const { return (heads + 2 * KvHeads()) * HeadSize(); }

  int64_t ExpertFfn() const { return expert_ffn > 0 ? expert_ffn : ffn; }
  // Whether a layer has experts.
  bool HasExperts(int64_t layer) const;

  // The longest sequence for which the attention window makes no difference.
  int64_t LongestSequence() const { return window > 0 ? std::min(positions, window) : positions; }

  // Parameters with the padded vocabulary, a tied head counted once (what memory holds).
  uint64_t ParamCount() const;
  // The parameters among them that are not frozen.
  uint64_t TrainedParamCount() const;
  // The same with the real vocabulary (what exports and papers count).
  uint64_t UnpaddedParamCount() const;
  // The part of that which a token uses: of its experts alone (ParamRow::token_share). All of it
  // in a model without experts.
  uint64_t ActiveParamCount() const;
  // "8.03B parameters"; of a mixture of experts "30.5B parameters, 3.35B active".
  std::string CountsText() const;
};

// The layers of dense_layers, in order. Throws Error(kUsage) starting with `source`, or with the
// model's name, unless they are layers of the model, each once.
std::vector<int64_t> DenseLayers(const ModelSpec& spec, std::string_view source = {});
// The number of layers that have experts.
int64_t ExpertLayers(const ModelSpec& spec);

// Throws Error(kUsage) if a dimension is non-positive or too large, heads do not divide hidden
// (without a head size), kv_heads do not divide heads, vocab is more than padded_vocab, or the
// parameter count does not fit 2^62. Messages name `source` and the family's own key ("n_layer").
void ValidateModelSpec(const ModelSpec& spec, std::string_view source);

// Throws Error(kUsage) starting with `source` for a pattern of spec.frozen that matches no tensor,
// for patterns that match a part of a tensor here or of tensors that are trained together (a
// linear's weight and bias), and if nothing is left to train.
void CheckFrozen(const ModelSpec& spec, std::string_view source);

// 50257 -> 50304: the next multiple of 128, but byte vocabularies (<= 256) stay as they are.
int64_t PadVocab(int64_t vocab);

// ---- floating-point operations ----

// Operations of training one token, counted in the two ways of published figures, from the
// parameter table. A multiply-add is 2. Neither count includes norms, GELU, softmax and the
// optimizer.

// Elements of the matrices that multiply a token (ParamUse, weighted by the share of tokens that
// use each): those of every layer, and the head's (hidden x vocab). Excludes biases and norms and
// the embedding lookup.
double MatmulWeights(const ModelSpec& spec);

// The operations that the mathematics of forward and backward needs, the strict numerator of MFU:
//   6 * MatmulWeights + 6 * layers * heads * head size * seq_len
// and 2 less for each weight that is not trained, because nothing needs its gradient; layers below
// all trained parameters have the forward pass alone. Attention is causal: a token attends to
// seq_len/2 others on average, in 2 matmuls of 2 * heads * head size forward and 4 backward, hence
// 6 of them and seq_len a layer (heads times head size is the width in most models). Recompute and
// masked or padded work do not count; the head has the real vocabulary, V, not its padding.
double TrainFlopsPerToken(const ModelSpec& spec, int64_t seq_len);

// Strict model FLOP utilisation: TrainFlopsPerToken (without recompute) per second over the dense
// peak of `gpus` GPUs in the compute dtype, FLOP/s each. Source: PaLM, Chowdhery et al. 2022,
// appendix B, with causal attention counted half.
double StrictMfu(const ModelSpec& spec, int64_t seq_len, double tokens_per_second, int gpus,
                 double dense_peak);

// The operations that an implementation without fused attention executes, as papers report "TFLOP/s
// per GPU": the whole square of scores, the padded vocabulary, and with `full_recompute` every
// layer's forward twice. For GPT-2's layers with ffn = 4*hidden a token needs, with s = seq_len, l
// layers, h hidden, V padded vocabulary,
//   96 l h^2 (1 + s/(6h) + V/(16 l h))   with full recompute
//   72 l h^2 (1 + s/(6h) + V/(12 l h))   without
// (Narayanan et al. 2021, arXiv 2104.04473, equation 3 and the appendix that derives it: the head
// is never recomputed, so its 6hV stay.) Other layers count their own weights.
double HardwareFlopsPerToken(const ModelSpec& spec, int64_t seq_len, bool full_recompute);

}  // namespace zeroplan
