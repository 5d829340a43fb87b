#include "core/model/model_spec.h"

#include <limits>

#include "core/base/error.h"

namespace zeroplan {
namespace {

// Rows and columns reach kernels as 32-bit numbers; a table of this many layers is still small.
constexpr int64_t kMaxDimension = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxLayers = 16384;

// Everything but the token embedding. T is wide enough for the caller's dimensions.
template <typename T>
T ParamsWithoutVocab(const ModelSpec& spec) {
  const T c = static_cast<T>(spec.hidden), f = static_cast<T>(spec.ffn);
  const T norms = 2 * (2 * c);
  const T attention = (3 * c * c + 3 * c) + (c * c + c);
  const T mlp = (c * f + f) + (f * c + c);
  const T final_norm = 2 * c;
  return static_cast<T>(spec.layers) * (norms + attention + mlp) +
         static_cast<T>(spec.positions) * c + final_norm;
}

void CheckDimension(int64_t value, int64_t max, const char* key, std::string_view source) {
  if (value < 1 || value > max) {
    ThrowUsage("{}: {}: {} is not allowed; use a whole number from 1 to {}", source, key, value,
               max);
  }
}

}  // namespace

uint64_t ModelSpec::ParamCount() const {
  return ParamsWithoutVocab<uint64_t>(*this) +
         static_cast<uint64_t>(padded_vocab) * static_cast<uint64_t>(hidden);
}

uint64_t ModelSpec::UnpaddedParamCount() const {
  return ParamsWithoutVocab<uint64_t>(*this) +
         static_cast<uint64_t>(vocab) * static_cast<uint64_t>(hidden);
}

void ValidateModelSpec(const ModelSpec& spec, std::string_view source) {
  CheckDimension(spec.layers, kMaxLayers, "n_layer", source);
  CheckDimension(spec.hidden, kMaxDimension, "n_embd", source);
  CheckDimension(spec.heads, kMaxDimension, "n_head", source);
  CheckDimension(spec.ffn, kMaxDimension, "n_inner", source);
  CheckDimension(spec.vocab, kMaxDimension, "vocab_size", source);
  CheckDimension(spec.padded_vocab, kMaxDimension, "padded vocabulary", source);
  CheckDimension(spec.positions, kMaxDimension, "n_positions", source);
  if (spec.hidden % spec.heads != 0) {
    ThrowUsage("{}: n_head: {} does not divide n_embd {}; use a number of heads that does", source,
               spec.heads, spec.hidden);
  }
  if (spec.vocab > spec.padded_vocab) {
    ThrowUsage("{}: vocab_size: {} is more than the padded vocabulary {}; pad it to {}", source,
               spec.vocab, spec.padded_vocab, PadVocab(spec.vocab));
  }
  if (!(spec.layer_norm_eps > 0 && spec.layer_norm_eps < 1)) {
    ThrowUsage("{}: layer_norm_epsilon: {} is not allowed; use a number in (0, 1), such as 1e-5",
               source, spec.layer_norm_eps);
  }
  if (!(spec.init_std >= 0 && spec.init_std < 100)) {
    ThrowUsage("{}: initializer_range: {} is not allowed; use a number in [0, 100), such as 0.02",
               source, spec.init_std);
  }
  using Wide = unsigned __int128;
  const Wide total = ParamsWithoutVocab<Wide>(spec) +
                     static_cast<Wide>(spec.padded_vocab) * static_cast<Wide>(spec.hidden);
  if (total > (Wide{1} << 62)) {
    ThrowUsage(
        "{}: n_layer {} x n_embd {}: the model has more than 2^62 parameters; use a smaller one",
        source, spec.layers, spec.hidden);
  }
}

int64_t PadVocab(int64_t vocab) {
  constexpr int64_t kByteVocab = 256, kMultiple = 128;
  if (vocab <= kByteVocab || vocab > std::numeric_limits<int64_t>::max() - kMultiple) return vocab;
  return (vocab + kMultiple - 1) / kMultiple * kMultiple;
}

}  // namespace zeroplan
