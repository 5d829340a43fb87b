// Models that are planned and not trained, as tests/fixtures/make_planned_fixtures.py has them from
// transformers, laid out as folders.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/paths.h"

namespace zeroplan {

inline const nlohmann::ordered_json& PlannedFixtures() {
  static const nlohmann::ordered_json all = nlohmann::ordered_json::parse(
      std::ifstream(SourcePath("tests/fixtures/planned/models.json")));
  return all;
}

inline const nlohmann::ordered_json& PlannedFixture(const std::string& name) {
  for (const nlohmann::ordered_json& model : PlannedFixtures()["models"]) {
    if (model["name"] == name) return model;
  }
  throw std::runtime_error("no fixture " + name);
}

// Length and JSON of a safetensors header, of BF16 tensors.
inline std::string SafetensorsHeader(const nlohmann::ordered_json& tensors, uint64_t* data_bytes) {
  nlohmann::ordered_json header;
  uint64_t at = 0;
  for (const auto& [name, shape] : tensors.items()) {
    uint64_t bytes = 2;
    for (const auto& side : shape) bytes *= side.get<uint64_t>();
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  *data_bytes = at;
  const std::string json = header.dump();
  std::string text;
  for (int byte = 0; byte < 8; ++byte) {
    text += static_cast<char>(uint64_t{json.size()} >> 8 * byte & 0xff);
  }
  return text + json;
}

// Values are a hole in the file.
inline void WriteSafetensors(const std::filesystem::path& file,
                             const nlohmann::ordered_json& tensors) {
  uint64_t data_bytes = 0;
  const std::string header = SafetensorsHeader(tensors, &data_bytes);
  std::ofstream(file, std::ios::binary) << header;
  std::filesystem::resize_file(file, header.size() + data_bytes);
}

inline void WriteJson(const std::filesystem::path& file, const nlohmann::ordered_json& json) {
  std::ofstream(file) << json.dump(2);
}

}  // namespace zeroplan
