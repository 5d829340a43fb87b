#include "core/model/model_flops.h"

#include "core/base/error.h"
#include "core/model/model_family.h"

namespace zeroplan {
namespace {

// Elements that a token is multiplied with on average: of all layers, of the head with its real
// vocabulary, and of the head as memory holds it; and what of all but the last is not trained.
struct ProductElements {
  double layers = 0, head = 0, padded_head = 0;
  double frozen = 0;
};

ProductElements CountProducts(const ModelSpec& spec) {
  ZEROPLAN_CHECK(spec.family != nullptr, "model '{}' has no family", spec.name);
  const ParamRows rows = spec.family->Params(spec);
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
  add(rows.after, 1);
  return count;
}

// Layers * heads * head size * seq_len: a product of scores or of values takes 2 of these a token,
// unmasked. Query heads that share keys and values take no less.
double AttentionVolume(const ModelSpec& spec, int64_t seq_len) {
  return static_cast<double>(spec.layers) * static_cast<double>(spec.heads) *
         static_cast<double>(spec.HeadSize()) * static_cast<double>(seq_len);
}

}  // namespace

double MatmulWeights(const ModelSpec& spec) {
  const ProductElements count = CountProducts(spec);
  return count.layers + count.head;
}

double TrainFlopsPerToken(const ModelSpec& spec, int64_t seq_len) {
  const ProductElements count = CountProducts(spec);
  return 6 * (count.layers + count.head) - 2 * count.frozen + 6 * AttentionVolume(spec, seq_len);
}

double StrictMfu(const ModelSpec& spec, int64_t seq_len, double tokens_per_second, int gpus,
                 double dense_peak) {
  return TrainFlopsPerToken(spec, seq_len) * tokens_per_second / (gpus * dense_peak);
}

double HardwareFlopsPerToken(const ModelSpec& spec, int64_t seq_len, bool full_recompute) {
  const ProductElements count = CountProducts(spec);
  const double forward = 2 * count.layers + 4 * AttentionVolume(spec, seq_len);
  // Backward takes two products for each of the forward's.
  const double passes = full_recompute ? 4 : 3;
  return passes * forward + 6 * count.padded_head - 2 * count.frozen;
}

}  // namespace zeroplan
