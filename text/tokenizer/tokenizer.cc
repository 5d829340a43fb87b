#include "text/tokenizer/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/json_source.h"
#include "core/base/limits.h"
#include "core/base/long_work.h"
#include "core/base/strings.h"
#include "core/base/thread.h"
#include "text/files/mapped_file.h"
#include "text/tokenizer/bpe_model.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/side_files.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// The largest known has 35 MB (Gemma's).

// What one thread works with, kept from text to text.
struct Room {
  BpeModel::Room model;
  CutText cut;
  std::string normalized;
};

// Which bytes of a text are to be marked, and what marks there are so far.
struct Marking {
  std::vector<size_t> borders;  // begin, end, begin, ...: rising
  std::vector<uint8_t>* marks;  // one a token

  // The next token, of bytes [begin, end).
  void Mark(size_t begin, size_t end) {
    bool is = false;
    for (size_t i = 0; i < borders.size() && !is; i += 2) {
      is = std::max(begin, borders[i]) < std::min(end, borders[i + 1]);
    }
    marks->push_back(is ? 1 : 0);
  }

  // The same of a part of the text.
  Marking Within(size_t begin, size_t end) const {
    Marking part{{}, marks};
    for (size_t i = 0; i < borders.size(); i += 2) {
      const size_t first = std::max(begin, borders[i]);
      const size_t last = std::min(end, borders[i + 1]);
      if (first < last) part.borders.insert(part.borders.end(), {first - begin, last - begin});
    }
    return part;
  }

  template <typename Move>
  void MoveBorders(Move move) {
    for (size_t& border : borders) border = move(border);
  }
};

// Hands rooms out and takes them back: as many as threads ever encoded at once.
class Rooms {
 public:
  std::unique_ptr<Room> Take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Room>();
    std::unique_ptr<Room> room = std::move(free_.back());
    free_.pop_back();
    return room;
  }
  void Give(std::unique_ptr<Room> room) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(room));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Room>> free_;
};

// A value in one spelling: keys in order, no blanks.
void AppendCanonical(const JsonNode& node, std::string* out) {
  if (node.is_object()) {
    std::map<std::string_view, const JsonNode*> sorted;
    for (const auto& [key, value] : node.members) sorted.emplace(key, &value);
    *out += '{';
    for (const auto& [key, value] : sorted) {
      *out += fmt::format("{}:{}=", key.size(), key);
      AppendCanonical(*value, out);
    }
    *out += '}';
  } else if (node.is_array()) {
    *out += '[';
    for (const JsonNode& element : node.elements) {
      AppendCanonical(element, out);
      *out += ',';
    }
    *out += ']';
  } else {
    *out += node.scalar.Dump();
  }
}

void RefuseUnlessNull(JsonSection* root, std::string_view key, std::string_view why) {
  const JsonNode* node = root->Raw(key);
  if (node == nullptr || node->is_null()) return;
  root->Fail(key, "is not supported: {}; set it to null", why);
}

}  // namespace

struct Tokenizer::Parts {
  BpeModel model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  AddedTokens added;
  PostProcessor post_processor;
  Decoder decoder;
  bool as_bytes = false;  // pieces reach the model as bytes
  int32_t vocab_size = 0;
  int32_t file_vocab_size = 0;
  Sha256Digest digest{};
  mutable Rooms rooms;

  // `marking`: nullptr if nobody asks. `continues`: the text was cut before this part of it.
  std::vector<int32_t> Encode(std::string_view text, Marking* marking,
                              bool continues = false) const;
  struct Place {
    bool at_start = false;   // of the input
    bool continues = false;  // what was cut before it
  };
  void EncodeSection(std::string_view text, Place place, Room* room, Marking* marking,
                     std::vector<int32_t>* ids) const;
  void MarkPiece(const CutText& cut, const Piece& piece, std::span<const int32_t> ids,
                 Marking* marking) const;
  // The bytes of the text that the model was given for a token.
  size_t LengthOf(int32_t id) const;
  // nullptr: nothing of that token is shown.
  const std::string* Shown(int32_t id, bool skip_special_tokens) const;
};

std::vector<int32_t> Tokenizer::Parts::Encode(std::string_view text, Marking* marking,
                                              bool continues) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 16);
  std::unique_ptr<Room> room = rooms.Take();
  for (const AddedTokens::Section& section : added.Find(text, false)) {
    if (section.id) {
      ids.push_back(*section.id);
      if (marking != nullptr) marking->Mark(section.begin, section.end);
      continue;
    }
    std::optional<Marking> inner;
    if (marking != nullptr) inner = marking->Within(section.begin, section.end);
    const bool first = section.begin == 0;
    EncodeSection(text.substr(section.begin, section.end - section.begin),
                  {first && !continues, first && continues}, room.get(), inner ? &*inner : nullptr,
                  &ids);
  }
  rooms.Give(std::move(room));
  return ids;
}

void Tokenizer::Parts::EncodeSection(std::string_view text, Place place, Room* room,
                                     Marking* marking, std::vector<int32_t>* ids) const {
  const std::string_view given = text;
  text = normalizer.Apply(text, &room->normalized, place.continues);
  if (marking != nullptr && (text.data() != given.data() || text.size() != given.size())) {
    marking->MoveBorders([&](size_t border) {
      std::string buffer;
      const std::string_view start = normalizer.Apply(given.substr(0, border), &buffer);
      const size_t most = std::min(start.size(), text.size());
      return static_cast<size_t>(
          std::mismatch(start.begin(), start.begin() + static_cast<ptrdiff_t>(most), text.begin())
              .first -
          start.begin());
    });
  }
  for (const AddedTokens::Section& section : added.Find(text, true)) {
    if (section.id) {
      ids->push_back(*section.id);
      if (marking != nullptr) marking->Mark(section.begin, section.end);
      continue;
    }
    CutText& cut = room->cut;
    cut.Reset(text.substr(section.begin, section.end - section.begin),
              place.at_start && section.begin == 0);
    if (marking == nullptr) {
      pre_tokenizer.Run(as_bytes, &cut);
      for (size_t i = 0; i < cut.pieces().size(); ++i) {
        if (i % kPiecesUnheard == 0) ThrowIfInterrupted();
        model.Encode(cut.at(cut.pieces()[i]), as_bytes, &room->model, ids);
      }
      continue;
    }
    Marking inner = marking->Within(section.begin, section.end);
    cut.set_borders(inner.borders);
    pre_tokenizer.Run(as_bytes, &cut);
    inner.borders = cut.borders();
    for (const Piece& piece : cut.pieces()) {
      const size_t before = ids->size();
      model.Encode(cut.at(piece), as_bytes, &room->model, ids);
      MarkPiece(cut, piece, std::span(*ids).subspan(before), &inner);
    }
  }
}

void Tokenizer::Parts::MarkPiece(const CutText& cut, const Piece& piece,
                                 std::span<const int32_t> ids, Marking* marking) const {
  size_t length = 0;
  for (const int32_t id : ids) length += LengthOf(id);
  const bool known = length == cut.at(piece).size();  // not of what unk_token stands for
  size_t at = piece.begin;
  for (const int32_t id : ids) {
    const size_t end = known ? at + LengthOf(id) : piece.end;
    marking->Mark(at, end);
    if (known) at = end;
  }
}

size_t Tokenizer::Parts::LengthOf(int32_t id) const {
  const std::string* token = model.Token(id);
  if (token == nullptr) return 0;
  if (as_bytes) {  // each character spells a byte
    return static_cast<size_t>(std::count_if(token->begin(), token->end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    }));
  }
  return model.IsFallbackByte(id) ? 1 : token->size();
}

const std::string* Tokenizer::Parts::Shown(int32_t id, bool skip_special_tokens) const {
  const AddedToken* added_token = added.ById(id);
  const std::string* token = added_token != nullptr ? &added_token->shown : model.Token(id);
  if (token == nullptr || !skip_special_tokens) return token;
  const AddedToken* known = added.ByContent(*token);
  return known != nullptr && known->special ? nullptr : token;
}

Tokenizer Tokenizer::FromFile(const fs::path& path) {
  std::error_code ignored;
  const fs::path file = fs::is_directory(path, ignored) ? path / "tokenizer.json" : path;
  const MappedFile bytes = MappedFile::Open(file);
  if (bytes.size() > kMostTokenizerBytes) {
    ThrowUsage("{}: {} bytes; a tokenizer.json has at most {}", file.string(), bytes.size(),
               kMostTokenizerBytes);
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.bytes().data()), bytes.size());
  if (file.filename() != "tokenizer.json") return FromText(text, file.string());
  JsonNode document = ParseJsonText(text, file.string());
  const SideTokens side = ApplySideFiles(file.parent_path(), text, file.string(), &document);
  return FromDocument(document, file.string(), side);
}

Tokenizer Tokenizer::FromText(std::string_view text, const std::string& source) {
  return FromDocument(ParseJsonText(text, source), source, {});
}

Tokenizer Tokenizer::FromDocument(const JsonNode& document, const std::string& source,
                                  const SideTokens& side) {
  JsonSection root(&document, "", source);
  root.Raw("version");
  RefuseUnlessNull(&root, "truncation", "texts are encoded whole");
  RefuseUnlessNull(&root, "padding", "texts are encoded one by one");
  Normalizer normalizer = Normalizer::Read(root.Raw("normalizer"), source);
  PreTokenizer pre_tokenizer = PreTokenizer::Read(root.Raw("pre_tokenizer"), source);
  if (pre_tokenizer.asks_for_start() && normalizer.may_drop_start()) {
    root.Fail("pre_tokenizer",
              "prepend_scheme first is not supported after a normalizer that takes text away");
  }
  BpeModel model = BpeModel::Read(root.Raw("model"), source);
  AddedTokens added = AddedTokens::Read(root.Raw("added_tokens"), source, model, normalizer);
  const int32_t file_vocab_size = std::max(model.id_end(), added.id_end());
  for (const std::vector<GivenToken>& tokens : side.lists) {
    added.AddMore(tokens, model, normalizer);
  }
  if (side.split_special) added.SplitSpecial();
  PostProcessor post_processor = PostProcessor::Read(root.Raw("post_processor"), source);
  Decoder decoder = Decoder::Read(root.Raw("decoder"), source);
  if (const std::vector<std::string> unknown = root.Unknown(); !unknown.empty()) {
    root.Fail(unknown[0], "{} asks for what is not supported; remove the key",
              root.Quote(unknown[0]));
  }
  const bool as_bytes = pre_tokenizer.ends_in_bytes() && model.has_all_bytes();
  const int32_t vocab_size = std::max(model.id_end(), added.id_end());

  std::string all = "zeroplan tokenizer 1 ";
  all += AsText(model.Digest());
  all += AsText(added.Digest());
  for (const char* key : {"normalizer", "pre_tokenizer"}) {
    const JsonNode* node = document.Find(key);
    if (node != nullptr) AppendCanonical(*node, &all);
    all += ';';
  }
  all += fmt::format("{} {}", fmt::join(post_processor.before, ","),
                     fmt::join(post_processor.behind, ","));
  return Tokenizer(std::shared_ptr<const Parts>(
      new Parts{std::move(model), std::move(normalizer), std::move(pre_tokenizer), std::move(added),
                std::move(post_processor), std::move(decoder), as_bytes, vocab_size,
                file_vocab_size, Sha256(all), Rooms()}));
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, bool add_special_tokens) const {
  std::string replaced;
  if (!IsValidUtf8(text)) {
    replaced = ReplaceInvalidUtf8(text);
    text = replaced;
  }
  std::vector<int32_t> ids = parts_->Encode(text, nullptr);
  if (add_special_tokens) {
    const PostProcessor& around = parts_->post_processor;
    ids.insert(ids.begin(), around.before.begin(), around.before.end());
    ids.insert(ids.end(), around.behind.begin(), around.behind.end());
  }
  return ids;
}

std::vector<int32_t> Tokenizer::EncodeMarked(std::string_view text, std::span<const TextSpan> spans,
                                             std::vector<uint8_t>* marked) const {
  marked->clear();
  Marking marking{{}, marked};
  for (const TextSpan& span : spans) {
    marking.borders.push_back(span.begin);
    marking.borders.push_back(span.end);
  }
  std::vector<int32_t> ids = parts_->Encode(text, &marking);
  ZEROPLAN_CHECK(ids.size() == marked->size(), "{} ids, {} marks", ids.size(), marked->size());
  return ids;
}

std::vector<int32_t> Tokenizer::EncodePart(std::string_view part, bool continues) const {
  if (IsValidUtf8(part)) return parts_->Encode(part, nullptr, continues);
  return parts_->Encode(ReplaceInvalidUtf8(part), nullptr, continues);
}

std::optional<size_t> Tokenizer::CutBefore(std::string_view text, size_t to) const {
  constexpr size_t kAround = 2048;           // bytes on either side that are compared
  constexpr size_t kBack = size_t{1} << 16;  // so far before `to` it is looked for
  constexpr int kTries = 32;
  const auto is_space = [&](size_t at) {
    return text[at] == ' ' || (text[at] >= '\t' && text[at] <= '\r');
  };
  int tries = 0;
  for (size_t at = to; at-- > 1 && to - at <= kBack && tries < kTries;) {
    if (at + 1 >= text.size()) continue;
    const bool before_blank = text[at] == ' ' && !is_space(at - 1) && !is_space(at + 1);
    const bool behind_line = text[at - 1] == '\n' && !is_space(at);
    if (!before_blank && !behind_line) continue;
    ++tries;
    size_t begin = at > kAround ? at - kAround : 0;
    size_t end = std::min(at + kAround, text.size());
    const auto within = [&](size_t i) {
      return i < text.size() && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;
    };
    while (begin > 0 && within(begin)) --begin;
    while (within(end)) ++end;
    std::vector<int32_t> apart = EncodePart(text.substr(begin, at - begin), begin > 0);
    const std::vector<int32_t> behind = EncodePart(text.substr(at, end - at), true);
    apart.insert(apart.end(), behind.begin(), behind.end());
    if (apart == EncodePart(text.substr(begin, end - begin), begin > 0)) return at;
  }
  return std::nullopt;
}

const std::vector<int32_t>& Tokenizer::special_before() const {
  return parts_->post_processor.before;
}

const std::vector<int32_t>& Tokenizer::special_behind() const {
  return parts_->post_processor.behind;
}

std::vector<std::vector<int32_t>> Tokenizer::EncodeMany(std::span<const std::string_view> texts,
                                                        bool add_special_tokens,
                                                        int threads) const {
  std::vector<std::vector<int32_t>> all(texts.size());
  ParallelEach(texts.size(), threads,
               [&](size_t i) { all[i] = Encode(texts[i], add_special_tokens); });
  return all;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    const std::string* token = parts_->Shown(id, skip_special_tokens);
    if (token != nullptr) tokens.push_back(*token);
  }
  return parts_->decoder.Decode(std::move(tokens));
}

int32_t Tokenizer::vocab_size() const { return parts_->vocab_size; }

int32_t Tokenizer::file_vocab_size() const { return parts_->file_vocab_size; }

std::optional<int32_t> Tokenizer::TokenId(std::string_view token) const {
  const AddedToken* added = parts_->added.ByContent(token);
  if (added != nullptr) return added->id;
  return parts_->model.Find(token);
}

std::optional<std::string> Tokenizer::TokenText(int32_t id) const {
  const AddedToken* added = parts_->added.ById(id);
  const std::string* token = added != nullptr ? &added->content : parts_->model.Token(id);
  if (token == nullptr) return std::nullopt;
  return *token;
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const { return parts_->added.tokens(); }

bool Tokenizer::IsSpecial(int32_t id) const {
  const AddedToken* token = parts_->added.ById(id);
  return token != nullptr && token->special;
}

const Sha256Digest& Tokenizer::digest() const { return parts_->digest; }

TextStream::TextStream(Tokenizer tokenizer, bool skip_special_tokens)
    : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

std::string TextStream::PushBytes(const std::string& token) {
  bytes_ += Decoder::BytesOf(token);
  const size_t whole = bytes_.size() - IncompleteUtf8Tail(bytes_);
  std::string text = ReplaceInvalidUtf8(std::string_view(bytes_).substr(0, whole));
  bytes_.erase(0, whole);
  return text;
}

std::string TextStream::Push(int32_t id) {
  const Decoder& decoder = tokenizer_.parts_->decoder;
  const std::string* token = tokenizer_.parts_->Shown(id, skip_special_tokens_);
  if (token == nullptr) return "";
  if (decoder.joins_bytes()) return PushBytes(*token);
  pending_.push_back(*token);
  // A run of bytes becomes text as a whole.
  return decoder.is_settled_by_next() && !decoder.IsBytePart(*token) ? PushPending() : "";
}

std::string TextStream::PushPending() {
  const Decoder& decoder = tokenizer_.parts_->decoder;
  const std::string before = decoder.Decode(shown_);
  std::vector<std::string> all = shown_;
  all.insert(all.end(), pending_.begin(), pending_.end());
  const std::string text = decoder.Decode(all);
  ZEROPLAN_CHECK(text.starts_with(before));
  // What a decoder does at the start of a text is done once there is some: then the last tokens
  // that have any are context enough.
  shown_ = decoder.Decode(pending_).empty() ? std::move(all) : std::move(pending_);
  pending_.clear();
  return text.substr(before.size());
}

std::string TextStream::Finish() {
  std::string text = ReplaceInvalidUtf8(bytes_);
  if (!pending_.empty()) text += PushPending();
  bytes_.clear();
  shown_.clear();
  return text;
}

namespace {

namespace fs = std::filesystem;

// nullopt: there is no such file, or it does not say.
std::optional<std::vector<int32_t>> ReadStopTokens(const fs::path& file, int64_t vocab) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return std::nullopt;
  const JsonNode document = ParseJsonText(ReadTextFile(file), file.string());
  JsonSection section(&document, "", file.string());
  const JsonNode* value = section.Value("eos_token_id");
  if (value == nullptr) return std::nullopt;
  std::vector<int32_t> tokens;
  const auto add = [&](const JsonNode& node) {
    const std::optional<double> number = ScalarNumber(node);
    if (!number || *number < 0 || *number != static_cast<double>(static_cast<int64_t>(*number)) ||
        *number > std::numeric_limits<int32_t>::max()) {
      section.Fail("eos_token_id", "{} is no token; use its number, or a list of numbers",
                   node.Quote());
    }
    if (*number < static_cast<double>(vocab)) tokens.push_back(static_cast<int32_t>(*number));
  };
  if (value->is_array()) {
    for (const JsonNode& item : value->elements) add(item);
  } else {
    add(*value);
  }
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

}  // namespace

std::vector<int32_t> StopTokensOf(const fs::path& folder, int64_t vocab) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (auto tokens = ReadStopTokens(folder / name, vocab)) return *std::move(tokens);
  }
  return {};
}

void ParallelEach(size_t count, int threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  size_t failed = count;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) {
          failed = i;
          failure = std::current_exception();
        }
        next = count;
      }
    }
  };
  size_t runners = threads > 0 ? static_cast<size_t>(threads)
                               : std::max<size_t>(1, std::thread::hardware_concurrency());
  runners = std::min(runners, count);
  {
    const std::vector<std::jthread> others = StartHelpers(std::max<size_t>(1, runners) - 1, run);
    run();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace zeroplan
