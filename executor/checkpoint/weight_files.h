// Which files of a Hugging Face folder hold its weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/param_table.h"

namespace zeroplan {

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

// The tensors of published weights, and where each lies in a model's parameters.
struct HfTensor {
  std::string name;
  std::vector<uint64_t> shape;  // unpadded; vectors have one dimension
  size_t param = 0;             // index into the table
  uint64_t begin = 0;           // elements [begin, begin + elements) of the parameter
  uint64_t elements = 0;
};

// In the order of the table, each parameter's from its first row down.
std::vector<HfTensor> HfTensors(std::span<const ParamTensor> table);

}  // namespace zeroplan
