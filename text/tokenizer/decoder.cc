#include "text/tokenizer/decoder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/base/strings.h"
#include "text/tokenizer/unicode.h"

namespace zeroplan {
namespace {

// "ids" of each entry of "special_tokens".
std::map<std::string, std::vector<int32_t>> ReadIds(JsonPart* part) {
  std::map<std::string, std::vector<int32_t>> all;
  const JsonNode* node = part->Raw("special_tokens");
  if (node == nullptr || !node->is_object()) part->Fail("special_tokens", "must be an object");
  for (const auto& [name, value] : node->members) {
    const JsonNode* ids = value.Find("ids");
    if (ids == nullptr || !ids->is_array()) {
      part->Fail("special_tokens", "{} has no list of ids; get the file again", name);
    }
    for (const JsonNode& id : ids->elements) {
      const bool is_number = id.kind == JsonNode::Kind::kScalar && id.scalar.is_number();
      const double number = is_number ? id.scalar.number() : -1;
      if (number < 0 || number >= std::numeric_limits<int32_t>::max() ||
          number != static_cast<double>(static_cast<int32_t>(number))) {
        part->Fail("special_tokens", "{}: {} is no id; get the file again", name, id.Quote());
      }
      all[name].push_back(static_cast<int32_t>(number));
    }
  }
  return all;
}

}  // namespace

PostProcessor PostProcessor::Read(const JsonNode* node, const std::string& file) {
  PostProcessor post_processor;
  if (node != nullptr && !node->is_null()) {
    post_processor.Add(JsonPart(*node, "post_processor", file));
  }
  return post_processor;
}

void PostProcessor::Add(JsonPart part) {
  if (part.type() == "Sequence") {
    for (JsonPart& inner : part.RequiredParts("processors")) Add(std::move(inner));
  } else if (part.type() == "TemplateProcessing") {
    AddTemplate(&part);
  } else if (part.type() == "ByteLevel") {
    // It changes offsets, which nobody asks for.
    part.Bool("add_prefix_space", true);
    part.Bool("trim_offsets", true);
    part.Bool("use_regex", true);
  } else {
    part.FailType("Sequence, TemplateProcessing, ByteLevel");
  }
  part.Done();
}

void PostProcessor::AddTemplate(JsonPart* part) {
  const auto ids = ReadIds(part);
  part->Raw("pair");  // for two texts, which nobody gives
  const JsonNode* single = part->Raw("single");
  if (single == nullptr || !single->is_array()) part->Fail("single", "must be a list");
  std::vector<int32_t> first, second;
  bool seen_text = false;
  for (const JsonNode& piece : single->elements) {
    const JsonNode* token = piece.Find("SpecialToken");
    const JsonNode* text = piece.Find("Sequence");
    const JsonNode* named = token != nullptr ? token : text;
    const JsonNode* id = named != nullptr ? named->Find("id") : nullptr;
    if (id == nullptr || !id->is_string()) {
      part->Fail("single", "an entry is neither a SpecialToken nor a Sequence; get the file again");
    }
    if (token == nullptr) {
      if (seen_text || !(id->scalar == "A")) {
        part->Fail("single", "must have the text (Sequence A) once; get the file again");
      }
      seen_text = true;
      continue;
    }
    const auto at = ids.find(id->scalar.text());
    if (at == ids.end()) {
      part->Fail("single", "{} is not among special_tokens; get the file again", id->Quote());
    }
    std::vector<int32_t>& side = seen_text ? second : first;
    side.insert(side.end(), at->second.begin(), at->second.end());
    if (before.size() + behind.size() + side.size() > kMostTokensAround) {
      part->Fail("single", "puts more than {} tokens before or behind a text; get the file again",
                 kMostTokensAround);
    }
  }
  if (!seen_text) part->Fail("single", "must have the text (Sequence A) once; get the file again");
  before.insert(before.begin(), first.begin(), first.end());
  behind.insert(behind.end(), second.begin(), second.end());
}

namespace {

constexpr std::string_view kReplacementText = "\xEF\xBF\xBD";
constexpr int64_t kMostStripped = 1 << 20;

// The byte that "<0x1F>" stands for. A sign is taken for a digit, as Rust's from_str_radix has it.
std::optional<char> FallbackByte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  std::string_view digits = token.substr(3, 2);
  if (digits.starts_with('+')) digits.remove_prefix(1);
  unsigned value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return static_cast<char>(value);
}

// Runs of byte tokens become characters, or U+FFFD for each byte if they are no UTF-8.
std::vector<std::string> JoinFallbackBytes(const std::vector<std::string>& tokens) {
  std::vector<std::string> out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (IsValidUtf8(bytes)) {
      out.push_back(bytes);
    } else {
      out.insert(out.end(), bytes.size(), std::string(kReplacementText));
    }
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const std::optional<char> byte = FallbackByte(token)) {
      bytes += *byte;
      continue;
    }
    flush();
    out.push_back(token);
  }
  flush();
  return out;
}

std::string StripEnds(std::string_view token, std::string_view content, size_t start, size_t stop) {
  for (size_t i = 0; i < start && token.starts_with(content); ++i) {
    token.remove_prefix(content.size());
  }
  for (size_t i = 0; i < stop && token.ends_with(content); ++i) token.remove_suffix(content.size());
  return std::string(token);
}

std::string FromMetaspace(std::string_view token, std::string_view replacement, bool drops) {
  std::string out;
  size_t from = 0;
  for (size_t at = token.find(replacement); at != std::string_view::npos;
       at = token.find(replacement, from)) {
    out.append(token, from, at - from).append(drops ? "" : " ");
    from = at + replacement.size();
  }
  return out.append(token, from);
}

}  // namespace

Decoder Decoder::Read(const JsonNode* node, const std::string& file) {
  Decoder decoder;
  if (node == nullptr || node->is_null()) return decoder;
  decoder.is_set_ = true;
  decoder.where_ = file + ": decoder";
  decoder.Add(JsonPart(*node, "decoder", file));
  return decoder;
}

void Decoder::Add(JsonPart part) {
  const std::string& type = part.type();
  if (type == "Sequence") {
    for (JsonPart& inner : part.RequiredParts("decoders")) Add(std::move(inner));
  } else if (type == "ByteLevel") {
    part.Bool("add_prefix_space", true);
    part.Bool("trim_offsets", true);
    part.Bool("use_regex", true);
    steps_.push_back(ByteLevel{});
  } else if (type == "Replace") {
    Pattern pattern = part.RequiredPattern("pattern");
    steps_.push_back(Replace{std::move(pattern), part.RequiredString("content")});
  } else if (type == "ByteFallback") {
    steps_.push_back(ByteFallback{});
  } else if (type == "Fuse") {
    steps_.push_back(Fuse{});
  } else if (type == "Strip") {
    Strip strip;
    AppendUtf8(part.RequiredCharacter("content"), &strip.content);
    strip.start = static_cast<size_t>(part.RequiredInt("start", kMostStripped));
    strip.stop = static_cast<size_t>(part.RequiredInt("stop", kMostStripped));
    steps_.push_back(std::move(strip));
  } else if (type == "Metaspace") {
    Metaspace step;
    AppendUtf8(part.RequiredCharacter("replacement"), &step.replacement);
    part.String("str_rep", "");
    part.Bool("split", true);
    step.prepends = part.String("prepend_scheme", "always") != "never";
    if (!part.Bool("add_prefix_space", true)) step.prepends = false;
    steps_.push_back(std::move(step));
  } else {
    part.FailType("Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace");
  }
  part.Done(steps_.size());
}

std::string Decoder::BytesOf(const std::string& token) {
  return BytesOfSpelling(token).value_or(token);
}

void Decoder::Run(const Step& step, uint64_t bytes, std::vector<std::string>* tokens) const {
  if (std::holds_alternative<ByteLevel>(step)) {
    std::string all;
    for (const std::string& token : *tokens) all += BytesOf(token);
    *tokens = {ReplaceInvalidUtf8(all)};
  } else if (std::holds_alternative<ByteFallback>(step)) {
    *tokens = JoinFallbackBytes(*tokens);
  } else if (std::holds_alternative<Fuse>(step)) {
    *tokens = {fmt::format("{}", fmt::join(*tokens, ""))};
  } else if (const auto* replace = std::get_if<Replace>(&step)) {
    uint64_t made = 0;
    for (std::string& token : *tokens) {
      token = ReplaceMatches(token, replace->pattern, replace->content, MostMadeOf(bytes));
      made += token.size();
      JsonPart::CheckMade(where_, made, bytes);
    }
  } else if (const auto* strip = std::get_if<Strip>(&step)) {
    for (std::string& token : *tokens) {
      token = StripEnds(token, strip->content, strip->start, strip->stop);
    }
  } else {
    const auto& metaspace = std::get<Metaspace>(step);
    for (size_t i = 0; i < tokens->size(); ++i) {
      (*tokens)[i] =
          FromMetaspace((*tokens)[i], metaspace.replacement, i == 0 && metaspace.prepends);
    }
  }
}

std::string Decoder::Decode(std::vector<std::string> tokens) const {
  if (!is_set_) return fmt::format("{}", fmt::join(tokens, " "));
  uint64_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  for (const Step& step : steps_) Run(step, bytes, &tokens);
  return fmt::format("{}", fmt::join(tokens, ""));
}

bool Decoder::IsBytePart(const std::string& token) const {
  std::vector<std::string> tokens = {token};
  for (const Step& step : steps_) {
    if (std::holds_alternative<ByteFallback>(step)) return FallbackByte(tokens[0]).has_value();
    Run(step, token.size(), &tokens);
  }
  return false;
}

bool Decoder::is_settled_by_next() const {
  bool fused = false;
  bool looks_at_first = false;
  for (const Step& step : steps_) {
    if (std::holds_alternative<ByteLevel>(step)) return false;
    if (looks_at_first && std::holds_alternative<ByteFallback>(step)) return false;
    if (std::holds_alternative<Metaspace>(step)) looks_at_first = true;
    if (std::holds_alternative<Fuse>(step)) fused = true;
    const bool looks_at_tokens =
        std::holds_alternative<Replace>(step) || std::holds_alternative<Metaspace>(step);
    if (fused && looks_at_tokens) return false;
    const auto* strip = std::get_if<Strip>(&step);
    if (fused && strip != nullptr && strip->stop > 0) return false;
  }
  return true;
}

bool Decoder::joins_bytes() const {
  return steps_.size() == 1 && std::holds_alternative<ByteLevel>(steps_[0]);
}

}  // namespace zeroplan
