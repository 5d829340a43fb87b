// What a run of `zeroplan train --metrics` wrote.
#pragma once

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace zeroplan {

inline std::vector<nlohmann::json> ReadMetricsLines(const std::string& file) {
  std::vector<nlohmann::json> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_discarded()) lines.push_back(std::move(json));  // a kill may cut the last line
  }
  return lines;
}

// Loss by step. A step that was run again after a kill must have come out the same.
inline std::map<int, double> LossesByStep(const std::string& file) {
  std::map<int, double> losses;
  for (const nlohmann::json& line : ReadMetricsLines(file)) {
    if (line["event"] != "step") continue;
    const auto [at, added] = losses.emplace(line["step"], line["loss"]);
    if (!added) CHECK(at->second == line["loss"].get<double>());
  }
  return losses;
}

}  // namespace zeroplan
