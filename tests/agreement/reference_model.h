// GPT-2 and AdamW in double precision as plain loops, one sequence at a time: what the engine is
// measured against. It shares nothing with the executor but the order of the parameter table.
//
// Legend: T positions of a sequence, C hidden, F ffn, V vocabulary without padding. Matrices are
// row-major, weights [in, out].
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numbers>
#include <utility>
#include <vector>

#include "core/model/param_table.h"
#include "core/settings/zero_config.h"

namespace zeroplan::testing {

using Values = std::vector<double>;
using Tensors = std::vector<Values>;  // by index into the parameter table

struct Sequence {
  std::vector<int32_t> inputs, targets;
};

// How the layers' linears round what they multiply, a matrix of `cols` columns: along its rows or,
// `down`, along its columns. Derivatives are those of no rounding.
enum class Rounded { kInput, kWeight, kGradient };
using Round = std::function<Values(const Values& matrix, size_t cols, Rounded what, bool down)>;

class ReferenceModel {
 public:
  explicit ReferenceModel(const ModelSpec& spec, Round round = nullptr)
      : spec_(spec), C_(spec.hidden), F_(spec.ffn), round_(std::move(round)) {}

  // Mean loss over all tokens whose target is not negative; where `grads` is given, also the
  // gradients of that mean (set, not added to). Padded rows of wte get none.
  double Loss(const Tensors& weights, const std::vector<Sequence>& sequences,
              Tensors* grads = nullptr) const {
    if (grads != nullptr) {
      grads->clear();
      for (const Values& w : weights) grads->emplace_back(w.size(), 0.0);
    }
    double tokens = 0, loss = 0;
    for (const Sequence& s : sequences) {
      for (const int32_t target : s.targets) tokens += target >= 0 ? 1 : 0;
    }
    for (const Sequence& s : sequences) loss += Run(weights, s, 1 / tokens, grads);
    return loss / tokens;
  }

  // [T, V]
  Values Logits(const Tensors& weights, const std::vector<int32_t>& inputs) const {
    const Forward f = RunForward(weights, inputs);
    return Head(weights, f.final.y_TC);
  }

 private:
  // The places of a layer's tensors within its twelve.
  enum { kLn1W, kLn1B, kQkvW, kQkvB, kProjW, kProjB, kLn2W, kLn2B, kFcW, kFcB, kOutW, kOutB };
  static size_t At(int64_t layer, int tensor) {
    return static_cast<size_t>(2 + 12 * layer + tensor);
  }
  size_t FinalW() const { return At(spec_.layers, 0); }

  struct Norm {
    Values y_TC, unit_TC, inverse_std_T;
  };
  struct Layer {
    Norm ln1, ln2;
    Values qkv_T3C, weights_HTT, mixed_TC, fc_TF, gelu_TF;
  };
  struct Forward {
    std::vector<Layer> layers;
    Norm final;
  };

  Values Take(const Values& matrix, size_t cols, Rounded what, bool down) const {
    return round_ == nullptr ? matrix : round_(matrix, cols, what, down);
  }
  Values Linear(const Values& exact_x, const Values& exact_w, const Values& b, int64_t in) const {
    const auto k = static_cast<size_t>(in), n = b.size(), rows = exact_x.size() / k;
    const Values x = Take(exact_x, k, Rounded::kInput, false);
    const Values w = Take(exact_w, n, Rounded::kWeight, true);
    Values y(rows * n);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t j = 0; j < n; ++j) {
        double sum = b[j];
        for (size_t i = 0; i < k; ++i) sum += x[r * k + i] * w[i * n + j];
        y[r * n + j] = sum;
      }
    }
    return y;
  }
  // Adds to dw and db; returns dx.
  Values LinearBackward(const Values& dy, const Values& exact_x, const Values& exact_w, Values& dw,
                        Values& db) const {
    const size_t n = db.size(), k = exact_w.size() / n, rows = dy.size() / n;
    const Values x = Take(exact_x, k, Rounded::kInput, true);
    const Values w = Take(exact_w, n, Rounded::kWeight, false);
    const Values across = Take(dy, n, Rounded::kGradient, false);
    const Values down = Take(dy, n, Rounded::kGradient, true);
    Values dx(rows * k, 0.0);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t j = 0; j < n; ++j) {
        db[j] += dy[r * n + j];
        for (size_t i = 0; i < k; ++i) {
          dw[i * n + j] += x[r * k + i] * down[r * n + j];
          dx[r * k + i] += w[i * n + j] * across[r * n + j];
        }
      }
    }
    return dx;
  }

  Norm Normalize(const Values& x, const Values& w, const Values& b) const {
    const size_t c = w.size();
    Norm out{Values(x.size()), Values(x.size()), Values(x.size() / c)};
    for (size_t t = 0; t < x.size() / c; ++t) {
      double mean = 0, variance = 0;
      for (size_t i = 0; i < c; ++i) mean += x[t * c + i] / static_cast<double>(c);
      for (size_t i = 0; i < c; ++i) {
        variance += std::pow(x[t * c + i] - mean, 2) / static_cast<double>(c);
      }
      out.inverse_std_T[t] = 1 / std::sqrt(variance + static_cast<double>(spec_.layer_norm_eps));
      for (size_t i = 0; i < c; ++i) {
        out.unit_TC[t * c + i] = (x[t * c + i] - mean) * out.inverse_std_T[t];
        out.y_TC[t * c + i] = out.unit_TC[t * c + i] * w[i] + b[i];
      }
    }
    return out;
  }
  // Adds to dw, db and dx.
  static void NormalizeBackward(const Values& dy, const Norm& norm, const Values& w, Values& dw,
                                Values& db, Values& dx) {
    const size_t c = w.size();
    for (size_t t = 0; t < dy.size() / c; ++t) {
      double mean = 0, along = 0;  // of the gradient of unit: its mean, its share along unit
      for (size_t i = 0; i < c; ++i) {
        const double unit = norm.unit_TC[t * c + i], d = dy[t * c + i];
        dw[i] += d * unit;
        db[i] += d;
        mean += d * w[i] / static_cast<double>(c);
        along += d * w[i] * unit / static_cast<double>(c);
      }
      for (size_t i = 0; i < c; ++i) {
        dx[t * c + i] +=
            norm.inverse_std_T[t] * (dy[t * c + i] * w[i] - mean - norm.unit_TC[t * c + i] * along);
      }
    }
  }

  // tanh form; the derivative where `slope`.
  static double Gelu(double x, bool slope) {
    const double s = std::sqrt(2 / std::numbers::pi);
    const double tanh = std::tanh(s * (x + 0.044715 * x * x * x));
    if (!slope) return x * (1 + tanh) / 2;
    return (1 + tanh) / 2 + x * (1 - tanh * tanh) * s * (1 + 3 * 0.044715 * x * x) / 2;
  }

  // visit(head, t, u, place of the pair in weights_HTT) for all u <= t.
  template <typename Visit>
  void ForEachPair(size_t length, Visit&& visit) const {
    for (size_t h = 0; h < static_cast<size_t>(spec_.heads); ++h) {
      for (size_t t = 0; t < length; ++t) {
        for (size_t u = 0; u <= t; ++u) visit(h, t, u, (h * length + t) * length + u);
      }
    }
  }
  size_t HeadWidth() const { return static_cast<size_t>(C_ / spec_.heads); }
  // Element i of head h in query (part 0), key (1) or value (2) of position t.
  size_t QkvAt(size_t t, int part, size_t h, size_t i) const {
    return (t * 3 + static_cast<size_t>(part)) * static_cast<size_t>(C_) + h * HeadWidth() + i;
  }
  size_t MixAt(size_t t, size_t h, size_t i) const {
    return t * static_cast<size_t>(C_) + h * HeadWidth() + i;
  }

  void Attend(Layer& layer, size_t length) const {
    const Values& qkv = layer.qkv_T3C;
    const double scale = 1 / std::sqrt(static_cast<double>(HeadWidth()));
    Values& p = layer.weights_HTT;
    p.assign(static_cast<size_t>(spec_.heads) * length * length, 0.0);
    layer.mixed_TC.assign(length * static_cast<size_t>(C_), 0.0);
    Values total(static_cast<size_t>(spec_.heads) * length, 0.0);
    ForEachPair(length, [&](size_t h, size_t t, size_t u, size_t at) {
      double score = 0;
      for (size_t i = 0; i < HeadWidth(); ++i) {
        score += qkv[QkvAt(t, 0, h, i)] * qkv[QkvAt(u, 1, h, i)];
      }
      p[at] = std::exp(score * scale);  // small models' scores need no shift in double
      total[h * length + t] += p[at];
    });
    ForEachPair(length, [&](size_t h, size_t t, size_t u, size_t at) {
      p[at] /= total[h * length + t];
      for (size_t i = 0; i < HeadWidth(); ++i) {
        layer.mixed_TC[MixAt(t, h, i)] += p[at] * qkv[QkvAt(u, 2, h, i)];
      }
    });
  }
  Values AttendBackward(const Layer& layer, const Values& dmixed, size_t length) const {
    const Values &qkv = layer.qkv_T3C, &p = layer.weights_HTT;
    const double scale = 1 / std::sqrt(static_cast<double>(HeadWidth()));
    Values dqkv(qkv.size(), 0.0), dp(p.size(), 0.0);
    Values row(static_cast<size_t>(spec_.heads) * length, 0.0);  // sum over u of p * dp
    ForEachPair(length, [&](size_t h, size_t t, size_t u, size_t at) {
      for (size_t i = 0; i < HeadWidth(); ++i) {
        const double d = dmixed[MixAt(t, h, i)];
        dqkv[QkvAt(u, 2, h, i)] += p[at] * d;
        dp[at] += d * qkv[QkvAt(u, 2, h, i)];
      }
      row[h * length + t] += p[at] * dp[at];
    });
    ForEachPair(length, [&](size_t h, size_t t, size_t u, size_t at) {
      const double dscore = p[at] * (dp[at] - row[h * length + t]) * scale;
      for (size_t i = 0; i < HeadWidth(); ++i) {
        dqkv[QkvAt(t, 0, h, i)] += dscore * qkv[QkvAt(u, 1, h, i)];
        dqkv[QkvAt(u, 1, h, i)] += dscore * qkv[QkvAt(t, 0, h, i)];
      }
    });
    return dqkv;
  }

  Forward RunForward(const Tensors& w, const std::vector<int32_t>& inputs) const {
    const size_t length = inputs.size(), c = static_cast<size_t>(C_);
    Values x(length * c);
    for (size_t t = 0; t < length; ++t) {
      for (size_t i = 0; i < c; ++i) {
        x[t * c + i] = w[0][static_cast<size_t>(inputs[t]) * c + i] + w[1][t * c + i];
      }
    }
    Forward f;
    for (int64_t l = 0; l < spec_.layers; ++l) {
      Layer& layer = f.layers.emplace_back();
      layer.ln1 = Normalize(x, w[At(l, kLn1W)], w[At(l, kLn1B)]);
      layer.qkv_T3C = Linear(layer.ln1.y_TC, w[At(l, kQkvW)], w[At(l, kQkvB)], C_);
      Attend(layer, length);
      Add(x, Linear(layer.mixed_TC, w[At(l, kProjW)], w[At(l, kProjB)], C_));
      layer.ln2 = Normalize(x, w[At(l, kLn2W)], w[At(l, kLn2B)]);
      layer.fc_TF = Linear(layer.ln2.y_TC, w[At(l, kFcW)], w[At(l, kFcB)], C_);
      for (double value : layer.fc_TF) layer.gelu_TF.push_back(Gelu(value, false));
      Add(x, Linear(layer.gelu_TF, w[At(l, kOutW)], w[At(l, kOutB)], F_));
    }
    f.final = Normalize(x, w[FinalW()], w[FinalW() + 1]);
    return f;
  }
  static void Add(Values& x, const Values& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  Values Head(const Tensors& w, const Values& y_TC) const {
    const auto c = static_cast<size_t>(C_), v = static_cast<size_t>(spec_.vocab);
    Values logits(y_TC.size() / c * v, 0.0);
    for (size_t at = 0; at < logits.size(); ++at) {
      for (size_t i = 0; i < c; ++i) logits[at] += y_TC[at / v * c + i] * w[0][at % v * c + i];
    }
    return logits;
  }

  // The sequence's sum of losses; adds `scale` times its gradients.
  double Run(const Tensors& w, const Sequence& s, double scale, Tensors* grads) const {
    const Forward f = RunForward(w, s.inputs);
    const size_t length = s.inputs.size(), c = static_cast<size_t>(C_);
    const auto v = static_cast<size_t>(spec_.vocab);
    Values d = Head(w, f.final.y_TC);  // logits, and in place their gradients
    double loss = 0;
    for (size_t t = 0; t < length; ++t) {
      if (s.targets[t] < 0) {
        for (size_t j = 0; j < v; ++j) d[t * v + j] = 0;
        continue;
      }
      const auto target = static_cast<size_t>(s.targets[t]);
      double total = 0;
      for (size_t j = 0; j < v; ++j) total += std::exp(d[t * v + j]);
      loss += std::log(total) - d[t * v + target];
      for (size_t j = 0; j < v; ++j) d[t * v + j] = scale * std::exp(d[t * v + j]) / total;
      d[t * v + target] -= scale;
    }
    if (grads == nullptr) return loss;
    Tensors& g = *grads;
    Values dy(length * c, 0.0), dx(length * c, 0.0);
    for (size_t at = 0; at < d.size(); ++at) {
      for (size_t i = 0; i < c; ++i) {
        dy[at / v * c + i] += d[at] * w[0][at % v * c + i];
        g[0][at % v * c + i] += d[at] * f.final.y_TC[at / v * c + i];
      }
    }
    NormalizeBackward(dy, f.final, w[FinalW()], g[FinalW()], g[FinalW() + 1], dx);
    for (int64_t l = spec_.layers; l-- > 0;) {
      const Layer& layer = f.layers[static_cast<size_t>(l)];
      const auto linear = [&](const Values& out, const Values& in, int weight) {
        return LinearBackward(out, in, w[At(l, weight)], g[At(l, weight)], g[At(l, weight + 1)]);
      };
      Values dfc = linear(dx, layer.gelu_TF, kOutW);
      for (size_t i = 0; i < dfc.size(); ++i) dfc[i] *= Gelu(layer.fc_TF[i], true);
      NormalizeBackward(linear(dfc, layer.ln2.y_TC, kFcW), layer.ln2, w[At(l, kLn2W)],
                        g[At(l, kLn2W)], g[At(l, kLn2B)], dx);
      const Values dqkv = AttendBackward(layer, linear(dx, layer.mixed_TC, kProjW), length);
      NormalizeBackward(linear(dqkv, layer.ln1.y_TC, kQkvW), layer.ln1, w[At(l, kLn1W)],
                        g[At(l, kLn1W)], g[At(l, kLn1B)], dx);
    }
    for (size_t i = 0; i < dx.size(); ++i) {
      g[0][static_cast<size_t>(s.inputs[i / c]) * c + i % c] += dx[i];
      g[1][i] += dx[i];
    }
    return loss;
  }

  const ModelSpec spec_;
  const int64_t C_, F_;
  const Round round_;
};

}  // namespace zeroplan::testing
