// Floating-point operations of training one token, counted in the two ways that published figures
// use, from the parameter table. A multiply-add is 2. Norms, GELU, softmax and the optimizer are
// left out of both.
#pragma once

#include <cstdint>

#include "core/model/model_spec.h"

namespace zeroplan {

// Elements of the matrices that a token is multiplied with (ParamUse, by the share of tokens that
// use each): those of every layer, and the head's (hidden x vocab). Neither biases and norms nor
// looking up an embedding.
double MatmulWeights(const ModelSpec& spec);

// What the mathematics of forward and backward asks for, the strict numerator of MFU:
//   6 * MatmulWeights + 6 * layers * heads * head size * seq_len
// and 2 less for each weight that is not trained, whose gradient nobody needs.
// Attention is causal: a token meets seq_len/2 others on average, by 2 products of 2 * heads *
// head size forward and 4 backward, hence 6 of these and seq_len a layer (heads times head size is
// the width in most models). Recompute and masked or padded work do not count;
// the head has the real vocabulary, V, not its padding.
double TrainFlopsPerToken(const ModelSpec& spec, int64_t seq_len);

// Strict model FLOP utilisation: TrainFlopsPerToken (recompute is not in it) per second over the
// dense peak of `gpus` GPUs in the compute dtype, FLOP/s each. Source: PaLM, Chowdhery et al. 2022,
// appendix B, with causal attention counted half.
double StrictMfu(const ModelSpec& spec, int64_t seq_len, double tokens_per_second, int gpus,
                 double dense_peak);

// What an implementation without fused attention carries out, as papers report "TFLOP/s per GPU":
// the whole square of scores, the padded vocabulary, and with `full_recompute` every layer's
// forward twice. For GPT-2's layers with ffn = 4*hidden a token takes, with s = seq_len, l layers,
// h hidden, V padded vocabulary,
//   96 l h^2 (1 + s/(6h) + V/(16 l h))   with full recompute
//   72 l h^2 (1 + s/(6h) + V/(12 l h))   without
// (Narayanan et al. 2021, arXiv 2104.04473, equation 3 and the appendix that derives it: the head
// is never recomputed, so its 6hV stay.) Other layers take their own weights.
double HardwareFlopsPerToken(const ModelSpec& spec, int64_t seq_len, bool full_recompute);

}  // namespace zeroplan
