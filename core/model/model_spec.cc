#include "core/model/model_spec.h"

#include <limits>
#include <type_traits>

#include "core/base/error.h"
#include "core/model/model_fields.h"

namespace zeroplan {
namespace {

// Elements of all parameters; T is wide enough for the caller's dimensions.
template <typename T>
T CountElements(const ModelSpec& spec, bool padded) {
  ZEROPLAN_CHECK(spec.family != nullptr, "model '{}' has no family", spec.name);
  const ParamRows rows = spec.family->Params(spec);
  auto sum = [padded](const std::vector<ParamRow>& list) {
    T elements = 0;
    for (const ParamRow& row : list) {
      elements +=
          static_cast<T>(padded ? row.shape[0] : row.unpadded_rows) * static_cast<T>(row.shape[1]);
    }
    return elements;
  };
  return sum(rows.before) + static_cast<T>(spec.layers) * sum(rows.layer) + sum(rows.after);
}

}  // namespace

uint64_t ModelSpec::ParamCount() const { return CountElements<uint64_t>(*this, true); }

uint64_t ModelSpec::UnpaddedParamCount() const { return CountElements<uint64_t>(*this, false); }

void ValidateModelSpec(const ModelSpec& spec, std::string_view source) {
  ZEROPLAN_CHECK(spec.family != nullptr, "model '{}' has no family", spec.name);
  const auto key_of = [&](const ModelField& field) {
    const std::string_view key = spec.family->ConfigKey(field.key);
    return key.empty() ? field.words : key;
  };
  ForEachField(spec, [&]<typename T>(const ModelField& field, const T& value) {
    if constexpr (std::is_same_v<T, int64_t>) {
      const auto max = static_cast<int64_t>(field.max);
      const int64_t least = field.optional ? 0 : 1;
      if (value < least || value > max) {
        ThrowUsage("{}: {}: {} is not allowed; use a whole number from {} to {}", source,
                   key_of(field), value, least, max);
      }
    }
  });
  const auto key = [&](std::string_view field) { return spec.family->ConfigKey(field); };
  if (spec.head_size == 0 && spec.hidden % spec.heads != 0) {
    ThrowUsage("{}: {}: {} does not divide {} {}; use a number of heads that does", source,
               key("heads"), spec.heads, key("hidden"), spec.hidden);
  }
  if (spec.heads % spec.KvHeads() != 0) {
    ThrowUsage("{}: {}: {} does not divide {} {}; use a number of key and value heads that does",
               source, key("kv_heads"), spec.kv_heads, key("heads"), spec.heads);
  }
  if (!(spec.rope_theta > 1 && spec.rope_factor > 0 && spec.rope_attention_factor > 0)) {
    ThrowUsage(
        "{}: rotary base {}, factor {}, attention factor {} are not allowed; use a base above 1 "
        "and "
        "factors above 0",
        source, spec.rope_theta, spec.rope_factor, spec.rope_attention_factor);
  }
  if (spec.vocab > spec.padded_vocab) {
    ThrowUsage("{}: {}: {} is more than the padded vocabulary {}; pad it to {}", source,
               key("vocab"), spec.vocab, spec.padded_vocab, PadVocab(spec.vocab));
  }
  if (!(spec.layer_norm_eps > 0 && spec.layer_norm_eps < 1)) {
    ThrowUsage("{}: {}: {} is not allowed; use a number in (0, 1), such as 1e-5", source,
               key("layer_norm_eps"), spec.layer_norm_eps);
  }
  if (!(spec.init_std >= 0 && spec.init_std < 100)) {
    ThrowUsage("{}: {}: {} is not allowed; use a number in [0, 100), such as 0.02", source,
               key("init_std"), spec.init_std);
  }
  using Wide = unsigned __int128;
  if (CountElements<Wide>(spec, true) > (Wide{1} << 62)) {
    ThrowUsage("{}: {} {} x {} {}: the model has more than 2^62 parameters; use a smaller one",
               source, key("layers"), spec.layers, key("hidden"), spec.hidden);
  }
  // Rows and columns reach kernels as 32-bit numbers.
  constexpr int64_t kMaxColumns = std::numeric_limits<int32_t>::max();
  const double columns =
      (static_cast<double>(spec.heads) + 2 * static_cast<double>(spec.KvHeads())) *
      static_cast<double>(spec.HeadSize());
  if (columns > static_cast<double>(kMaxColumns)) {
    ThrowUsage(
        "{}: {} {} of {} channels make more than {} columns of query, key and value; use fewer",
        source, key("heads"), spec.heads, spec.HeadSize(), kMaxColumns);
  }
}

int64_t PadVocab(int64_t vocab) {
  constexpr int64_t kByteVocab = 256, kMultiple = 128;
  if (vocab <= kByteVocab || vocab > std::numeric_limits<int64_t>::max() - kMultiple) return vocab;
  return (vocab + kMultiple - 1) / kMultiple * kMultiple;
}

}  // namespace zeroplan
