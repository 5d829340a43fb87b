// Names and shapes of tensors, read from the headers of safetensors files beside a config.json.
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
  std::string file;  // that says so

  int64_t elements() const;
};

// Tensors of all headers beside a config.json; nullopt where files of weights are missing. Throws
// Error(kUsage) naming the file for one that is cut off or damaged.
std::optional<std::vector<NamedShape>> ReadWeightHeaders(const std::filesystem::path& folder);
// Those of one safetensors file, and what is said of the whole ("__metadata__"). Throws as well.
std::vector<NamedShape> ReadWeightHeader(const std::filesystem::path& file,
                                         std::map<std::string, std::string>* metadata = nullptr);

}  // namespace zeroplan
