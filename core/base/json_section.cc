#include "core/base/json_section.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "core/base/strings.h"

namespace zeroplan {
namespace {

// The scalar's number, also where it is written as a string; null for anything else.
JsonScalar AsNumber(const JsonNode& node) {
  const std::optional<JsonScalar> scalar =
      node.is_string() ? ParseJsonScalar(node.scalar.text()) : node.scalar;
  return scalar && scalar->is_number() ? *scalar : JsonScalar();
}

std::optional<int64_t> AsInt(const JsonScalar& number) {
  if (const auto* count = std::get_if<uint64_t>(&number.value())) {
    if (*count > static_cast<uint64_t>(kMaxInt)) return std::nullopt;
    return static_cast<int64_t>(*count);
  }
  if (const auto* whole = std::get_if<int64_t>(&number.value())) return *whole;
  if (const auto* value = std::get_if<double>(&number.value())) {
    // 2^63 itself is a double, and past the range: hence the half-open test.
    constexpr double kTwo63 = 9223372036854775808.0;
    if (!(*value >= -kTwo63 && *value < kTwo63) || *value != std::floor(*value)) {
      return std::nullopt;
    }
    return static_cast<int64_t>(*value);
  }
  return std::nullopt;
}

}  // namespace

JsonSection::JsonSection(const JsonNode* node, std::string path, std::string source,
                         std::vector<JsonProblem>* problems)
    : node_(node), path_(std::move(path)), source_(std::move(source)), problems_(problems) {
  if (node_ == nullptr || node_->is_object()) return;
  const JsonNode& given = *node_;
  std::string text = fmt::format("{}:{}: {}{}{} is not allowed; use an object {{...}}", source_,
                                 given.line, path_, path_.empty() ? "" : ": ", given.Quote());
  if (problems_ == nullptr) throw Error(ExitCode::kUsage, text);
  problems_->push_back({given.line, std::move(text)});
  node_ = nullptr;
}

JsonKey& JsonSection::Key(std::string_view key) {
  const auto found = std::find(known_.begin(), known_.end(), key);
  if (found != known_.end()) return keys_[static_cast<size_t>(found - known_.begin())];
  known_.emplace_back(key);
  return keys_.emplace_back(JsonKey{std::string(key)});
}

const JsonNode* JsonSection::Raw(std::string_view key) {
  Key(key);
  return node_ == nullptr ? nullptr : node_->Find(key);
}

const JsonNode* JsonSection::Value(std::string_view key) {
  const JsonNode* node = Raw(key);
  if (node == nullptr || node->is_null()) return nullptr;
  if (node->is_string() && node->scalar.text() == "auto") return nullptr;
  return node;
}

bool JsonSection::IsAuto(std::string_view key) {
  const JsonNode* node = Raw(key);
  return node != nullptr && !node->is_null() && Value(key) == nullptr;
}

std::optional<bool> JsonSection::Bool(std::string_view key) {
  Key(key).kind = JsonKey::Kind::kBool;
  const JsonNode* node = Value(key);
  if (node == nullptr) return std::nullopt;
  if (node->kind == JsonNode::Kind::kScalar) {
    if (node->scalar.is_boolean()) return node->scalar.boolean();
    if (node->is_string()) {
      const std::string text = LowerAscii(node->scalar.text());
      if (text == "true") return true;
      if (text == "false") return false;
    }
    const std::optional<int64_t> number = AsInt(AsNumber(*node));
    if (number == 0) return false;
    if (number == 1) return true;
  }
  ReportValue(key, "true or false");
  return std::nullopt;
}

std::optional<int64_t> JsonSection::Int(std::string_view key, int64_t min, int64_t max,
                                        std::string_view allowed) {
  JsonKey& known = Key(key);
  known.kind = JsonKey::Kind::kWhole;
  known.min = static_cast<double>(min);
  known.max = static_cast<double>(max);
  const JsonNode* node = Value(key);
  if (node == nullptr) return std::nullopt;
  const std::optional<int64_t> value = AsInt(AsNumber(*node));
  if (value && *value >= min && *value <= max) return value;
  ReportValue(key, !allowed.empty() ? std::string(allowed)
                   : max == kMaxInt ? fmt::format("a whole number of at least {}", min)
                                    : fmt::format("a whole number from {} to {}", min, max));
  return std::nullopt;
}

std::optional<double> JsonSection::Number(std::string_view key, double min, double max,
                                          std::string_view allowed) {
  JsonKey& known = Key(key);
  known.kind = JsonKey::Kind::kNumber;
  known.min = min;
  known.max = max;
  const JsonNode* node = Value(key);
  if (node == nullptr) return std::nullopt;
  const JsonScalar number = AsNumber(*node);
  if (number.is_number()) {
    const double value = number.number();
    if (std::isfinite(value) && value >= min && value <= max) return value;
  }
  ReportValue(key, !allowed.empty() ? std::string(allowed)
                   : max >= std::numeric_limits<float>::max()
                       ? fmt::format("a number of at least {}", min)
                       : fmt::format("a number from {} to {}", min, max));
  return std::nullopt;
}

std::optional<std::string> JsonSection::String(std::string_view key, std::string_view allowed) {
  Key(key).kind = JsonKey::Kind::kText;
  const JsonNode* node = Value(key);
  if (node == nullptr) return std::nullopt;
  if (node->is_string()) return node->scalar.text();
  ReportValue(key, allowed.empty() ? "a string" : allowed);
  return std::nullopt;
}

std::optional<std::string> JsonSection::Word(std::string_view key,
                                             const std::vector<std::string>& words,
                                             std::string_view allowed, bool any_case) {
  const std::optional<std::string> text = String(key, allowed);
  JsonKey& known = Key(key);
  known.words = words;
  known.any_case = any_case;
  if (!text) return std::nullopt;
  for (const std::string& word : words) {
    if (*text == word || (any_case && LowerAscii(*text) == LowerAscii(word))) return word;
  }
  ReportValue(key, allowed);
  return std::nullopt;
}

std::vector<std::string> JsonSection::Unknown() const {
  std::vector<std::string> out;
  if (node_ == nullptr) return out;
  for (const auto& [key, value] : node_->members) {
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) out.push_back(key);
  }
  return out;
}

int JsonSection::LineOf(std::string_view key) const {
  const JsonNode* member = node_ == nullptr ? nullptr : node_->Find(key);
  return member != nullptr ? member->line : node_ != nullptr ? node_->line : 1;
}

std::string JsonSection::Where(std::string_view key) const {
  return fmt::format("{}:{}: {}{}{}: ", source_, LineOf(key), path_, path_.empty() ? "" : ".",
                     PrintableText(key, 80));
}

void JsonSection::Add(std::string_view key, const std::string& text) const {
  if (problems_ == nullptr) throw Error(ExitCode::kUsage, Where(key) + text);
  problems_->push_back({LineOf(key), Where(key) + text});
}

std::string JsonSection::Quote(std::string_view key) const {
  const JsonNode* member = node_ == nullptr ? nullptr : node_->Find(key);
  return member == nullptr ? "nothing" : member->Quote();
}

void JsonSection::ReportValue(std::string_view key, std::string_view allowed) const {
  Report(key, "{} is not allowed; use {}", Quote(key), allowed);
}

void JsonSection::FailValue(std::string_view key, std::string_view allowed) const {
  Fail(key, "{} is not allowed; use {}", Quote(key), allowed);
}

std::optional<double> ScalarNumber(const JsonNode& node) {
  const JsonScalar number = AsNumber(node);
  if (!number.is_number()) return std::nullopt;
  return number.number();
}

bool IsSwitchedOn(const JsonNode& node) {
  if (node.is_array()) return !node.elements.empty();
  if (node.is_object()) {
    const JsonNode* enabled = node.Find("enabled");
    return enabled != nullptr ? IsSwitchedOn(*enabled) : !node.members.empty();
  }
  if (node.scalar.is_boolean()) return node.scalar.boolean();
  if (node.is_string()) {
    const std::string text = LowerAscii(node.scalar.text());
    return text != "none" && text != "false" && text != "auto" && !text.empty();
  }
  return node.scalar.is_number() && node.scalar.number() != 0;
}

}  // namespace zeroplan
