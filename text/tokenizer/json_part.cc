#include "text/tokenizer/json_part.h"

#include "core/base/limits.h"
#include "core/base/strings.h"

namespace zeroplan {

JsonPart::JsonPart(const JsonNode& node, std::string path, const std::string& file)
    : section_(&node, std::move(path), file) {
  type_ = RequiredString("type");
}

const JsonNode* JsonPart::Required(std::string_view key) {
  const JsonNode* node = section_.Raw(key);
  if (node == nullptr || node->is_null()) {
    section_.Fail(key, "is missing; get the file again");
  }
  return node;
}

bool JsonPart::RequiredBool(std::string_view key) {
  const JsonNode* node = Required(key);
  if (node->kind != JsonNode::Kind::kScalar || !node->scalar.is_boolean()) {
    section_.FailValue(key, "true or false");
  }
  return node->scalar.boolean();
}

bool JsonPart::Bool(std::string_view key, bool otherwise) {
  const JsonNode* node = section_.Raw(key);
  return node == nullptr || node->is_null() ? otherwise : RequiredBool(key);
}

int64_t JsonPart::RequiredInt(std::string_view key, int64_t max) {
  Required(key);
  return section_.Int(key, 0, max).value_or(0);
}

std::string JsonPart::RequiredString(std::string_view key) {
  const JsonNode* node = Required(key);
  if (!node->is_string()) section_.FailValue(key, "a string");
  return node->scalar.text();
}

std::string JsonPart::String(std::string_view key, std::string_view otherwise) {
  const JsonNode* node = section_.Raw(key);
  return node == nullptr || node->is_null() ? std::string(otherwise) : RequiredString(key);
}

char32_t JsonPart::RequiredCharacter(std::string_view key) {
  const std::string text = RequiredString(key);
  size_t at = 0;
  const char32_t character = text.empty() ? 0 : NextCodePoint(text, &at);
  if (text.empty() || at != text.size()) section_.FailValue(key, "one character");
  return character;
}

Pattern JsonPart::RequiredPattern(std::string_view key) {
  const JsonNode* node = Required(key);
  if (node->is_object() && node->members.size() == 1 && node->members[0].value.is_string()) {
    const auto& [kind, value] = node->members[0];
    if (kind == "String" && !value.scalar.text().empty()) return Pattern::Text(value.scalar.text());
    if (kind == "Regex") return Pattern::Expression(value.scalar.text(), Where(key));
  }
  section_.FailValue(key, "{\"String\": TEXT} or {\"Regex\": EXPRESSION}");
}

SplitBehavior JsonPart::Behavior(std::string_view key, std::string_view otherwise) {
  const std::optional<SplitBehavior> behavior = SplitBehaviorOf(String(key, otherwise));
  if (!behavior) {
    section_.FailValue(key, "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
  }
  return *behavior;
}

std::vector<JsonPart> JsonPart::RequiredParts(std::string_view key) {
  const JsonNode* node = Required(key);
  if (!node->is_array()) section_.FailValue(key, "a list");
  std::vector<JsonPart> parts;
  for (size_t i = 0; i < node->elements.size(); ++i) {
    parts.emplace_back(node->elements[i], fmt::format("{}.{}[{}]", section_.path(), key, i),
                       section_.source());
  }
  return parts;
}

void JsonPart::FailType(std::string_view known) const {
  section_.Fail("type", "{} is not supported; supported: {}", type_, known);
}

void JsonPart::CheckMade(std::string_view where, uint64_t made, uint64_t bytes) {
  if (made > MostMadeOf(bytes)) {
    ThrowUsage("{}: makes more than {} bytes of a text of {}; get the tokenizer again", where,
               MostMadeOf(bytes), bytes);
  }
}

void JsonPart::Done(size_t steps) const {
  if (steps > kMostTokenizerSteps) {
    section_.Fail("type", "{} is one of more than {} steps; get the file again", type_,
                  kMostTokenizerSteps);
  }
  const std::vector<std::string> unknown = section_.Unknown();
  if (!unknown.empty()) {
    section_.Fail(unknown[0], "{} asks for what is not supported with type {}; remove the key",
                  section_.Quote(unknown[0]), type_);
  }
}

}  // namespace zeroplan
