#include "core/model/param_table.h"

#include <string_view>
#include <utility>

#include "core/base/error.h"
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

std::vector<ParamTensor> BuildParamTable(const ModelSpec& spec) {
  ZEROPLAN_CHECK(spec.family != nullptr, "model '{}' has no family", spec.name);
  const ParamRows rows = spec.family->Params(spec);
  std::vector<ParamTensor> table;
  table.reserve(rows.before.size() + rows.after.size() +
                rows.layer.size() * static_cast<size_t>(spec.layers));
  auto add = [&](const std::vector<ParamRow>& list, int layer, std::string_view prefix) {
    for (const ParamRow& row : list) table.push_back({row, Name(prefix, row.name), layer});
  };
  add(rows.before, kEmbeddingLayer, "");
  const auto layers = static_cast<int>(spec.layers);
  for (int layer = 0; layer < layers; ++layer) {
    add(rows.layer, layer, rows.layer_prefix + std::to_string(layer) + ".");
  }
  add(rows.after, layers, "");
  return table;
}

std::vector<PublishedTensor> PublishedTensors(const ParamTensor& tensor) {
  if (tensor.parts.empty()) return {{tensor.name, 0, tensor.unpadded_rows}};
  // What precedes the row's own name is the layer's prefix.
  const std::string_view prefix =
      std::string_view(tensor.name)
          .substr(0, tensor.name.size() - std::string_view(tensor.ParamRow::name).size());
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
