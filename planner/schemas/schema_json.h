// Functions shared by the schemas. Internal to planner/schemas.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

using SchemaJson = nlohmann::ordered_json;

// The head of a schema: its draft, its name ("config") and title.
inline SchemaJson SchemaHead(std::string_view name, std::string_view title) {
  return {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
          {"$id", "urn:zeroplan:schema:" + std::string(name)},
          {"title", title}};
}

// An object without keys yet, which allows no other keys than those added.
inline SchemaJson ClosedObject() {
  return {
      {"type", "object"}, {"properties", SchemaJson::object()}, {"additionalProperties", false}};
}

// Adds `key` to a ClosedObject.
inline void AddKey(SchemaJson& object, const std::string& key, SchemaJson value, bool required) {
  object["properties"][key] = std::move(value);
  if (required) object["required"].push_back(key);
}

inline SchemaJson OneOf(const std::vector<std::string_view>& words) {
  SchemaJson list = SchemaJson::array();
  for (const std::string_view word : words) list.push_back(word);
  return {{"enum", std::move(list)}};
}

// `value`, or null.
inline SchemaJson OrNull(SchemaJson value) {
  return {{"anyOf", {std::move(value), {{"type", "null"}}}}};
}

inline std::string SchemaText(const SchemaJson& schema) { return schema.dump(1) + "\n"; }

}  // namespace zeroplan
