#include "core/config/reader_state.h"

#include <algorithm>

namespace zeroplan {

ReaderState::ReaderState(const JsonNode& root, std::string_view source,
                         const ReadContext& read_context)
    : context(read_context), root_node_(root), source_(source) {
  sections_.emplace_back(&root, "", source_, &problems_);
}

JsonSection& ReaderState::Open(JsonSection* parent, std::string_view key) {
  return OpenNode(parent->Value(key), *parent, key);
}

JsonSection& ReaderState::OpenNode(const JsonNode* node, JsonSection& parent,
                                   std::string_view key) {
  parent.Key(key).kind = JsonKey::Kind::kSection;
  std::string path =
      parent.path().empty() ? std::string(key) : parent.path() + "." + std::string(key);
  return sections_.emplace_back(node, std::move(path), source_, &problems_);
}

void ReaderState::Note(const JsonSection& section, std::string_view key, std::string_view text) {
  result.notes.push_back(section.Where(key) + std::string(text));
}

void ReaderState::Warn(const JsonSection& section, std::string_view key, std::string_view text) {
  result.warnings.push_back(section.Where(key) + std::string(text));
}

void ReaderState::NoEffect(JsonSection* section, std::string_view key, std::string_view why) {
  section->Key(key).about = fmt::format("No effect: {}.", why);
  const JsonNode* node = section->Value(key);
  if (node != nullptr && IsSwitchedOn(*node)) {
    Note(*section, key, fmt::format("has no effect: {}", why));
  }
}

void ReaderState::Reject(JsonSection* section, std::string_view key, std::string_view why,
                         std::string_view fix) {
  JsonKey& known = section->Key(key);
  known.refused = true;
  known.about = fmt::format("Not supported: {}; {}.", why, fix);
  const JsonNode* node = section->Value(key);
  if (node != nullptr && IsSwitchedOn(*node)) {
    section->Report(key, "{} is not supported: {}; {}", node->Quote(), why, fix);
  }
}

void ReaderState::OnlyDefault(JsonSection* section, std::string_view key, bool supported) {
  section->Key(key).about = fmt::format("Only {} is supported yet.", supported);
  const bool value = section->Bool(key).value_or(supported);
  if (value != supported) {
    section->Report(key, "{} is not supported yet; use {} or remove the key", value, supported);
  }
}

void ReaderState::ReportAt(std::string_view key, std::string_view message) {
  const JsonNode* node = &root_node_;
  for (size_t start = 0; start <= key.size();) {
    const size_t dot = std::min(key.find('.', start), key.size());
    const JsonNode* child = node->Find(key.substr(start, dot - start));
    if (child == nullptr) break;
    node = child;
    start = dot + 1;
  }
  AddProblem(node->line, fmt::format("{}:{}: {}: {}", source_, node->line, key, message));
}

void ReaderState::ThrowProblems() {
  std::stable_sort(problems_.begin(), problems_.end(),
                   [](const JsonProblem& a, const JsonProblem& b) { return a.line < b.line; });
  constexpr size_t kShown = 20;
  std::string text;
  for (size_t i = 0; i < std::min(problems_.size(), kShown); ++i) {
    text += (i == 0 ? "" : "\n") + problems_[i].text;
  }
  if (problems_.size() > kShown) {
    text += fmt::format("\nand {} more", problems_.size() - kShown);
  }
  throw Error(ExitCode::kUsage, text);
}

}  // namespace zeroplan
