#include "core/config/kept_keys.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <variant>

#include "core/base/error.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

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

bool IsAuto(const JsonNode& node) { return node.is_string() && node.scalar == "auto"; }

// Sections in which "auto" leaves a choice to zeroplan. DeepSpeed itself takes no "auto".
constexpr std::array<std::string_view, 12> kReadSections = {"zero_optimization",
                                                            "bf16",
                                                            "bfloat16",
                                                            "fp16",
                                                            "data_types",
                                                            "optimizer",
                                                            "scheduler",
                                                            "activation_checkpointing",
                                                            "train_batch_size",
                                                            "train_micro_batch_size_per_gpu",
                                                            "gradient_accumulation_steps",
                                                            "gradient_clipping"};
constexpr std::array<std::string_view, 3> kReadCommunication = {"communication_data_type",
                                                                "fp32_allreduce", "allgather_size"};

bool IsRead(std::string_view key) {
  return std::find(kReadSections.begin(), kReadSections.end(), key) != kReadSections.end() ||
         std::find(kReadCommunication.begin(), kReadCommunication.end(), key) !=
             kReadCommunication.end();
}

struct OtherName {
  std::string_view section, name, written;
};

// Names that mean the same as a key that the writer writes.
constexpr OtherName kOtherNames[] = {
    {"", "bfloat16", "bf16"},
    {"", "fp32_allreduce", "communication_data_type"},
    // Beside "zero_optimization": true alone, which is written as a section.
    {"", "allgather_size", "zero_optimization"},
    {"zero_optimization", "cpu_offload", "offload_optimizer"},
    {"zero_optimization", "cpu_offload_param", "offload_param"},
    {"zero_optimization", "cpu_offload_use_pin_memory", "offload_optimizer"},
    {"zero_optimization", "cpu_offload_use_pin_memory", "offload_param"},
};

bool SaidOtherwise(std::string_view section, std::string_view key, const Json& written) {
  for (const OtherName& other : kOtherNames) {
    if (other.section == section && other.name == key && written.contains(other.written)) {
      return true;
    }
  }
  // Keys of stage 3 go with and without their prefix; the writer writes it.
  return section == "zero_optimization" && written.contains("stage3_" + std::string(key));
}

// `path`: of the section, empty for the top level. `read`: "auto" in it is zeroplan's to choose.
void Merge(const JsonNode& incoming, const std::string& path, bool read, Json* out) {
  for (const JsonMember& member : incoming.members) {
    const bool member_read = read || (path.empty() && IsRead(member.key));
    if (out->contains(member.key)) {
      Json& written = (*out)[member.key];
      if (written.is_object() && member.value.is_object()) {
        Merge(member.value, path.empty() ? member.key : path + "." + member.key, member_read,
              &written);
      }
      continue;
    }
    if (member_read && IsAuto(member.value)) continue;
    if (SaidOtherwise(path, member.key, *out)) continue;
    if (member_read && member.value.is_object()) {
      Json section = Json::object();
      Merge(member.value, path.empty() ? member.key : path + "." + member.key, true, &section);
      (*out)[member.key] = std::move(section);
    } else {
      (*out)[member.key] = ToJson(member.value);
    }
  }
}

// An old name's own settings belong to the section under its new one.
void MergeOldSection(const JsonNode& incoming, std::string_view old_name, const char* name,
                     Json* out) {
  const JsonNode* node = incoming.Find(old_name);
  if (node != nullptr && node->is_object() && out->contains(name)) {
    Merge(*node, name, true, &(*out)[name]);
  }
}

void KeepGatherOnSave(const JsonNode& incoming, Json* out) {
  const JsonNode* zero = incoming.Find("zero_optimization");
  if (zero == nullptr || !zero->is_object() || !out->contains("zero_optimization")) return;
  constexpr const char* kWritten = "stage3_gather_16bit_weights_on_model_save";
  for (const char* name : {kWritten, "gather_16bit_weights_on_model_save",
                           "stage3_gather_fp16_weights_on_model_save"}) {
    const JsonNode* said = zero->Find(name);
    if (said == nullptr || said->is_null() || IsAuto(*said)) continue;
    Json& section = (*out)["zero_optimization"];
    section.erase(kWritten);
    section[name] = ToJson(*said);
  }
}

}  // namespace

std::string KeepOtherKeys(std::string_view written, const JsonNode& incoming) {
  ZEROPLAN_CHECK(incoming.is_object(), "a config is an object");
  Json out = Json::parse(written);
  Merge(incoming, "", false, &out);
  MergeOldSection(incoming, "bfloat16", "bf16", &out);
  KeepGatherOnSave(incoming, &out);
  return out.dump(2) + "\n";
}

bool ConfigSays(const JsonNode& config, std::string_view key) {
  const JsonNode* node = &config;
  while (node != nullptr) {
    const size_t dot = key.find('.');
    node = node->Find(key.substr(0, dot));
    if (dot == std::string_view::npos) break;
    key.remove_prefix(dot + 1);
  }
  return node != nullptr && !node->is_null() && !IsAuto(*node);
}

std::string NameRuntime(std::string_view config, std::string_view runtime,
                        std::string_view compile) {
  Json out = Json::parse(config);
  Json& own = out["_zeroplan"];
  if (!own.is_object()) own = Json::object();
  own["runtime"] = runtime;
  own.erase("compile");
  if (!compile.empty()) own["compile"] = compile;
  return out.dump(2) + "\n";
}

}  // namespace zeroplan
