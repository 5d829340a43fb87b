// Text to token ids and back, as the tokenizer.json of a Hugging Face model folder says: byte pair
// encoding over bytes (GPT-2, Llama 3, Qwen, SmolLM2) or over characters with bytes to fall back on
// (Llama 2, Mistral, TinyLlama). Ids are those of the PyPI package `tokenizers` (0.23.3).
//
// What a file asks for that is not supported is refused by name, with two exceptions: offsets of
// tokens in the text, which nobody asks for, and templates for pairs of texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/hash.h"
#include "text/tokenizer/added_tokens.h"

namespace zeroplan {

struct SideTokens;

// Bytes [begin, end) of a text.
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
  friend bool operator==(const TextSpan&, const TextSpan&) = default;
};

// Thread-safe. Copies share what was read.
class Tokenizer {
 public:
  // `path`: a tokenizer.json, or the folder that has it. A file of that name counts with those
  // beside it that decide ids, too (side_files.h). Throws Error(kUsage) naming file, line and key
  // of what cannot be read or is not supported.
  static Tokenizer FromFile(const std::filesystem::path& path);
  // The text of such a file; `source` is what errors call it.
  static Tokenizer FromText(std::string_view text, const std::string& source);

  // The ids of `text`. Bytes that are no UTF-8 are read as U+FFFD, as Python's
  // bytes.decode("utf-8", errors="replace") puts them. Added tokens are found in the text, special
  // ones too. `add_special_tokens`: with those that the file's template puts around a text. Throws
  // Error(kUsage) for a character that neither the vocabulary nor the file's unk_token covers, and
  // for a regular expression that gives up.
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens) const;
  // The same without tokens around the text, and for each id 1 if it has something of one of
  // `spans`, else 0. A token that lies across a span's border has: as in transformers' assistant
  // masks. What a normalizer puts together across a border counts as behind it. REQUIRES: `text` is
  // well-formed UTF-8; spans rise, do not overlap, and lie within it.
  std::vector<int32_t> EncodeMarked(std::string_view text, std::span<const TextSpan> spans,
                                    std::vector<uint8_t>* marked) const;
  // Long texts in parts. CutBefore: a place shortly before `to` where the text may be cut: the ids
  // of both parts, one after the other, are those of the text; nullopt if none was found. It is
  // before a blank between two words, or where a line begins, and what lies around it has the same
  // ids whole and cut: pieces and merges look no further than that. EncodePart: the ids of a part;
  // `continues`: the text was cut before it. REQUIRES: to <= text.size(); parts cut at CutBefore.
  std::optional<size_t> CutBefore(std::string_view text, size_t to) const;
  std::vector<int32_t> EncodePart(std::string_view part, bool continues) const;
  // The tokens that the file's template puts around a text (Encode's `add_special_tokens`).
  const std::vector<int32_t>& special_before() const;
  const std::vector<int32_t>& special_behind() const;
  // The ids of each text, in order, made by `threads` threads (0: one a processor).
  std::vector<std::vector<int32_t>> EncodeMany(std::span<const std::string_view> texts,
                                               bool add_special_tokens, int threads) const;

  // The text of `ids`, well-formed UTF-8; U+FFFD stands for bytes that are none. Ids that no token
  // has are left out, as `tokenizers` does.
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // The largest id + 1: what a model's vocabulary must have at least.
  int32_t vocab_size() const;
  // The same without tokens that only the files beside the tokenizer.json add.
  int32_t file_vocab_size() const;
  // The id of a token by its spelling in the file ("Ġthe", "<|im_end|>").
  std::optional<int32_t> TokenId(std::string_view token) const;
  // nullopt: no token has that id.
  std::optional<std::string> TokenText(int32_t id) const;
  const std::vector<AddedToken>& added_tokens() const;
  bool IsSpecial(int32_t id) const;

  // Digest of everything in the files that decides ids, whatever their layout: two tokenizers of
  // one digest give the same ids for every text.
  const Sha256Digest& digest() const;

 private:
  friend class TextStream;
  struct Parts;

  explicit Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
  static Tokenizer FromDocument(const JsonNode& document, const std::string& source,
                                const SideTokens& side);

  std::shared_ptr<const Parts> parts_;
};

// Text of tokens as they are made: what Push and Finish return, one after the other, is what Decode
// makes of all ids.
class TextStream {
 public:
  TextStream(Tokenizer tokenizer, bool skip_special_tokens);

  // What is certain of the text with one token more: whole characters only. Nothing before Finish
  // where a decoder changes the end of a text or looks across tokens.
  std::string Push(int32_t id);
  // What is left. Afterwards a new text starts.
  std::string Finish();

 private:
  std::string PushBytes(const std::string& token);
  std::string PushPending();

  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  std::string bytes_;  // with a decoder that joins bytes: of a character that is not complete
  // Otherwise: the last tokens whose text was returned, and those after them.
  std::vector<std::string> shown_, pending_;
};

// The tokens that end a text, by the model folder's files: "eos_token_id" (a token, or a list of
// them) of generation_config.json, where that says it, else of config.json; as transformers has it.
// Rising; empty: neither says any. Ids outside `vocab` are left out: a model of another size may
// have kept its family's. Throws Error(kUsage) naming file, line and key for anything else than
// tokens.
std::vector<int32_t> StopTokensOf(const std::filesystem::path& folder, int64_t vocab);

// The same work for many things, on several threads.

// Calls work(i) for each i in [0, count), the small ones first, on `threads` threads (0: one a
// processor), of which the caller is one. Once a call has thrown no other starts; what the one with
// the smallest i threw reaches the caller.
void ParallelEach(size_t count, int threads, const std::function<void(size_t)>& work);

}  // namespace zeroplan
