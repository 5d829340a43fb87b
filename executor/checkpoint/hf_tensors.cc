#include "executor/checkpoint/hf_tensors.h"

#include <utility>

namespace zeroplan {

std::vector<HfTensor> HfTensors(std::span<const ParamTensor> table) {
  std::vector<HfTensor> tensors;
  for (size_t i = 0; i < table.size(); ++i) {
    const auto cols = static_cast<uint64_t>(table[i].shape[1]);
    for (PublishedTensor& published : PublishedTensors(table[i])) {
      const auto rows = static_cast<uint64_t>(published.end - published.begin);
      std::vector<uint64_t> shape = {rows};
      if (!table[i].is_vector) shape.push_back(cols);
      tensors.push_back({std::move(published.name), std::move(shape), i,
                         static_cast<uint64_t>(published.begin) * cols, rows * cols});
    }
  }
  return tensors;
}

}  // namespace zeroplan
