// Weights in and out as Hugging Face has them: a folder with config.json and model.safetensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <unordered_map>
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
// family's to say. A second name of a tensor (ParamRow::twin: a tied head) must hold the same
// values. F32, BF16 and F16 are read.
class HfWeightsSource : public StateSource {
 public:
  // `folder` holds model.safetensors, or model.safetensors.index.json and the shards it names. A
  // config.json beside it must describe `spec` too: what shapes do not show (heads, epsilon) would
  // otherwise be lost. Throws Error(kUsage) naming file, tensor, what it is and what it should be
  // for anything missing, of another shape or dtype, or not part of the model.
  HfWeightsSource(const std::filesystem::path& folder, const ModelSpec& spec,
                  std::span<const ParamTensor> table);

  void Read(const TensorRange& range, std::span<float> out) const override;

 private:
  // Where a tensor of the table lies.
  struct Place {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };

  using NameIndex = std::unordered_map<std::string_view, size_t>;

  void OpenFiles(const std::filesystem::path& folder);
  // Notes the entry as that of `place`. Throws if its dtype is none of floats or there is one.
  void SetPlace(const SafetensorsFile& file, const SafetensorsEntry& entry, Place& place) const;
  // Throws if the two names stand for different values.
  void CheckTwin(const Place& twin, const Place& place) const;

  std::vector<SafetensorsFile> files_;
  std::vector<Place> places_;       // by tensor
  std::vector<uint64_t> elements_;  // of each tensor, padded rows included
};

// Writes the master weights in `source` as FOLDER/model.safetensors (F32, unpadded vocabulary, tied
// head left out) and FOLDER/config.json, which
// transformers.AutoModelForCausalLM.from_pretrained(FOLDER) loads. The folder is made if need be.
// Each file takes its place whole; neither does before both are on disk. Throws Error(kRuntime) if
// they cannot be written: what was there stays.
void WriteHfWeights(const std::filesystem::path& folder, const ModelSpec& spec,
                    std::span<const ParamTensor> table, const StateSource& source,
                    IoHook* hook = nullptr);

}  // namespace zeroplan
