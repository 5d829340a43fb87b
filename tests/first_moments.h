// How far apart two runs' gradients lie: by AdamW's first moments, which are sums of gradients. A
// loss hides one tensor's lost gradient among the others' noise; tensor by tensor it stands out.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "core/model/param_table.h"
#include "executor/checkpoint/state_io.h"

namespace zeroplan::testing {

using FirstMoments = std::vector<std::vector<float>>;  // by tensor

inline FirstMoments ReadFirstMoments(const StateSource& states,
                                     std::span<const ParamTensor> tensors) {
  FirstMoments moments;
  for (size_t t = 0; t < tensors.size(); ++t) {
    std::vector<float>& values = moments.emplace_back(tensors[t].elements());
    states.Read({static_cast<int>(t), StateKind::kFirst, 0, values.size()}, values);
  }
  return moments;
}

// The largest |got - want| / |want| of a tensor, lengths being Euclidean. A tensor whose gradients
// are all but 0 is held against a hundredth of the usual length of as many elements. Infinite
// where something is not a number.
inline double FarthestTensor(const FirstMoments& got, const FirstMoments& want) {
  double squares = 0, elements = 0;
  for (const std::vector<float>& tensor : want) {
    squares += std::inner_product(tensor.begin(), tensor.end(), tensor.begin(), 0.0);
    elements += static_cast<double>(tensor.size());
  }
  double farthest = got.size() == want.size() ? 0 : std::numeric_limits<double>::infinity();
  for (size_t t = 0; t < std::min(got.size(), want.size()); ++t) {
    double apart = 0, length = 0;
    for (size_t i = 0; i < want[t].size(); ++i) {
      const double gap = static_cast<double>(got[t][i]) - want[t][i];
      apart += gap * gap;
      length += static_cast<double>(want[t][i]) * want[t][i];
    }
    const double usual = 1e-4 * squares / elements * static_cast<double>(want[t].size());
    const double ratio = std::sqrt(apart / std::max(length, usual));
    if (!(ratio <= farthest)) {
      farthest = std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
    }
  }
  return farthest;
}

}  // namespace zeroplan::testing
