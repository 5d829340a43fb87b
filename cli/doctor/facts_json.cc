#include "cli/doctor/facts_json.h"

#include <nlohmann/json.hpp>
#include <type_traits>
#include <vector>

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

template <typename T, typename Facts>
concept Of = std::is_same_v<std::remove_const_t<T>, Facts>;

// One list of the fields of each, for both ways.
void ForEachField(Of<LibraryFacts> auto& facts, auto field) {
  field("version", facts.version);
  field("cuda", facts.cuda);
  field("architectures", facts.architectures);
  field("runtime", facts.runtime);
  field("driver", facts.driver);
  field("gpus", facts.gpus);
  field("failure", facts.failure);
  field("why", facts.why);
  field("nccl", facts.nccl);
  field("nccl_at_build", facts.nccl_at_build);
  field("cudnn", facts.cudnn);
  field("cudnn_at_build", facts.cudnn_at_build);
  field("why_no_cudnn", facts.why_no_cudnn);
}

void ForEachField(Of<GpuProcess> auto& process, auto field) {
  field("pid", process.pid);
  field("bytes", process.bytes);
}

void ForEachField(Of<GpuState> auto& gpu, auto field) {
  field("index", gpu.index);
  field("visible", gpu.visible);
  field("name", gpu.name);
  field("bus", gpu.bus);
  field("memory_bytes", gpu.memory_bytes);
  field("used_bytes", gpu.used_bytes);
  field("compute_major", gpu.compute_major);
  field("compute_minor", gpu.compute_minor);
  field("ecc", gpu.ecc);
  field("mig", gpu.mig);
  field("limit_watts", gpu.limit_watts);
  field("default_limit_watts", gpu.default_limit_watts);
  field("pcie_generation", gpu.pcie_generation);
  field("most_pcie_generation", gpu.most_pcie_generation);
  field("pcie_width", gpu.pcie_width);
  field("most_pcie_width", gpu.most_pcie_width);
  field("performance_state", gpu.performance_state);
  field("compute_mode", gpu.compute_mode);
  field("processes", gpu.processes);
  field("links", gpu.links);
  field("active_links", gpu.active_links);
  field("numa_node", gpu.numa_node);
}

void ForEachField(Of<GpuPair> auto& pair, auto field) {
  field("a", pair.a);
  field("b", pair.b);
  field("peer", pair.peer);
  field("why_not", pair.why_not);
  field("nvlink", pair.nvlink);
}

void ForEachField(Of<GpuStates> auto& states, auto field) {
  field("is_off", states.is_off);
  field("library", states.library);
  field("answers", states.answers);
  field("why", states.why);
  field("driver", states.driver);
  field("cuda", states.cuda);
  field("gpus", states.gpus);
  field("pairs", states.pairs);
}

void ForEachField(Of<ProfileFacts> auto& profile, auto field) {
  field("state", profile.state);
  field("file", profile.file);
  field("when", profile.when);
  field("note", profile.note);
  field("built_in", profile.built_in);
  field("gpu_note", profile.gpu_note);
}

void ForEachField(Of<DriverFacts> auto& driver, auto field) {
  field("gpus", driver.gpus);
  field("profile", driver.profile);
}

template <typename T>
Json Written(const T& value);
template <typename T>
Json Written(const std::vector<T>& values);

template <typename T>
Json Written(const std::optional<T>& value) {
  return value ? Written(*value) : Json(nullptr);
}
template <typename T>
Json Written(const std::vector<T>& values) {
  Json json = Json::array();
  for (const T& value : values) json.push_back(Written(value));
  return json;
}
template <typename T>
Json Written(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return static_cast<int>(value);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    return value;
  } else {
    Json json = Json::object();
    ForEachField(value, [&](const char* name, const auto& part) { json[name] = Written(part); });
    return json;
  }
}

template <typename T>
void Read(const Json& json, T& value);
template <typename T>
void Read(const Json& json, std::vector<T>& values);

template <typename T>
void Read(const Json& json, std::optional<T>& value) {
  if (!json.is_null()) Read(json, value.emplace());
}
template <typename T>
void Read(const Json& json, std::vector<T>& values) {
  for (const Json& one : json) Read(one, values.emplace_back());
}
template <typename T>
void Read(const Json& json, T& value) {
  if constexpr (std::is_enum_v<T>) {
    value = static_cast<T>(json.get<int>());
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    json.get_to(value);
  } else {
    ForEachField(value, [&](const char* name, auto& part) { Read(json.at(name), part); });
  }
}

template <typename Facts>
std::string AsJson(const Facts& facts) {
  return Written(facts).dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <typename Facts>
std::optional<Facts> FromJson(const std::string& output) {
  const size_t end = output.find_last_not_of(" \r\n");
  if (end == std::string::npos) return std::nullopt;
  const size_t begin = output.find_last_of('\n', end) + 1;  // npos + 1 is 0
  try {
    Facts facts;
    Read(Json::parse(output.substr(begin, end + 1 - begin)), facts);
    return facts;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

std::string LibrariesAsJson(const LibraryFacts& facts) { return AsJson(facts); }
std::optional<LibraryFacts> LibrariesFromJson(const std::string& output) {
  return FromJson<LibraryFacts>(output);
}
std::string DriverAsJson(const DriverFacts& facts) { return AsJson(facts); }
std::optional<DriverFacts> DriverFromJson(const std::string& output) {
  return FromJson<DriverFacts>(output);
}

}  // namespace zeroplan
