// Reads weights from a Hugging Face folder: config.json and safetensors.
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

// Below: the files of a Hugging Face folder that hold its weights.

inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kWeightsIndexFile = "model.safetensors.index.json";

// "model-00002-of-00003.safetensors", numbered from 1 on.
std::string WeightShardName(uint64_t number, uint64_t count);
// True if `name` is the name of a weight shard.
bool IsWeightShardName(std::string_view name);

// Maps each tensor to the name of its file. Throws Error(kUsage) that names `source`, line and
// value for text that is no index, and for names that are not plain file names, so that nothing
// outside the folder is opened.
std::map<std::string, std::string> ParseWeightIndex(std::string_view text, std::string_view source);

struct WeightFiles {
  std::vector<std::filesystem::path> files;           // in byte order of their names
  std::filesystem::path index;                        // the index that lists them; empty: none
  std::map<std::string, std::string> file_of_tensor;  // from the index
};

// True if the folder holds weights in any format, so that FindWeightFiles finds files or reports a
// format that is not read.
bool HoldsWeights(const std::filesystem::path& folder);

// Finds model.safetensors; else the files that model.safetensors.index.json lists; else all of
// model-00001-of-0000N.safetensors. Throws Error(kUsage) that names folder or index, and the fix,
// if there are none, if one is missing, or if all have a format that is not read.
WeightFiles FindWeightFiles(const std::filesystem::path& folder);

// A 128-bit digest of all bytes of a folder's weights, in hexadecimal. Adapters identify their base
// by it. Throws what FindWeightFiles throws.
std::string WeightsDigest(const std::filesystem::path& folder);

// A tensor of published weights, and its place in a model's parameters.
struct HfTensor {
  std::string name;
  std::vector<uint64_t> shape;  // unpadded; vectors have one dimension
  size_t param = 0;             // index into the table
  uint64_t begin = 0;           // elements [begin, begin + elements) of the parameter
  uint64_t elements = 0;
};

// The published tensors in the order of the table; those of one parameter from its first row on.
// For a model with adapters: the tensors that are saved with them (ParamRow::saved).
std::vector<HfTensor> HfTensors(std::span<const ParamTensor> table);

// Weights that transformers saved. Adam's states, which the folder does not hold, and the padded
// rows of the vocabulary read as 0.
//
// The family decides the names of tensors and which are skipped (attention masks stored as
// tensors). A parameter may consist of several tensors (ParamRow::parts). If the files have a
// tensor under its second name too (ParamRow::twin: a tied head), both must hold the same values;
// either name alone is enough. F32, BF16 and F16 are read.
//
// Files are mapped, and only the requested ranges are read, directly into their destination, so
// that a rank reads its own shards without extra memory.
class HfWeightsSource : public StateSource {
 public:
  // Opens the files that FindWeightFiles finds in `folder`. A config.json in the folder must
  // describe `spec` too, because shapes do not show everything (heads, epsilon). Throws
  // Error(kUsage) that names file, tensor, the actual and the expected value if a tensor is
  // missing, has another shape or dtype, or is no part of the model. `resizes`: the token
  // embedding, and an untied head, may have fewer rows than the model. Missing rows read as the
  // mean of the existing rows, as in transformers' resize_token_embeddings, but without its noise
  // of 3e-5 of their spread.
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
    uint64_t entry_begin = 0;  // the element of `entry` that it begins with
    // Elements [mean_begin, end) are not in the file and read as rows of `mean`.
    uint64_t mean_begin = 0;
    std::vector<float> mean = {};
  };

  std::vector<SafetensorsFile> files_;
  std::vector<std::vector<Piece>> pieces_;  // by parameter, in order, without padding
  std::vector<uint64_t> elements_;          // by parameter, including padded rows
};

}  // namespace zeroplan
