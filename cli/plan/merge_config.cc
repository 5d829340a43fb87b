#include "cli/plan/merge_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <variant>

#include "core/base/json_source.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

// Names that DeepSpeed still takes for what is written under another: both at once is an error, or
// would say two things.
constexpr std::array<std::string_view, 6> kOldNames = {
    "bfloat16",    "fp32_allreduce",    "allgather_size",
    "cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory"};

Json ToJson(const JsonNode& node) {
  if (node.is_object()) {
    Json object = Json::object();
    for (const JsonMember& member : node.members) object[member.key] = ToJson(member.value);
    return object;
  }
  if (node.is_array()) {
    Json array = Json::array();
    for (const JsonNode& element : node.elements) array.push_back(ToJson(element));
    return array;
  }
  return std::visit([](const auto& value) { return Json(value); }, node.scalar.value());
}

bool Replaced(const std::string& key, const Json& written) {
  if (std::find(kOldNames.begin(), kOldNames.end(), key) != kOldNames.end()) return true;
  constexpr std::string_view kPrefix = "stage3_";
  return key.starts_with(kPrefix) ? written.contains(key.substr(kPrefix.size()))
                                  : written.contains(std::string(kPrefix) + key);
}

Json Merged(const JsonNode& came, const Json& written) {
  Json out = Json::object();
  for (const JsonMember& member : came.members) {
    const auto at = written.find(member.key);
    if (at == written.end()) {
      const bool open = member.value.is_string() && member.value.scalar == "auto";
      if (!open && !Replaced(member.key, written)) out[member.key] = ToJson(member.value);
    } else if (at->is_object() && member.value.is_object()) {
      out[member.key] = Merged(member.value, *at);
    } else {
      out[member.key] = *at;
    }
  }
  for (const auto& [key, value] : written.items()) {
    if (!out.contains(key)) out[key] = value;
  }
  return out;
}

}  // namespace

std::string MergeConfig(const std::string& file, const std::string& written) {
  if (file.empty()) return written;
  const JsonNode came = ParseJsonText(ReadTextFile(file), file);
  return Merged(came, Json::parse(written)).dump(2) + "\n";
}

}  // namespace zeroplan
