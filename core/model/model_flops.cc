#include "core/model/model_flops.h"

namespace zeroplan {
namespace {

// qkv (C x 3C), proj (C x C), fc (C x F) and fc_proj (F x C) of all layers.
double LayerMatmulWeights(const ModelSpec& spec) {
  const auto hidden = static_cast<double>(spec.hidden), ffn = static_cast<double>(spec.ffn);
  return static_cast<double>(spec.layers) * (4 * hidden * hidden + 2 * hidden * ffn);
}

double HeadWeights(const ModelSpec& spec, int64_t vocab) {
  return static_cast<double>(spec.hidden) * static_cast<double>(vocab);
}

// Layers * hidden * seq_len: a product of scores or of values takes 2 of these a token, unmasked.
double AttentionVolume(const ModelSpec& spec, int64_t seq_len) {
  return static_cast<double>(spec.layers) * static_cast<double>(spec.hidden) *
         static_cast<double>(seq_len);
}

}  // namespace

double MatmulWeights(const ModelSpec& spec) {
  return LayerMatmulWeights(spec) + HeadWeights(spec, spec.vocab);
}

double TrainFlopsPerToken(const ModelSpec& spec, int64_t seq_len) {
  return 6 * MatmulWeights(spec) + 6 * AttentionVolume(spec, seq_len);
}

double StrictMfu(const ModelSpec& spec, int64_t seq_len, double tokens_per_second, int gpus,
                 double dense_peak) {
  return TrainFlopsPerToken(spec, seq_len) * tokens_per_second / (gpus * dense_peak);
}

double HardwareFlopsPerToken(const ModelSpec& spec, int64_t seq_len, bool full_recompute) {
  const double forward = 2 * LayerMatmulWeights(spec) + 4 * AttentionVolume(spec, seq_len);
  // Backward takes two products for each of the forward's.
  const double passes = full_recompute ? 4 : 3;
  return passes * forward + 6 * HeadWeights(spec, spec.padded_vocab);
}

}  // namespace zeroplan
