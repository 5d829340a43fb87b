#include "core/model/model_spec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/model/lora.h"
#include "core/model/model_family.h"
#include "core/model/model_fields.h"

namespace zeroplan {

namespace {

// Elements of all parameters; T is wide enough for the caller's dimensions.
template <typename T>
T CountElements(const ModelSpec& spec, bool padded) {
  const ParamRows rows = RowsOf(spec);
  auto sum = [padded](const std::vector<ParamRow>& list) {
    T elements = 0;
    for (const ParamRow& row : list) {
      elements +=
          static_cast<T>(padded ? row.shape[0] : row.unpadded_rows) * static_cast<T>(row.shape[1]);
    }
    return elements;
  };
  T elements = sum(rows.before) + static_cast<T>(spec.layers) * sum(rows.layer) + sum(rows.after);
  for (const std::vector<ParamRow>& own : rows.own) elements += sum(own);
  return elements;
}

}  // namespace

uint64_t ModelSpec::ParamCount() const { return CountElements<uint64_t>(*this, true); }

uint64_t ModelSpec::TrainedParamCount() const {
  if (frozen.empty() && !HasAdapters(*this)) return ParamCount();
  uint64_t count = 0;
  for (const ParamTensor& tensor : BuildParamTable(*this)) {
    if (tensor.trainable) count += tensor.elements();
  }
  return count;
}

uint64_t ModelSpec::UnpaddedParamCount() const { return CountElements<uint64_t>(*this, false); }

uint64_t ModelSpec::ActiveParamCount() const {
  double count = 0;
  for (const ParamTensor& tensor : BuildParamTable(*this)) {
    count += tensor.token_share * static_cast<double>(tensor.unpadded_rows) *
             static_cast<double>(tensor.shape[1]);
  }
  return static_cast<uint64_t>(std::llround(count));
}

std::string ModelSpec::CountsText() const {
  const uint64_t active = ActiveParamCount();
  const std::string all = FormatCount(ParamCount()) + " parameters";
  return active < UnpaddedParamCount() ? all + fmt::format(", {} active", FormatCount(active))
                                       : all;
}

std::vector<int64_t> DenseLayers(const ModelSpec& spec, std::string_view source) {
  return ReadTokens(spec.dense_layers, spec.layers, source.empty() ? spec.name : source, "layer");
}

bool ModelSpec::HasExperts(int64_t layer) const {
  if (experts == 0) return false;
  const std::vector<int64_t> dense = DenseLayers(*this);
  return std::find(dense.begin(), dense.end(), layer) == dense.end();
}

int64_t ExpertLayers(const ModelSpec& spec) {
  if (spec.experts == 0) return 0;
  return spec.layers - static_cast<int64_t>(DenseLayers(spec).size());
}

namespace {

void CheckExperts(const ModelSpec& spec, std::string_view source) {
  const auto key = [&](std::string_view field) { return spec.family->ConfigKey(field); };
  if (spec.experts == 0) return;
  if (spec.experts_per_token < 1 || spec.experts_per_token > spec.experts) {
    ThrowUsage("{}: {}: {} is not allowed; use 1 to {}, the number of experts", source,
               key("experts_per_token"), spec.experts_per_token, spec.experts);
  }
  if (DenseLayers(spec, source).size() == static_cast<size_t>(spec.layers)) {
    ThrowUsage("{}: {}: no layer is left that has experts; name fewer layers", source,
               key("dense_layers"));
  }
  // Rows of all experts' matrices reach kernels as 32-bit numbers.
  const double rows =
      static_cast<double>(spec.experts) *
      std::max(2 * static_cast<double>(spec.ExpertFfn()), static_cast<double>(spec.hidden));
  if (rows > std::numeric_limits<int32_t>::max()) {
    ThrowUsage("{}: {}: {} experts of width {} are too many; use fewer or narrower ones", source,
               key("num_experts"), spec.experts, spec.ExpertFfn());
  }
  CheckAdapters(spec, source);  // throws for any, before rows are counted
}

}  // namespace

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
  CheckExperts(spec, source);
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
  CheckFrozen(spec, source);
  CheckAdapters(spec, source);
}

int64_t PadVocab(int64_t vocab) {
  constexpr int64_t kByteVocab = 256, kMultiple = 128;
  if (vocab <= kByteVocab || vocab > std::numeric_limits<int64_t>::max() - kMultiple) return vocab;
  return (vocab + kMultiple - 1) / kMultiple * kMultiple;
}

namespace {

// Elements that a token is multiplied with on average: of all layers, of the head with its real
// vocabulary, and of the head as memory holds it; and what of all but the last is not trained, and
// of that what lies in layers below all that is, which have no backward pass.
struct ProductElements {
  double layers = 0, head = 0, padded_head = 0;
  double frozen = 0, idle = 0;
  int64_t idle_layers = 0;
};

ProductElements CountProducts(const ModelSpec& spec) {
  const ParamRows rows = RowsOf(spec);
  ProductElements count;
  auto add = [&count](const std::vector<ParamRow>& list, double times) {
    for (const ParamRow& row : list) {
      if (row.use == ParamUse::kOther) continue;
      const double uses = times * row.token_share;
      const double real =
          uses * static_cast<double>(row.unpadded_rows) * static_cast<double>(row.shape[1]);
      (row.use == ParamUse::kProduct ? count.layers : count.head) += real;
      if (row.use == ParamUse::kHead) {
        count.padded_head += uses * static_cast<double>(row.elements());
      }
      if (!row.trainable) count.frozen += real;
    }
  };
  add(rows.before, 1);
  add(rows.layer, static_cast<double>(spec.layers));
  for (const std::vector<ParamRow>& own : rows.own) add(own, 1);
  add(rows.after, 1);
  if (!spec.frozen.empty() || !rows.own.empty()) {  // which differ from layer to layer
    count.frozen = 0;
    const std::vector<ParamTensor> table = BuildParamTable(spec);
    const auto lowest = std::find_if(table.begin(), table.end(),
                                     [](const ParamTensor& tensor) { return tensor.trainable; });
    if (lowest != table.end()) {
      count.idle_layers = std::clamp<int64_t>(lowest->layer, 0, spec.layers);
    }
    for (const ParamTensor& tensor : table) {
      if (tensor.trainable || tensor.use == ParamUse::kOther) continue;
      const double real = tensor.token_share * static_cast<double>(tensor.unpadded_rows) *
                          static_cast<double>(tensor.shape[1]);
      count.frozen += real;
      if (tensor.layer >= 0 && tensor.layer < count.idle_layers) count.idle += real;
    }
  }
  return count;
}

// Layers * heads * head size * seq_len: a product of scores or of values takes 2 of these a token,
// unmasked. Query heads that share keys and values take no less.
double AttentionVolume(const ModelSpec& spec, int64_t layers, int64_t seq_len) {
  return static_cast<double>(layers) * static_cast<double>(spec.heads) *
         static_cast<double>(spec.HeadSize()) * static_cast<double>(seq_len);
}

}  // namespace

double MatmulWeights(const ModelSpec& spec) {
  const ProductElements count = CountProducts(spec);
  return count.layers + count.head;
}

double TrainFlopsPerToken(const ModelSpec& spec, int64_t seq_len) {
  const ProductElements count = CountProducts(spec);
  return 6 * (count.layers + count.head) - 2 * count.frozen - 2 * count.idle +
         6 * AttentionVolume(spec, spec.layers, seq_len) -
         4 * AttentionVolume(spec, count.idle_layers, seq_len);
}

double StrictMfu(const ModelSpec& spec, int64_t seq_len, double tokens_per_second, int gpus,
                 double dense_peak) {
  return TrainFlopsPerToken(spec, seq_len) * tokens_per_second / (gpus * dense_peak);
}

double HardwareFlopsPerToken(const ModelSpec& spec, int64_t seq_len, bool full_recompute) {
  const ProductElements count = CountProducts(spec);
  const double forward = 2 * count.layers + 4 * AttentionVolume(spec, spec.layers, seq_len);
  const double idle = 2 * count.idle + 4 * AttentionVolume(spec, count.idle_layers, seq_len);
  // Backward takes two products for each of the forward's.
  const double passes = full_recompute ? 4 : 3;
  return passes * forward - (passes - 1) * idle + 6 * count.padded_head -
         2 * (count.frozen - count.idle);
}

}  // namespace zeroplan
