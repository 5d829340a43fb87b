// Names and shapes of tensors, read from the headers of the safetensors files in the folder of a
// config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace zeroplan {

struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
  std::string file;  // whose header lists the tensor

  int64_t elements() const;
};

// The tensors of all headers in `folder`; nullopt if weight files are missing. Throws Error(kUsage)
// that names the file if a file is truncated or damaged.
std::optional<std::vector<NamedShape>> ReadWeightHeaders(const std::filesystem::path& folder);
// The tensors of one safetensors file; fills `*metadata`, if given, with the file's "__metadata__".
// Throws the same error.
std::vector<NamedShape> ReadWeightHeader(const std::filesystem::path& file,
                                         std::map<std::string, std::string>* metadata = nullptr);

}  // namespace zeroplan
