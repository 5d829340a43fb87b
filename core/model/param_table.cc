#include "core/model/param_table.h"

#include <cmath>
#include <cstring>
#include <utility>

namespace zeroplan {
namespace {

// Appends rows of the table; `prefix` ends with a dot.
class TableBuilder {
 public:
  explicit TableBuilder(size_t count) { table_.reserve(count); }

  void Matrix(const std::string& prefix, const char* name, TensorRole role, int layer, int64_t rows,
              int64_t cols, float init_std, int64_t unpadded_rows) {
    table_.push_back({Name(prefix, name),
                      role,
                      layer,
                      {rows, cols},
                      false,
                      true,
                      InitKind::kNormal,
                      init_std,
                      unpadded_rows});
  }
  void Vector(const std::string& prefix, const char* name, TensorRole role, int layer, int64_t size,
              InitKind init) {
    table_.push_back({Name(prefix, name), role, layer, {size, 1}, true, false, init, 0.0f, size});
  }
  static std::string Name(const std::string& prefix, const char* name) {
    // One allocation a name: lowering builds this table for every choice that is planned.
    std::string out;
    out.reserve(prefix.size() + std::strlen(name));
    return out.append(prefix).append(name);
  }

  std::vector<ParamTensor> Take() { return std::move(table_); }

 private:
  std::vector<ParamTensor> table_;
};

}  // namespace

std::vector<ParamTensor> BuildParamTable(const ModelSpec& spec) {
  using Role = TensorRole;
  constexpr InitKind kZeros = InitKind::kZeros, kOnes = InitKind::kOnes;
  const int64_t c = spec.hidden, f = spec.ffn;
  const float std = spec.init_std;
  // GPT-2 scales what writes into the residual stream, so that its variance does not grow with
  // depth.
  const float residual_std = std / std::sqrt(2.0f * static_cast<float>(spec.layers));

  TableBuilder t(static_cast<size_t>(12 * spec.layers + 4));
  t.Matrix("transformer.", "wte.weight", Role::kWte, kEmbeddingLayer, spec.padded_vocab, c, std,
           spec.vocab);
  t.Matrix("transformer.", "wpe.weight", Role::kWpe, kEmbeddingLayer, spec.positions, c, std,
           spec.positions);
  for (int layer = 0; layer < spec.layers; ++layer) {
    const std::string p = "transformer.h." + std::to_string(layer) + ".";
    t.Vector(p, "ln_1.weight", Role::kLn1W, layer, c, kOnes);
    t.Vector(p, "ln_1.bias", Role::kLn1B, layer, c, kZeros);
    t.Matrix(p, "attn.c_attn.weight", Role::kQkvW, layer, c, 3 * c, std, c);
    t.Vector(p, "attn.c_attn.bias", Role::kQkvB, layer, 3 * c, kZeros);
    t.Matrix(p, "attn.c_proj.weight", Role::kProjW, layer, c, c, residual_std, c);
    t.Vector(p, "attn.c_proj.bias", Role::kProjB, layer, c, kZeros);
    t.Vector(p, "ln_2.weight", Role::kLn2W, layer, c, kOnes);
    t.Vector(p, "ln_2.bias", Role::kLn2B, layer, c, kZeros);
    t.Matrix(p, "mlp.c_fc.weight", Role::kFcW, layer, c, f, std, c);
    t.Vector(p, "mlp.c_fc.bias", Role::kFcB, layer, f, kZeros);
    t.Matrix(p, "mlp.c_proj.weight", Role::kFcProjW, layer, f, c, residual_std, f);
    t.Vector(p, "mlp.c_proj.bias", Role::kFcProjB, layer, c, kZeros);
  }
  const int last = static_cast<int>(spec.layers);
  t.Vector("transformer.", "ln_f.weight", Role::kLnfW, last, c, kOnes);
  t.Vector("transformer.", "ln_f.bias", Role::kLnfB, last, c, kZeros);
  return t.Take();
}

}  // namespace zeroplan
