#include "text/tokenizer/normalizer.h"

#include <array>
#include <utility>

#include "core/base/strings.h"
#include "text/tokenizer/unicode.h"

namespace zeroplan {
namespace {

constexpr std::array<std::pair<std::string_view, NormalForm>, 4> kNamedForms = {
    {{"NFC", NormalForm::kNfc},
     {"NFD", NormalForm::kNfd},
     {"NFKC", NormalForm::kNfkc},
     {"NFKD", NormalForm::kNfkd}}};

std::string_view StripLeft(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    if (!Contains(WhiteSpace(), NextCodePoint(text, &at))) return text.substr(start);
  }
  return {};
}

std::string_view StripRight(std::string_view text) {
  while (!text.empty()) {
    const size_t start = PreviousStart(text, text.size());
    size_t at = start;
    if (!Contains(WhiteSpace(), NextCodePoint(text, &at))) break;
    text = text.substr(0, start);
  }
  return text;
}

}  // namespace

Normalizer Normalizer::Read(const JsonNode* node, const std::string& file) {
  Normalizer normalizer;
  if (node != nullptr && !node->is_null()) normalizer.Add(JsonPart(*node, "normalizer", file));
  return normalizer;
}

void Normalizer::Add(JsonPart part) {
  const std::string& type = part.type();
  if (type == "Sequence") {
    for (JsonPart& inner : part.RequiredParts("normalizers")) Add(std::move(inner));
  } else if (type == "Prepend") {
    steps_.push_back(Prepend{part.RequiredString("prepend")});
  } else if (type == "Replace") {
    Pattern pattern = part.RequiredPattern("pattern");
    steps_.push_back(Replace{std::move(pattern), part.RequiredString("content")});
    if (std::get<Replace>(steps_.back()).content.empty()) may_drop_start_ = true;
  } else if (type == "Lowercase") {
    steps_.push_back(Lowercase{});
  } else if (type == "Strip") {
    Strip strip;
    strip.left = part.RequiredBool("strip_left");
    strip.right = part.RequiredBool("strip_right");
    steps_.push_back(strip);
    if (strip.left) may_drop_start_ = true;
  } else {
    bool known = false;
    for (const auto& [name, form] : kNamedForms) {
      if (type != name) continue;
      steps_.push_back(form);
      known = true;
    }
    if (!known) {
      part.FailType("Sequence, Prepend, Replace, NFC, NFD, NFKC, NFKD, Lowercase, Strip");
    }
  }
  part.Done();
}

// False if `text` stays as it is.
bool Normalizer::Run(const Step& step, std::string_view text, std::string* out) {
  if (const auto* prepend = std::get_if<Prepend>(&step)) {
    if (text.empty()) return false;
    out->reserve(prepend->text.size() + text.size());
    *out = prepend->text;
    *out += text;
  } else if (const auto* replace = std::get_if<Replace>(&step)) {
    *out = ReplaceMatches(text, replace->pattern, replace->content);
  } else if (const auto* form = std::get_if<NormalForm>(&step)) {
    if (IsInForm(text, *form)) return false;
    *out = NormalizeUnicode(text, *form);
  } else if (const auto* strip = std::get_if<Strip>(&step)) {
    if (strip->left) text = StripLeft(text);
    if (strip->right) text = StripRight(text);
    *out = text;
  } else {
    *out = LowerCase(text);
  }
  return true;
}

std::string_view Normalizer::Apply(std::string_view text, std::string* buffer) const {
  std::string next;
  for (const Step& step : steps_) {
    next.clear();
    if (!Run(step, text, &next)) continue;
    buffer->swap(next);
    text = *buffer;
  }
  return text;
}

}  // namespace zeroplan
