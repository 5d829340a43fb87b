// The one list of a model's fields. What reads, writes, compares or hashes a ModelSpec walks it.
#pragma once

#include <concepts>
#include <limits>
#include <string_view>
#include <type_traits>

#include "core/model/model_family.h"
#include "core/model/model_spec.h"

namespace zeroplan {

struct ModelField {
  std::string_view key;    // in plans and checkpoints; a family's config.json has keys of its own
  std::string_view words;  // in messages
  bool shape;              // weights of a model that differs in it are of no use
  double max;              // the largest value that is allowed
};

// Calls visit(field, pointer to member) for each; members are std::string, const ModelFamily*,
// int64_t (from 1 on) or float (from 0 on).
template <typename Visit>
void ForEachModelField(Visit&& visit) {
  // Rows and columns reach kernels as 32-bit numbers; a table of this many layers is still small.
  constexpr double kMaxDimension = std::numeric_limits<int32_t>::max(), kMaxLayers = 16384;
  using Field = ModelField;
  visit(Field{"name", "name", false, 0}, &ModelSpec::name);
  visit(Field{"family", "family", true, 0}, &ModelSpec::family);
  visit(Field{"layers", "layers", true, kMaxLayers}, &ModelSpec::layers);
  visit(Field{"hidden", "hidden", true, kMaxDimension}, &ModelSpec::hidden);
  visit(Field{"heads", "heads", true, kMaxDimension}, &ModelSpec::heads);
  visit(Field{"ffn", "ffn", true, kMaxDimension}, &ModelSpec::ffn);
  visit(Field{"vocab", "vocabulary", true, kMaxDimension}, &ModelSpec::vocab);
  visit(Field{"padded_vocab", "padded vocabulary", true, kMaxDimension}, &ModelSpec::padded_vocab);
  visit(Field{"positions", "positions", true, kMaxDimension}, &ModelSpec::positions);
  visit(Field{"layer_norm_eps", "layer norm epsilon", true, 1}, &ModelSpec::layer_norm_eps);
  visit(Field{"init_std", "initialisation", false, 100}, &ModelSpec::init_std);
}

// Calls visit(field, value) with the values of a ModelSpec or const ModelSpec.
template <typename Spec, typename Visit>
  requires std::same_as<std::remove_const_t<Spec>, ModelSpec>
void ForEachField(Spec& spec, Visit&& visit) {
  ForEachModelField([&](const ModelField& field, auto member) { visit(field, spec.*member); });
}
// Calls visit(field, value of a, value of b).
template <typename Visit>
void ForEachField(const ModelSpec& a, const ModelSpec& b, Visit&& visit) {
  ForEachModelField(
      [&](const ModelField& field, auto member) { visit(field, a.*member, b.*member); });
}

// A value as messages print it.
template <typename T>
const T& FieldText(const T& value) {
  return value;
}
inline std::string_view FieldText(const ModelFamily* family) { return family->name(); }

}  // namespace zeroplan
