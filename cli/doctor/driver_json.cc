#include "cli/doctor/driver_json.h"

#include <nlohmann/json.hpp>
#include <type_traits>
#include <vector>

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

// One list of the fields of each, for both ways.
template <typename Process, typename Field>
  requires std::is_same_v<std::remove_const_t<Process>, GpuProcess>
void ForEachField(Process& process, Field field) {
  field("pid", process.pid);
  field("bytes", process.bytes);
}

template <typename Gpu, typename Field>
  requires std::is_same_v<std::remove_const_t<Gpu>, GpuState>
void ForEachField(Gpu& gpu, Field field) {
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

template <typename Pair, typename Field>
  requires std::is_same_v<std::remove_const_t<Pair>, GpuPair>
void ForEachField(Pair& pair, Field field) {
  field("a", pair.a);
  field("b", pair.b);
  field("peer", pair.peer);
  field("why_not", pair.why_not);
  field("nvlink", pair.nvlink);
}

template <typename States, typename Field>
  requires std::is_same_v<std::remove_const_t<States>, GpuStates>
void ForEachField(States& states, Field field) {
  field("is_off", states.is_off);
  field("library", states.library);
  field("answers", states.answers);
  field("why", states.why);
  field("driver", states.driver);
  field("cuda", states.cuda);
  field("gpus", states.gpus);
  field("pairs", states.pairs);
}

template <typename Profile, typename Field>
  requires std::is_same_v<std::remove_const_t<Profile>, ProfileFacts>
void ForEachField(Profile& profile, Field field) {
  field("state", profile.state);
  field("file", profile.file);
  field("when", profile.when);
  field("note", profile.note);
  field("built_in", profile.built_in);
  field("gpu_note", profile.gpu_note);
}

template <typename Driver, typename Field>
  requires std::is_same_v<std::remove_const_t<Driver>, DriverFacts>
void ForEachField(Driver& driver, Field field) {
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

}  // namespace

std::string DriverAsJson(const DriverFacts& facts) {
  return Written(facts).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<DriverFacts> DriverFromJson(const std::string& output) {
  const size_t end = output.find_last_not_of(" \r\n");
  if (end == std::string::npos) return std::nullopt;
  const size_t begin = output.find_last_of('\n', end) + 1;  // npos + 1 is 0
  try {
    DriverFacts facts;
    Read(Json::parse(output.substr(begin, end + 1 - begin)), facts);
    return facts;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace zeroplan
