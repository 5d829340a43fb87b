// Weights in, from a folder as Hugging Face has them: config.json and safetensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/model/model_spec.h"
#include "core/model/param_table.h"
#include "executor/checkpoint/safetensors.h"
#include "executor/checkpoint/state_io.h"

namespace zeroplan {

// Weights that transformers saved. Adam's states, which such a folder does not hold, and the padded
// rows of the vocabulary read as 0.
//
// What tensors are called and which are passed over (attention masks stored as tensors) is the
// family's to say; a parameter may be made of several (ParamRow::parts). A second name of a tensor
// (ParamRow::twin: a tied head) must hold the same values, or stand for it alone. F32, BF16 and F16
// are read.
//
// Files are mapped, and only the ranges that are asked for are read, straight into where they go: a
// rank reads its own shards and takes no memory for it.
class HfWeightsSource : public StateSource {
 public:
  // Opens what FindWeightFiles (weight_files.h) finds in `folder`. A config.json beside it must
  // describe `spec` too: what shapes do not show (heads, epsilon) would otherwise be lost. Throws
  // Error(kUsage) naming file, tensor, what it is and what it should be for anything missing, of
  // another shape or dtype, or not part of the model.
  HfWeightsSource(const std::filesystem::path& folder, const ModelSpec& spec,
                  std::span<const ParamTensor> table);

  void Read(const TensorRange& range, std::span<float> out) const override;

  // "3 files, BF16".
  std::string Describe() const;

 private:
  // Elements [begin, end) of a parameter, and the tensor that holds them.
  struct Piece {
    uint64_t begin = 0;
    uint64_t end = 0;
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };

  std::vector<SafetensorsFile> files_;
  std::vector<std::vector<Piece>> pieces_;  // by parameter, in order; without the padding
  std::vector<uint64_t> elements_;          // of each parameter, padded rows included
};

}  // namespace zeroplan
