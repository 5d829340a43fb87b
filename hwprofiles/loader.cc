#include "hwprofiles/loader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/strings.h"
#include "hwprofiles/field_reader.h"
#include "hwprofiles/parts.h"
#include "hwprofiles/sanity.h"

namespace zeroplan {
namespace {

bool LooksLikePath(const std::string& text) {
  return text.find('/') != std::string::npos || text.ends_with(".json");
}

std::string ReadFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    ThrowUsage(
        "@@hw: cannot read \"{}\"; give a built-in name (see 'zeroplan hw list') or a readable "
        ".json "
        "file",
        path);
  }
  return ReadTextFile(path);
}

[[noreturn]] void FailName(std::string_view option, const std::string& name,
                           const std::vector<std::string>& names) {
  // Built-in GPUs and machines are named by their model: "h100" is in "h100-80gb-sxm".
  std::string lower = name;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::vector<std::string> matches;
  for (const std::string& known : names) {
    if (known.find(lower) != std::string::npos) matches.push_back(known);
  }
  if (matches.size() > 1) {
    ThrowUsage("{}: \"{}\" is {} of the built-in hardware profiles; use one of {}", option, name,
               matches.size(), fmt::join(matches, ", "));
  }
  const std::string hint = matches.empty() ? NearestName(lower, names) : matches.front();
  ThrowUsage(
      "{}: \"{}\" is no built-in hardware profile{}; use a name of 'zeroplan hw list' or the path "
      "of "
      "a .json file",
      option, name, hint.empty() ? "" : fmt::format(" (did you mean {}?)", hint));
}

}  // namespace

HardwareProfile ParseProfile(std::string_view json, std::string_view source) {
  FigureReader reader(json, source);
  const std::string schema = reader.Text("schema");
  if (schema != kProfileSchema) {
    reader.Fail("schema", fmt::format("\"{}\" is not allowed; use \"{}\"", schema, kProfileSchema));
  }
  HardwareProfile profile;
  profile.source = source;
  ReadFields(reader, profile);
  reader.RefuseUnread();
  if (const auto problem = FindContradiction(profile)) reader.Fail(problem->key, problem->message);
  return profile;
}

NetworkProfile LoadNetwork(const std::string& name) {
  FigureReader reader(fmt::format(R"({{"network": "{}"}})", name), "built in");
  NetworkProfile network;
  ReadFields(reader, network);
  return network;
}

std::vector<std::string> NetworkNames() { return EmbeddedNames("networks"); }

std::vector<std::string> ProfileNames() { return EmbeddedNames("profiles"); }

HardwareProfile LoadProfile(const std::string& name_or_file) {
  const std::string_view text = EmbeddedText("profiles", name_or_file);
  if (!text.empty()) return ParseProfile(text, "built in");
  if (!LooksLikePath(name_or_file)) FailName("@@hw", name_or_file, ProfileNames());
  return ParseProfile(ReadFile(name_or_file), name_or_file);
}

std::string ProfileText(const std::string& name_or_file) {
  std::string_view text = EmbeddedText("profiles", name_or_file);
  if (text.empty()) {
    for (const PartKind& kind : PartKinds()) {
      if (EmbeddedText(kind.folder, name_or_file).empty()) continue;
      return PartText(kind, name_or_file);
    }
    if (!LooksLikePath(name_or_file)) {
      std::vector<std::string> names = ProfileNames();
      for (const PartKind& kind : PartKinds()) {
        for (std::string& name : EmbeddedNames(kind.folder)) names.push_back(std::move(name));
      }
      std::sort(names.begin(), names.end());
      names.erase(std::unique(names.begin(), names.end()), names.end());
      FailName("hw show", name_or_file, names);
    }
    const std::string file = ReadFile(name_or_file);
    ParseProfile(file, name_or_file);  // throws if it is none
    return ComposedText(file, name_or_file);
  }
  return ComposedText(text, name_or_file);
}

}  // namespace zeroplan
