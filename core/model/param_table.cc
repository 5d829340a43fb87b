#include "core/model/param_table.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "core/model/lora.h"
#include "core/model/model_family.h"

namespace zeroplan {
namespace {

// One allocation a name: lowering builds this table for every choice that is planned.
std::string Name(std::string_view prefix, std::string_view name) {
  std::string out;
  out.reserve(prefix.size() + name.size());
  return out.append(prefix).append(name);
}

}  // namespace

ParamRow VectorRow(int id, const char* name, int64_t size, InitKind init) {
  return {.id = id,
          .name = name,
          .shape = {size, 1},
          .is_vector = true,
          .init = init,
          .unpadded_rows = size};
}

ParamRow MatrixRow(int id, const char* name, int64_t rows, int64_t cols, float init_std) {
  return {.id = id,
          .name = name,
          .shape = {rows, cols},
          .decay = true,
          .init_std = init_std,
          .unpadded_rows = rows,
          .use = ParamUse::kProduct};
}

namespace {

std::vector<std::string> Patterns(const std::string& text) {
  const std::vector<std::string_view> parts = SplitList(text);
  return {parts.begin(), parts.end()};
}

bool Matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

// How many of the published tensors that it is made of are frozen.
size_t CountFrozen(const ParamTensor& tensor, const std::vector<std::string>& patterns) {
  const std::vector<PublishedTensor> published = PublishedTensors(tensor);
  return static_cast<size_t>(
      std::count_if(published.begin(), published.end(), [&](const PublishedTensor& one) {
        return std::any_of(patterns.begin(), patterns.end(),
                           [&](const std::string& p) { return Matches(p, one.name); });
      }));
}

std::vector<std::string> NamesOf(const std::vector<PublishedTensor>& parts) {
  std::vector<std::string> names;
  names.reserve(parts.size());
  for (const PublishedTensor& part : parts) names.push_back(part.name);
  return names;
}

}  // namespace

std::string_view ModuleOf(std::string_view tensor) { return tensor.substr(0, tensor.rfind('.')); }

void CheckTrainedTogether(const std::vector<ParamTensor>& table, std::string_view source,
                          std::string_view verb) {
  for (size_t i = 0; i < table.size(); ++i) {
    const ParamTensor& tensor = table[i];
    if (!tensor.tokens.empty()) continue;  // kernels of their own
    for (size_t j = i + 1; j < table.size() && table[j].layer == tensor.layer; ++j) {
      const ParamTensor& other = table[j];
      const bool together =
          tensor.layer == kEmbeddingLayer || ModuleOf(other.name) == ModuleOf(tensor.name);
      if (!together || !other.tokens.empty() || other.trainable == tensor.trainable) continue;
      ThrowUsage("{}: {} and {} are trained together; {} both or none", source, tensor.name,
                 other.name, verb);
    }
  }
}

void CheckFrozen(const ModelSpec& spec, std::string_view source) {
  if (spec.frozen.empty()) return;
  const std::vector<std::string> patterns = Patterns(spec.frozen);
  const std::vector<ParamTensor> table = BuildParamTable(spec);
  for (const std::string& pattern : patterns) {
    const bool found = std::any_of(table.begin(), table.end(), [&](const ParamTensor& tensor) {
      return CountFrozen(tensor, {pattern}) > 0;
    });
    if (!found) {
      ThrowUsage(
          "{}: no tensor is called {}; tensors are called as in the published weights, such "
          "as {} and {}",
          source, pattern, PublishedTensors(table.front()).front().name,
          PublishedTensors(table[table.size() / 2]).front().name);
    }
  }
  for (const ParamTensor& tensor : table) {
    const std::vector<PublishedTensor> parts = PublishedTensors(tensor);
    const size_t frozen = CountFrozen(tensor, patterns);
    if (frozen != 0 && frozen != parts.size()) {
      if (tensor.expert) {
        ThrowUsage(
            "{}: {} of the {} matrices of {} would be frozen, which are one tensor here; "
            "freeze all or none",
            source, frozen, parts.size(), tensor.name);
      }
      ThrowUsage("{}: {} are one matrix here, and {} of them would be frozen; freeze all or none",
                 source, fmt::join(NamesOf(parts), ", "), frozen);
    }
  }
  if (spec.family->planned() == nullptr) CheckTrainedTogether(table, source, "freeze");
  if (std::none_of(table.begin(), table.end(), [](const ParamTensor& t) { return t.trainable; })) {
    ThrowUsage("{}: {} leaves nothing to train", source, spec.frozen);
  }
}

ParamRows RowsOf(const ModelSpec& spec) {
  ZEROPLAN_CHECK(spec.family != nullptr, "model '{}' has no family", spec.name);
  ParamRows rows = spec.family->Params(spec);
  if (HasAdapters(spec)) AddAdapters(spec, rows);
  return rows;
}

std::vector<ParamTensor> BuildParamTable(const ModelSpec& spec) {
  const ParamRows rows = RowsOf(spec);
  std::vector<ParamTensor> table;
  table.reserve(rows.before.size() + rows.after.size() +
                rows.layer.size() * static_cast<size_t>(spec.layers));
  auto add = [&](const std::vector<ParamRow>& list, int layer, std::string_view prefix) {
    for (const ParamRow& row : list) table.push_back({row, Name(prefix, row.name), layer});
  };
  add(rows.before, kEmbeddingLayer, "");
  const auto layers = static_cast<int>(spec.layers);
  for (int layer = 0; layer < layers; ++layer) {
    const std::string prefix = rows.layer_prefix + std::to_string(layer) + ".";
    add(rows.layer, layer, prefix);
    if (!rows.own.empty()) add(rows.own[static_cast<size_t>(layer)], layer, prefix);
  }
  add(rows.after, layers, "");
  if (!spec.frozen.empty()) {
    const std::vector<std::string> patterns = Patterns(spec.frozen);
    for (ParamTensor& tensor : table) {
      if (CountFrozen(tensor, patterns) > 0) tensor.trainable = false;
    }
  }
  return table;
}

namespace {

// The part of the name before the row's own.
std::string_view LayerPrefix(const ParamTensor& tensor) {
  const size_t own = std::string_view(tensor.ParamRow::name).size();
  return std::string_view(tensor.name).substr(0, tensor.name.size() - own);
}

}  // namespace

std::string NameInLayer(const ParamTensor& tensor, std::string_view name) {
  return Name(LayerPrefix(tensor), name);
}

std::vector<PublishedTensor> PublishedTensors(const ParamTensor& tensor) {
  if (tensor.parts.empty()) return {{tensor.name, 0, tensor.unpadded_rows}};
  const std::string_view prefix = LayerPrefix(tensor);
  std::vector<PublishedTensor> out;
  int64_t row = 0;
  for (const ParamPart& part : tensor.parts) {
    out.push_back({Name(prefix, part.name), row, row + part.rows});
    row += part.rows;
  }
  ZEROPLAN_CHECK(row == tensor.shape[0], "{}: its parts have {} rows, it has {}", tensor.name, row,
                 tensor.shape[0]);
  return out;
}

}  // namespace zeroplan
