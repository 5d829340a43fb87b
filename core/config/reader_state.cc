#include "core/config/reader_state.h"

#include <algorithm>

namespace zeroplan {

ReaderState::ReaderState(const JsonNode& root, std::string_view source,
                         const ReadContext& read_context)
    : context(read_context), root_node_(root), source_(source) {
  sections_.emplace_back(&root, "", source_);
}

JsonSection& ReaderState::Open(JsonSection* parent, std::string_view key) {
  return OpenNode(parent->Value(key), *parent, key);
}

JsonSection& ReaderState::OpenNode(const JsonNode* node, const JsonSection& parent,
                                   std::string_view key) {
  std::string path =
      parent.path().empty() ? std::string(key) : parent.path() + "." + std::string(key);
  return sections_.emplace_back(node, std::move(path), source_);
}

void ReaderState::Note(const JsonSection& section, std::string_view key, std::string_view text) {
  result.notes.push_back(section.Where(key) + std::string(text));
}

void ReaderState::NoEffect(JsonSection* section, std::string_view key, std::string_view why) {
  const JsonNode* node = section->Value(key);
  if (node != nullptr && IsSwitchedOn(*node)) {
    Note(*section, key, fmt::format("has no effect: {}", why));
  }
}

void ReaderState::Reject(JsonSection* section, std::string_view key, std::string_view why,
                         std::string_view fix) {
  const JsonNode* node = section->Value(key);
  if (node != nullptr && IsSwitchedOn(*node)) {
    section->Fail(key, "{} is not supported: {}; {}", node->Quote(), why, fix);
  }
}

void ReaderState::OnlyDefault(JsonSection* section, std::string_view key, bool supported) {
  const bool value = section->Bool(key).value_or(supported);
  if (value != supported) {
    section->Fail(key, "{} is not supported yet; use {} or remove the key", value, supported);
  }
}

void ReaderState::FailAt(std::string_view problem_key, std::string_view message) const {
  const JsonNode* node = &root_node_;
  for (size_t start = 0; start <= problem_key.size();) {
    const size_t dot = std::min(problem_key.find('.', start), problem_key.size());
    const JsonNode* child = node->Find(problem_key.substr(start, dot - start));
    if (child == nullptr) break;
    node = child;
    start = dot + 1;
  }
  ThrowUsage("{}:{}: {}: {}", source_, node->line, problem_key, message);
}

}  // namespace zeroplan
