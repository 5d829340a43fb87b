// The schema of DeepSpeed configs, from what their reader asks for.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/base/error.h"
#include "core/config/reader_state.h"
#include "planner/schemas/schema_json.h"
#include "planner/schemas/schemas.h"

namespace zeroplan {
namespace {

using Sections = std::vector<ConfigSection>;

// Numbers that are written as texts, as people do.
constexpr const char* kNumberText = "^[ ]*[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?[ ]*$";

// "[Aa][Dd][Aa][Mm]": regular expressions of schemas know no case.
std::string AnyCase(const std::string& word) {
  std::string pattern;
  for (const char c : word) {
    const bool small = c >= 'a' && c <= 'z', capital = c >= 'A' && c <= 'Z';
    if (!small && !capital) {
      pattern += c;
    } else {
      const char other = static_cast<char>(small ? c - 'a' + 'A' : c - 'A' + 'a');
      pattern += fmt::format("[{}{}]", small ? other : c, small ? c : other);
    }
  }
  return pattern;
}

SchemaJson NumberOf(const JsonKey& key, const char* type) {
  SchemaJson number = {{"type", type}, {"minimum", key.min}};
  // Past a double's whole numbers, and past a float, no limit is meant.
  const bool limited = key.max < static_cast<double>(std::numeric_limits<float>::max()) &&
                       key.max < static_cast<double>(kMaxInt);
  if (limited) number["maximum"] = key.max;
  return {{"anyOf", {std::move(number), {{"type", "string"}, {"pattern", kNumberText}}}}};
}

SchemaJson TextOf(const JsonKey& key) {
  if (key.words.empty()) return {{"type", "string"}};
  SchemaJson words = SchemaJson::array();
  for (const std::string& word : key.words) words.push_back(word);
  if (!key.any_case) return {{"enum", std::move(words)}};
  std::string pattern;
  for (const std::string& word : key.words) {
    pattern += (pattern.empty() ? "^(" : "|") + AnyCase(word);
  }
  // An editor offers the words as they are written here.
  return {{"anyOf", {{{"enum", std::move(words)}}, {{"pattern", pattern + ")$"}}}},
          {"type", "string"}};
}

// What IsSwitchedOn takes for off.
SchemaJson SwitchedOff() {
  const SchemaJson off = {false, 0, "", "none", "None", "false", "False"};
  return {{"anyOf",
           {{{"enum", off}},
            {{"type", "array"}, {"maxItems", 0}},
            {{"type", "object"}, {"maxProperties", 0}},
            {{"type", "object"},
             {"required", {"enabled"}},
             {"properties", {{"enabled", {{"enum", off}}}}}}}}};
}

class Writer {
 public:
  explicit Writer(const Sections& sections) : sections_(sections) {}

  // The section at `path` in full.
  SchemaJson Object(const std::string& path) const {
    SchemaJson object = ClosedObject();
    for (const JsonKey& key : Section(path).keys) {
      AddKey(object, key.name, Value(path.empty() ? key.name : path + "." + key.name, key),
             key.required);
    }
    return object;
  }

 private:
  const ConfigSection& Section(const std::string& path) const {
    const auto found = std::find_if(sections_.begin(), sections_.end(),
                                    [&](const ConfigSection& s) { return s.path == path; });
    ZEROPLAN_CHECK(found != sections_.end(), "no section {}", path);
    return *found;
  }

  // null and "auto" leave any key open.
  SchemaJson Value(const std::string& path, const JsonKey& key) const {
    SchemaJson value = Closed(path, key);
    if (!value.empty()) {
      value = {{"anyOf", {std::move(value), {{"enum", {nullptr, "auto"}}}}}};
      if (key.or_bool) value["anyOf"].push_back({{"type", "boolean"}});
    }
    if (!key.about.empty()) value["description"] = key.about;
    return value;
  }

  // What the key may be where it is not open; empty: anything.
  SchemaJson Closed(const std::string& path, const JsonKey& key) const {
    if (!key.form.empty()) return SchemaJson::parse(key.form);
    if (key.refused) return SwitchedOff();
    switch (key.kind) {
      case JsonKey::Kind::kAny:
        return SchemaJson::object();
      case JsonKey::Kind::kBool:
        return {{"anyOf",
                 {{{"type", "boolean"}},
                  {{"enum", {0, 1}}},
                  {{"type", "string"},
                   {"pattern", fmt::format("^({}|{}|0|1)$", AnyCase("true"), AnyCase("false"))}}}}};
      case JsonKey::Kind::kWhole:
        return NumberOf(key, "integer");
      case JsonKey::Kind::kNumber:
        return NumberOf(key, "number");
      case JsonKey::Kind::kText:
        return TextOf(key);
      case JsonKey::Kind::kSection:
        return Object(path);
    }
    return SchemaJson::object();
  }

  const Sections& sections_;
};

const JsonKey& KeyOf(const Sections& sections, std::string_view path, std::string_view name) {
  for (const ConfigSection& section : sections) {
    if (section.path != path) continue;
    for (const JsonKey& key : section.keys) {
      if (key.name == name) return key;
    }
  }
  ZEROPLAN_CHECK(false, "the reader asks for no {}.{}", path, name);
  return sections.front().keys.front();
}

// Parameters hang on the scheduler's type.
void AddSchedulers(const Sections& sections, SchemaJson& root) {
  SchemaJson& scheduler = root["properties"]["scheduler"]["anyOf"][0];
  scheduler["properties"]["params"] = SchemaJson::object();
  for (const std::string& type : KeyOf(sections, "scheduler", "type").words) {
    const Sections of_type =
        DescribeConfig(fmt::format(R"({{"scheduler":{{"type":"{}","params":{{}}}}}})", type));
    SchemaJson params = Writer(of_type).Object("scheduler.params");
    scheduler["allOf"].push_back(
        {{"if", {{"properties", {{"type", {{"const", type}}}}}, {"required", {"type"}}}},
         {"then",
          {{"properties",
            {{"params", {{"anyOf", {std::move(params), {{"enum", {nullptr, "auto"}}}}}}}}}}}});
  }
}

}  // namespace

std::string ConfigSchema() {
  const Sections sections = DescribeConfig("{}");
  SchemaJson root = SchemaHead("config", "DeepSpeed config, as zeroplan reads it");
  root["description"] = "As zeroplan config check ⟦strict⟧ takes it.";
  root.update(Writer(sections).Object(""));
  AddSchedulers(sections, root);
  // The old name of bf16.
  const Sections old = DescribeConfig(R"({"bfloat16":{}})");
  root["properties"]["bfloat16"] = {
      {"anyOf", {Writer(old).Object("bfloat16"), {{"enum", {nullptr, "auto"}}}}},
      {"description", "The old name of bf16."}};
  for (const std::string_view key : CommentKeys()) {
    root["properties"][std::string(key)] = SchemaJson::object();
  }
  root["patternProperties"] = {{"^_", SchemaJson::object()}};
  return SchemaText(root);
}

}  // namespace zeroplan
