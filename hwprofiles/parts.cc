#include "hwprofiles/parts.h"

#include <fmt/ranges.h>

#include <array>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/limits.h"
#include "core/base/strings.h"
#include "hwprofiles/fields.h"

namespace zeroplan {
namespace {

constexpr std::array<PartKind, 6> kPartKinds = {{{"gpu", "gpus"},
                                                 {"host", "hosts"},
                                                 {"pcie", "pcie"},
                                                 {"link", "links"},
                                                 {"network", "networks"},
                                                 {"runtime", "runtimes"}}};

constexpr PartKind kGpuKind = kPartKinds[0];

// A measured profile has some hundred; objects find a key by looking at all of theirs.
constexpr int kMostValues = 10'000;

void RefuseEndless(std::string_view text, std::string_view source) {
  int levels = 0, values = 1;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++levels > kMostJsonDepth) {
        ThrowUsage("{}: not valid JSON: more than {} levels deep", source, kMostJsonDepth);
      }
    } else if (c == '}' || c == ']') {
      --levels;
    } else if (c == ',' && ++values > kMostValues) {
      ThrowUsage("{}: has more than {} values; this is no hardware profile", source, kMostValues);
    }
  }
}

// A figure or a table is one thing: half of an old one and half of a new one is neither.
bool IsWhole(const ProfileJson& json) {
  return !json.is_object() || json.contains("value") || json.contains("rows");
}

void Merge(ProfileJson& base, const ProfileJson& changes) {
  for (const auto& [key, value] : changes.items()) {
    if (key == "base") continue;
    if (value.is_null()) {
      base.erase(key);
    } else if (base.contains(key) && !IsWhole(base[key]) && !IsWhole(value)) {
      Merge(base[key], value);
    } else {
      base[key] = value;
    }
  }
}

ProfileJson NamedPart(const PartKind& kind, const std::string& name, const std::string& path,
                      std::string_view source) {
  const std::string_view text = EmbeddedText(kind.folder, name);
  if (text.empty()) {
    const std::vector<std::string> names = EmbeddedNames(kind.folder);
    const std::string nearest = NearestName(name, names);
    ThrowUsage("{}: {}: \"{}\" is no built-in {}{}; use {}, or write it in full", source, path,
               name, kind.section,
               nearest.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", nearest),
               fmt::join(names, ", "));
  }
  // Built-in parts may start from each other; a test loads them all, so this ends.
  return ComposePart(kind, ParseJson(text, fmt::format("built-in {} {}", kind.section, name)),
                     source);
}

// The members of a list or an object of scalars, the last apart if `break_last`.
void FormatFlat(const ProfileJson& json, size_t indent, bool break_last, std::string& out) {
  const bool object = json.is_object();
  out += object ? '{' : '[';
  size_t left = json.size();
  for (const auto& [key, value] : json.items()) {
    if (left != json.size()) out += left == 1 && break_last ? "," : ", ";
    if (left == 1 && break_last) {
      out += '\n';
      out.append(indent + 2, ' ');
    }
    if (object) out += ProfileJson(key).dump() + ": ";
    out += value.dump();
    --left;
  }
  out += object ? '}' : ']';
}

// `used`: characters before the value on its line, beside the indent.
void Format(const ProfileJson& json, size_t indent, size_t used, std::string& out) {
  constexpr size_t kWidth = 100;
  if (!json.is_structured() || json.empty()) {
    out += json.dump();
    return;
  }
  bool flat = true;
  for (const auto& item : json) flat = flat && !item.is_structured();
  if (flat) {
    // A row of a table is one line however long; a figure's reference may stand on a second.
    const bool fits = indent + used + json.dump().size() < kWidth;
    FormatFlat(json, indent, !fits && json.is_object(), out);
    return;
  }
  const bool object = json.is_object();
  out += object ? "{\n" : "[\n";
  bool first = true;
  for (const auto& [key, value] : json.items()) {
    if (!first) out += ",\n";
    first = false;
    out.append(indent + 2, ' ');
    const std::string label = object ? ProfileJson(key).dump() + ": " : "";
    out += label;
    Format(value, indent + 2, label.size(), out);
  }
  out += '\n';
  out.append(indent, ' ');
  out += object ? '}' : ']';
}

// The name a section of a profile starts from, or "" if it is held in full.
std::string PartName(const ProfileJson& profile, std::string_view section) {
  const std::string key(section);
  if (!profile.is_object() || !profile.contains(key)) return "";
  const ProfileJson& part = profile[key];
  if (part.is_string()) return part.get<std::string>();
  if (part.is_object() && part.contains("base") && part["base"].is_string()) {
    return part["base"].get<std::string>();
  }
  return "";
}

}  // namespace

std::span<const PartKind> PartKinds() { return kPartKinds; }

std::vector<std::string> EmbeddedNames(std::string_view folder) {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : EmbeddedFiles()) {
    if (file.folder == folder) names.emplace_back(file.name);
  }
  return names;
}

std::string_view EmbeddedText(std::string_view folder, std::string_view name) {
  for (const EmbeddedFile& file : EmbeddedFiles()) {
    if (file.folder == folder && file.name == name) return file.json;
  }
  return {};
}

ProfileJson ParseJson(std::string_view text, std::string_view source) {
  RefuseEndless(text, source);
  try {
    return ProfileJson::parse(text);
  } catch (const ProfileJson::exception& error) {  // also numbers past a double
    ThrowUsage("{}: not valid JSON: {}", source, JsonErrorText(error.what()));
  }
}

ProfileJson ComposePart(const PartKind& kind, const ProfileJson& part, std::string_view source) {
  const std::string path(kind.section);
  if (part.is_string()) return NamedPart(kind, part.get<std::string>(), path, source);
  if (!part.is_object() || !part.contains("base")) return part;
  const ProfileJson& base = part["base"];
  if (!base.is_string()) {
    ThrowUsage("{}: {}.base: {} is not allowed; name a built-in {}", source, path, base.dump(),
               kind.section);
  }
  ProfileJson composed = NamedPart(kind, base.get<std::string>(), path + ".base", source);
  if (!composed.is_object()) {
    ThrowUsage("{}: {}.base: not allowed: a {} is a list; write it in full", source, path,
               kind.section);
  }
  Merge(composed, part);
  return composed;
}

ProfileJson ComposeProfile(ProfileJson profile, std::string_view source) {
  if (!profile.is_object()) {
    ThrowUsage("{}: a hardware profile is a JSON object, this is {}", source, profile.type_name());
  }
  for (const PartKind& kind : PartKinds()) {
    const std::string section(kind.section);
    if (profile.contains(section)) {
      profile[section] = ComposePart(kind, profile[section], source);
    }
  }
  if (profile.contains(kOtherGpus) && profile[kOtherGpus].is_array()) {
    for (ProfileJson& other : profile[kOtherGpus]) {
      if (!other.is_object() || !other.contains(std::string(kGpuKind.section))) continue;
      ProfileJson& gpu = other[std::string(kGpuKind.section)];
      gpu = ComposePart(kGpuKind, gpu, source);
    }
  }
  return profile;
}

std::string FormatProfileJson(const ProfileJson& json) {
  std::string out;
  Format(json, 0, 0, out);
  return out + "\n";
}

std::string ComposedText(std::string_view profile, std::string_view source) {
  return FormatProfileJson(ComposeProfile(ParseJson(profile, source), source));
}

std::string PartText(const PartKind& kind, const std::string& name) {
  return FormatProfileJson(ComposePart(kind, ProfileJson(name), name));
}

namespace {

std::vector<KnownGpu> ReadGpus() {
  std::vector<KnownGpu> gpus;
  for (const std::string& name : EmbeddedNames(kGpuKind.folder)) {
    const ProfileJson part = ComposePart(kGpuKind, ProfileJson(name), name);
    const ProfileJson& memory = part.at("memory");
    const auto scale = UnitScale(Dimension::kBytes, memory.at("unit").get<std::string>());
    KnownGpu& gpu = gpus.emplace_back();
    gpu.part = name;
    part.at("name").get_to(gpu.name);
    gpu.memory_bytes = memory.at("value").get<double>() * scale.value_or(1);
    if (part.contains("driver_names")) part.at("driver_names").get_to(gpu.driver_names);
  }
  return gpus;
}

std::vector<KnownMachine> ReadMachines() {
  std::vector<KnownMachine> machines;
  for (const std::string& name : EmbeddedNames("profiles")) {
    const ProfileJson json = ParseJson(EmbeddedText("profiles", name), name);
    machines.push_back(
        {name, PartName(json, kGpuKind.section), json.at("gpus").at("value").get<double>()});
  }
  return machines;
}

}  // namespace

const std::vector<KnownGpu>& KnownGpus() {
  static const std::vector<KnownGpu> gpus = ReadGpus();
  return gpus;
}

bool IsCard(const std::string& name) {
  const std::vector<KnownGpu>& gpus = KnownGpus();
  return std::any_of(gpus.begin(), gpus.end(),
                     [&](const KnownGpu& gpu) { return gpu.part == name; });
}

const std::vector<KnownMachine>& KnownMachines() {
  static const std::vector<KnownMachine> machines = ReadMachines();
  return machines;
}

std::string MachineOf(const std::string& part, double count) {
  std::string found;
  for (const KnownMachine& machine : KnownMachines()) {
    if (machine.gpu_part != part || machine.gpus != count) continue;
    if (machine.name.starts_with("dgx-") || machine.name.starts_with("hgx-")) return machine.name;
    if (found.empty()) found = machine.name;
  }
  return found;
}

}  // namespace zeroplan
