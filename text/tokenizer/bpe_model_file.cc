// Reading a BpeModel.
#include <algorithm>
#include <iterator>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/strings.h"
#include "text/tokenizer/bpe_model.h"
#include "text/tokenizer/unicode.h"

namespace zeroplan {
namespace {

constexpr int64_t kMostGaps = 1 << 20;  // ids without a token

bool FlagOrNull(JsonSection* section, std::string_view key) {
  const JsonNode* node = section->Raw(key);
  if (node == nullptr || node->is_null()) return false;
  if (node->kind != JsonNode::Kind::kScalar || !node->scalar.is_boolean()) {
    section->FailValue(key, "true or false");
  }
  return node->scalar.boolean();
}

// Refuses what is not empty: no tokenizer of the families that zeroplan trains has it.
void RefuseUnlessEmpty(JsonSection* section, std::string_view key) {
  const JsonNode* node = section->Raw(key);
  if (node == nullptr || node->is_null() || (node->is_string() && node->scalar.text().empty())) {
    return;
  }
  section->Fail(key, "{} is not supported; only null or \"\" is", section->Quote(key));
}

void RefuseDropout(JsonSection* section) {
  const JsonNode* node = section->Raw("dropout");
  if (node == nullptr || node->is_null() ||
      (node->kind == JsonNode::Kind::kScalar && node->scalar == 0.0)) {
    return;
  }
  section->Fail("dropout", "{} is not supported: ids would be random; set it to null",
                section->Quote("dropout"));
}

// Streams what ids depend on into a hash, in a form that has one reading: lengths come first.
void AddText(std::string_view text, std::string* out) {
  fmt::format_to(std::back_inserter(*out), "{}:", text.size());
  *out += text;
}

}  // namespace

BpeModel BpeModel::Read(const JsonNode* node, const std::string& file) {
  if (node == nullptr || node->is_null()) {
    ThrowUsage("{}: model: is missing; name a tokenizer.json, or get the file again", file);
  }
  JsonSection section(node, "model", file);
  const JsonNode* type = section.Raw("type");
  if (type != nullptr && !(type->is_string() && type->scalar == "BPE")) {
    section.Fail("type", "{} is not supported; only BPE is", section.Quote("type"));
  }
  BpeModel model;
  model.file_ = file;
  RefuseDropout(&section);
  RefuseUnlessEmpty(&section, "continuing_subword_prefix");
  RefuseUnlessEmpty(&section, "end_of_word_suffix");
  model.fuse_unk_ = FlagOrNull(&section, "fuse_unk");
  model.byte_fallback_ = FlagOrNull(&section, "byte_fallback");
  model.ignore_merges_ = FlagOrNull(&section, "ignore_merges");
  if (const JsonNode* unk = section.Raw("unk_token"); unk != nullptr && !unk->is_null()) {
    if (!unk->is_string()) section.FailValue("unk_token", "a token or null");
    model.unk_token_ = unk->scalar.text();
  }
  const JsonNode* vocab = section.Raw("vocab");
  if (vocab == nullptr || !vocab->is_object() || vocab->members.empty()) {
    section.Fail("vocab", "must be an object with a number for each token; get the file again");
  }
  model.ReadVocab(*vocab, section.Where("vocab"));
  const JsonNode* merges = section.Raw("merges");
  if (merges == nullptr || !merges->is_array()) {
    section.Fail("merges", "must be a list of pairs of tokens; get the file again");
  }
  model.ReadMerges(*merges, fmt::format("{}: model.merges", file));
  if (const std::vector<std::string> unknown = section.Unknown(); !unknown.empty()) {
    section.Fail(unknown[0], "{} asks for what is not supported; remove the key",
                 section.Quote(unknown[0]));
  }
  model.IndexCharacters();
  return model;
}

void BpeModel::ReadVocab(const JsonNode& vocab, const std::string& where) {
  std::vector<int32_t> ids;
  int64_t end = 0;
  const auto most = static_cast<int64_t>(vocab.members.size()) + kMostGaps;
  for (const auto& [token, value] : vocab.members) {
    const bool is_number = value.kind == JsonNode::Kind::kScalar && value.scalar.is_number();
    const double id = is_number ? value.scalar.number() : -1;
    if (id < 0 || id >= static_cast<double>(most) ||
        id != static_cast<double>(static_cast<int64_t>(id))) {
      ThrowUsage("{}{}: {} is no id; use a whole number from 0 to {}", where,
                 PrintableText(token, 60), value.Quote(), most - 1);
    }
    ids.push_back(static_cast<int32_t>(id));
    end = std::max(end, static_cast<int64_t>(id) + 1);
  }
  tokens_.resize(static_cast<size_t>(end));
  std::vector<bool> taken(tokens_.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<size_t>(ids[i]);
    if (taken[id]) {
      ThrowUsage("{}{}: {} is the id of {} too; give each token its own", where,
                 PrintableText(vocab.members[i].key, 60), id, PrintableText(tokens_[id], 60));
    }
    taken[id] = true;
    tokens_[id] = vocab.members[i].key;
  }
  ids_.reserve(ids.size());
  for (const int32_t id : ids) ids_.emplace(tokens_[static_cast<size_t>(id)], id);
}

void BpeModel::ReadMerges(const JsonNode& merges, const std::string& where) {
  merges_ = MergeTable(merges.elements.size());
  std::string made, digested;
  uint32_t rank = 0;
  for (size_t i = 0; i < merges.elements.size(); ++i) {
    const JsonNode& node = merges.elements[i];
    const auto fail = [&](std::string_view what) {
      ThrowUsage("{}[{}]: {} {}; get the file again", where, i, node.Quote(), what);
    };
    std::string_view left, right;
    if (node.is_string()) {
      const std::string_view text = node.scalar.text();
      if (text.starts_with("#version")) continue;
      const size_t blank = text.find(' ');
      if (blank == std::string_view::npos || text.find(' ', blank + 1) != std::string_view::npos) {
        fail("is not two tokens with one blank between them");
      }
      left = text.substr(0, blank);
      right = text.substr(blank + 1);
    } else if (node.is_array() && node.elements.size() == 2 && node.elements[0].is_string() &&
               node.elements[1].is_string()) {
      left = node.elements[0].scalar.text();
      right = node.elements[1].scalar.text();
    } else {
      fail("is no pair of tokens");
    }
    made.assign(left).append(right);
    const std::optional<int32_t> left_id = Find(left);
    const std::optional<int32_t> right_id = Find(right);
    const std::optional<int32_t> made_id = Find(made);
    if (!left_id || !right_id || !made_id) {
      ThrowUsage("{}[{}]: the token {} is not in model.vocab; get the file again", where, i,
                 PrintableText(!left_id    ? left
                               : !right_id ? right
                                           : std::string_view(made),
                               60));
    }
    merges_.Set(*left_id, *right_id, {rank++, *made_id});
    fmt::format_to(std::back_inserter(digested), "{} {} ", *left_id, *right_id);
    for (size_t at = 0; at < made.size();) {
      const char32_t before = NextCodePoint(made, &at);
      if (at < made.size()) {
        size_t next = at;
        neighbours_.Add(before, NextCodePoint(made, &next));
      }
    }
  }
  merges_digest_ = Sha256(digested);
}

void BpeModel::IndexCharacters() {
  ascii_ids_.fill(-1);
  for (int32_t id = 0; id < id_end(); ++id) {
    const std::string& token = tokens_[static_cast<size_t>(id)];
    if (token.empty() || Utf8Length(token[0]) != token.size()) continue;
    size_t at = 0;
    const char32_t c = NextCodePoint(token, &at);
    if (c < 0x80) {
      ascii_ids_[c] = id;
    } else {
      character_ids_.emplace(c, id);
    }
  }
  has_all_bytes_ = true;
  for (size_t b = 0; b < 256; ++b) {
    spelt_byte_ids_[b] = CharacterId(CharacterOfByte(static_cast<uint8_t>(b)));
    if (spelt_byte_ids_[b] < 0) has_all_bytes_ = false;
    fallback_ids_[b] = Find(fmt::format("<0x{:02X}>", b)).value_or(-1);
  }
  if (!ignore_merges_ || !has_all_bytes_) return;
  for (int32_t id = 0; id < id_end(); ++id) {
    const std::string& token = tokens_[static_cast<size_t>(id)];
    if (token.empty()) continue;
    if (std::optional<std::string> bytes = BytesOfSpelling(token)) {
      whole_pieces_.emplace(std::move(*bytes), id);
    }
  }
}

Sha256Digest BpeModel::Digest() const {
  std::string all = fmt::format("BPE {} {} {} {} ", ignore_merges_, byte_fallback_, fuse_unk_,
                                unk_token_.has_value());
  if (unk_token_) AddText(*unk_token_, &all);
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (Token(static_cast<int32_t>(id)) == nullptr) continue;
    fmt::format_to(std::back_inserter(all), "{} ", id);
    AddText(tokens_[id], &all);
  }
  all += AsText(merges_digest_);
  return Sha256(all);
}

}  // namespace zeroplan
