#include "text/tokenizer/added_tokens.h"

#include <algorithm>
#include <limits>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/strings.h"
#include "text/tokenizer/unicode.h"

namespace zeroplan {
namespace {

bool Flag(JsonSection* section, std::string_view key, bool otherwise) {
  const JsonNode* node = section->Raw(key);
  if (node == nullptr) return otherwise;
  if (node->kind != JsonNode::Kind::kScalar || !node->scalar.is_boolean()) {
    section->FailValue(key, "true or false");
  }
  return node->scalar.boolean();
}

bool EndsWithWord(std::string_view text) {
  size_t at = PreviousStart(text, text.size());
  return IsRustWordCharacter(NextCodePoint(text, &at));
}

bool StartsWithWord(std::string_view text) {
  size_t at = 0;
  return IsRustWordCharacter(NextCodePoint(text, &at));
}

// Where the white space that ends at `end` starts.
size_t SpaceBefore(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t start = PreviousStart(text, end);
    size_t at = start;
    if (!Contains(WhiteSpace(), NextCodePoint(text, &at))) break;
    end = start;
  }
  return end;
}

// Where the white space that starts at `begin` ends.
size_t SpaceBehind(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t at = begin;
    if (!Contains(WhiteSpace(), NextCodePoint(text, &at))) break;
    begin = at;
  }
  return begin;
}

}  // namespace

const uint32_t* TextFinder::Child(uint32_t node, char byte) const {
  for (const auto& [known, child] : nodes_[node].children) {
    if (known == byte) return &child;
  }
  return nullptr;
}

void TextFinder::Add(const std::string& text, size_t value) {
  ZEROPLAN_CHECK(!text.empty());
  starts_[static_cast<uint8_t>(text[0])] = true;
  uint32_t node = 0;
  for (const char byte : text) {
    const uint32_t* child = Child(node, byte);
    if (child == nullptr) {
      nodes_[node].children.emplace_back(byte, static_cast<uint32_t>(nodes_.size()));
      node = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
    } else {
      node = *child;
    }
  }
  if (nodes_[node].value == kNone) nodes_[node].value = value;
}

std::optional<TextFinder::Found> TextFinder::Find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<uint8_t>(text[begin])]) continue;
    std::optional<Found> longest;
    uint32_t node = 0;
    for (size_t at = begin; at < text.size();) {
      const uint32_t* child = Child(node, text[at++]);
      if (child == nullptr) break;
      node = *child;
      if (nodes_[node].value != kNone) longest = {begin, at, nodes_[node].value};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

AddedToken ReadAddedToken(const JsonNode& node, const std::string& path, const std::string& file,
                          bool special) {
  JsonSection section(&node, path, file);
  AddedToken token;
  const JsonNode* content = section.Raw("content");
  if (content == nullptr || !content->is_string() || content->scalar.text().empty()) {
    section.Fail("content", "must be a text that is not empty; get the file again");
  }
  token.content = content->scalar.text();
  section.Raw("id");      // of a tokenizer.json, read there
  section.Raw("__type");  // how transformers marks one in a tokenizer_config.json
  token.special = Flag(&section, "special", special);
  token.single_word = Flag(&section, "single_word", false);
  token.lstrip = Flag(&section, "lstrip", false);
  token.rstrip = Flag(&section, "rstrip", false);
  token.normalized = Flag(&section, "normalized", false);
  if (const std::vector<std::string> unknown = section.Unknown(); !unknown.empty()) {
    section.Fail(unknown[0], "{} asks for what is not supported; remove the key",
                 section.Quote(unknown[0]));
  }
  return token;
}

AddedTokens AddedTokens::Read(const JsonNode* node, const std::string& file, const BpeModel& model,
                              const Normalizer& normalizer) {
  AddedTokens added;
  if (node == nullptr || node->is_null()) return added;
  if (!node->is_array()) {
    ThrowUsage("{}:{}: added_tokens: must be a list; get the file again", file, node->line);
  }
  for (size_t i = 0; i < node->elements.size(); ++i) {
    const JsonNode& element = node->elements[i];
    const std::string path = fmt::format("added_tokens[{}]", i);
    AddedToken token = ReadAddedToken(element, path, file, /*special=*/false);
    JsonSection section(&element, path, file);
    const std::optional<int64_t> id = section.Int("id", 0, std::numeric_limits<int32_t>::max() - 1);
    if (!id) section.Fail("id", "is missing; get the file again");
    token.id = static_cast<int32_t>(*id);
    const std::string where = fmt::format("{}:{}: {}", file, element.line, path);
    if (added.ByContent(token.content) != nullptr) {
      ThrowUsage("{}.content: {} is given twice; keep one of them", where,
                 PrintableText(token.content, 60));
    }
    const int32_t expected = added.IdOf(token.content, model);
    if (token.id != expected) {
      ThrowUsage(
          "{}.id: {} is not allowed: {} has the id {} by the vocabulary and the tokens before; "
          "get the file again",
          where, token.id, PrintableText(token.content, 60), expected);
    }
    if (added.ById(token.id) != nullptr) {
      ThrowUsage("{}.id: {} is given twice; get the file again", where, token.id);
    }
    added.Add(std::move(token), where + ".content", normalizer);
  }
  added.MakeFinders();
  return added;
}

// As `tokenizers` numbers them: by what there is, or behind all that there are.
int32_t AddedTokens::IdOf(const std::string& content, const BpeModel& model) const {
  if (const AddedToken* known = ByContent(content)) return known->id;
  if (const std::optional<int32_t> known = model.Find(content)) return *known;
  return std::max(id_end_, static_cast<int32_t>(model.vocab_count()));
}

void AddedTokens::AddMore(const std::vector<GivenToken>& tokens, const BpeModel& model,
                          const Normalizer& normalizer) {
  for (const GivenToken& given : tokens) {
    AddedToken token = given.token;
    token.id = IdOf(token.content, model);
    if (given.id && *given.id != token.id) {
      ThrowUsage(
          "{}: {} is not allowed: {} has the id {} by tokenizer.json and the tokens before, in "
          "transformers, too; get the files again",
          given.where, *given.id, PrintableText(token.content, 60), token.id);
    }
    Add(std::move(token), given.where, normalizer);
  }
  MakeFinders();
}

void AddedTokens::Add(AddedToken token, const std::string& where, const Normalizer& normalizer) {
  std::string buffer;
  token.shown = token.normalized ? normalizer.Apply(token.content, &buffer) : token.content;
  if (token.shown.empty()) {
    ThrowUsage("{}: {} is empty once it is normalized; set normalized to false", where,
               PrintableText(token.content, 60));
  }
  const auto known = by_content_.find(token.content);
  const size_t at = known == by_content_.end() ? tokens_.size() : known->second;
  const bool was_special = at < tokens_.size() && tokens_[at].special;
  if (!was_special) sought_.push_back({token.shown, at, token.special, token.normalized});
  token.special = token.special || was_special;
  if (at < tokens_.size()) {
    tokens_[at] = std::move(token);
    return;
  }
  by_id_.emplace(token.id, at);
  by_content_.emplace(token.content, at);
  id_end_ = std::max(id_end_, token.id + 1);
  tokens_.push_back(std::move(token));
}

// Special ones go first where two are looked for as the same text.
void AddedTokens::MakeFinders() {
  raw_ = normalized_ = TextFinder();
  has_raw_ = has_normalized_ = false;
  for (const bool special : {true, false}) {
    for (const Sought& sought : sought_) {
      if (sought.special != special) continue;
      (sought.normalized ? normalized_ : raw_).Add(sought.text, sought.token);
      (sought.normalized ? has_normalized_ : has_raw_) = true;
    }
  }
}

const AddedToken* AddedTokens::ById(int32_t id) const {
  const auto at = by_id_.find(id);
  return at == by_id_.end() ? nullptr : &tokens_[at->second];
}

const AddedToken* AddedTokens::ByContent(std::string_view content) const {
  const auto at = by_content_.find(std::string(content));
  return at == by_content_.end() ? nullptr : &tokens_[at->second];
}

std::vector<AddedTokens::Section> AddedTokens::Find(std::string_view text, bool normalized) const {
  std::vector<Section> sections;
  if (text.empty()) return sections;
  if (!(normalized ? has_normalized_ : has_raw_)) return {{0, text.size(), std::nullopt}};
  const TextFinder& finder = normalized ? normalized_ : raw_;
  size_t done = 0;
  size_t from = 0;
  while (const std::optional<TextFinder::Found> found = finder.Find(text, from)) {
    from = found->end;
    const AddedToken& token = tokens_[found->value];
    size_t begin = found->begin;
    size_t end = found->end;
    if (split_special_ && token.special) continue;
    if (token.single_word && ((begin > 0 && EndsWithWord(text.substr(0, begin))) ||
                              (end < text.size() && StartsWithWord(text.substr(end))))) {
      continue;
    }
    // What an earlier token took is not taken again.
    if (token.lstrip) begin = std::max(SpaceBefore(text, begin), done);
    if (token.rstrip) end = SpaceBehind(text, end);
    if (done < begin) sections.push_back({done, begin, std::nullopt});
    sections.push_back({begin, end, token.id});
    done = end;
  }
  if (done != text.size()) sections.push_back({done, text.size(), std::nullopt});
  return sections;
}

Sha256Digest AddedTokens::Digest() const {
  std::string all;
  for (const AddedToken& token : tokens_) {
    all += fmt::format("{} {} {} {} {} {} {}:{}", token.id, token.special, token.single_word,
                       token.lstrip, token.rstrip, token.normalized, token.content.size(),
                       token.content);
  }
  // What the tokens alone do not say.
  for (const Sought& sought : sought_) {
    const AddedToken& token = tokens_[sought.token];
    if (sought.special == token.special && sought.normalized == token.normalized) continue;
    all += fmt::format("as {} {} {}", sought.token, sought.special, sought.normalized);
  }
  if (split_special_) all += "split";
  return Sha256(all);
}

}  // namespace zeroplan
