// Weights in, from a folder as Hugging Face has them: config.json and safetensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model_spec.h"
#include "core/model/param_table.h"
#include "executor/checkpoint/safetensors.h"
#include "executor/checkpoint/state_io.h"

namespace zeroplan {

// Which files of a Hugging Face folder hold its weights.

inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kWeightsIndexFile = "model.safetensors.index.json";

// "model-00002-of-00003.safetensors", numbered from 1 on.
std::string WeightShardName(uint64_t number, uint64_t count);
// Whether it is such a name.
bool IsWeightShardName(std::string_view name);

// The file's name by tensor. Throws Error(kUsage) naming `source`, line and value for text that is
// no index, and for names that are not plain names of files: nothing outside the folder is opened.
std::map<std::string, std::string> ParseWeightIndex(std::string_view text, std::string_view source);

struct WeightFiles {
  std::vector<std::filesystem::path> files;           // in byte order of their names
  std::filesystem::path index;                        // that names them; empty: none
  std::map<std::string, std::string> file_of_tensor;  // of the index
};

// Whether the folder holds weights, in whatever format: whether FindWeightFiles has something to
// say about it.
bool HoldsWeights(const std::filesystem::path& folder);

// model.safetensors; else what model.safetensors.index.json names; else all of
// model-00001-of-0000N.safetensors. Throws Error(kUsage) naming folder or index, and the fix, if
// there are none, if one is missing, and if all there is has a format that is not read.
WeightFiles FindWeightFiles(const std::filesystem::path& folder);

// 128 bits over all bytes of a folder's weights, in hexadecimal: what adapters name their base by.
// Throws as FindWeightFiles.
std::string WeightsDigest(const std::filesystem::path& folder);

// The tensors of published weights (of adapters: what ParamRow::saved leaves), and where each lies
// in a model's parameters.
struct HfTensor {
  std::string name;
  std::vector<uint64_t> shape;  // unpadded; vectors have one dimension
  size_t param = 0;             // index into the table
  uint64_t begin = 0;           // elements [begin, begin + elements) of the parameter
  uint64_t elements = 0;
};

// In the order of the table, each parameter's from its first row down. Of a model with adapters:
// what is saved with them (ParamRow::saved).
std::vector<HfTensor> HfTensors(std::span<const ParamTensor> table);

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
  // Opens what FindWeightFiles finds in `folder`. A config.json beside it must
  // describe `spec` too: what shapes do not show (heads, epsilon) would otherwise be lost. Throws
  // Error(kUsage) naming file, tensor, what it is and what it should be for anything missing, of
  // another shape or dtype, or not part of the model. `resizes`: the token embedding, and a head of
  // its own, may have fewer rows than the model; those that are missing read as the mean of those
  // that are there, as transformers' resize_token_embeddings has it, but for noise of 3e-5 of their
  // spread.
  HfWeightsSource(const std::filesystem::path& folder, const ModelSpec& spec,
                  std::span<const ParamTensor> table, bool resizes = false);

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
    // Elements [mean_begin, end) are not in the file: rows of `mean`.
    uint64_t mean_begin = 0;
    std::vector<float> mean = {};
  };

  std::vector<SafetensorsFile> files_;
  std::vector<std::vector<Piece>> pieces_;  // by parameter, in order; without the padding
  std::vector<uint64_t> elements_;          // of each parameter, padded rows included
};

}  // namespace zeroplan
