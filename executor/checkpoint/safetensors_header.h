// The JSON header of a safetensors file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "executor/checkpoint/safetensors.h"

namespace zeroplan {

// A file begins with the length of its header.
constexpr uint64_t kLengthBytes = 8;
// The reference implementation's limit.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their data
  std::map<std::string, std::string> metadata;
};

// Parses and checks a header against the `data_bytes` that follow it. Throws Error(kUsage), see
// SafetensorsFile::Open; `path` is named.
SafetensorsHeader ParseSafetensorsHeader(std::string_view text, uint64_t data_bytes,
                                         const std::filesystem::path& path);

}  // namespace zeroplan
