// Converts text to token ids and back, according to the tokenizer.json of a Hugging Face model
// folder: byte pair encoding over bytes (GPT-2, Llama 3, Qwen, SmolLM2) or over characters with a
// fallback to bytes (Llama 2, Mistral, TinyLlama). Ids are those of the PyPI package `tokenizers`
// (0.23.3).
//
// Unsupported settings of a file are refused by name, with two exceptions that nobody needs here:
// offsets of tokens in the text, and templates for pairs of texts.
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

// Thread-safe. Copies share the parsed data.
class Tokenizer {
 public:
  // `path`: a tokenizer.json, or its folder. A file of that name is read together with the files
  // next to it that affect ids (side_files.h). Throws Error(kUsage) naming file, line and key of a
  // part that cannot be read or is not supported.
  static Tokenizer FromFile(const std::filesystem::path& path);
  // Parses the text of such a file; `source`: its name in errors.
  static Tokenizer FromText(std::string_view text, const std::string& source);

  // The ids of `text`. Bytes that are not UTF-8 are read as U+FFFD, as in Python's
  // bytes.decode("utf-8", errors="replace"). Finds added tokens in the text, special ones too.
  // `add_special_tokens`: includes the tokens that the file's template puts around a text. Throws
  // Error(kUsage) for a character that neither the vocabulary nor the file's unk_token covers, and
  // for a regular expression that exceeds its limits.
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens) const;
  // The same without tokens around the text, and for each id 1 if it contains something of one of
  // `spans`, else 0. A token across a span's border does, as in transformers' assistant masks.
  // Characters that a normalizer joins across a border count as behind it. REQUIRES: `text` is
  // well-formed UTF-8; spans rise, do not overlap, and are within it.
  std::vector<int32_t> EncodeMarked(std::string_view text, std::span<const TextSpan> spans,
                                    std::vector<uint8_t>* marked) const;
  // Encodes long texts in parts. CutBefore: a place shortly before `to` where the text may be cut,
  // so that the concatenated ids of both parts are those of the text; nullopt if none was found.
  // The place is before a blank between two words, or at the begin of a line, and the text around
  // it has the same ids whole and cut, because pieces and merges look no further than that.
  // EncodePart: the ids of a part; `continues`: the text was cut before it. REQUIRES: to <=
  // text.size(); parts cut at CutBefore.
  std::optional<size_t> CutBefore(std::string_view text, size_t to) const;
  std::vector<int32_t> EncodePart(std::string_view part, bool continues) const;
  // The tokens that the file's template puts around a text (Encode's `add_special_tokens`).
  const std::vector<int32_t>& special_before() const;
  const std::vector<int32_t>& special_behind() const;
  // The ids of each text, in order, computed by `threads` threads (0: one a processor).
  std::vector<std::vector<int32_t>> EncodeMany(std::span<const std::string_view> texts,
                                               bool add_special_tokens, int threads) const;

  // The text of `ids`, well-formed UTF-8, with U+FFFD for invalid bytes. Leaves out unknown ids, as
  // `tokenizers` does.
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // The largest id + 1: the least vocabulary of a model.
  int32_t vocab_size() const;
  // The same without tokens that only the files next to the tokenizer.json add.
  int32_t file_vocab_size() const;
  // The id of a token by its spelling in the file ("Ġthe", "<|im_end|>").
  std::optional<int32_t> TokenId(std::string_view token) const;
  // nullopt: no token has that id.
  std::optional<std::string> TokenText(int32_t id) const;
  const std::vector<AddedToken>& added_tokens() const;
  bool IsSpecial(int32_t id) const;

  // Digest of everything in the files that determines ids, whatever their layout: two tokenizers of
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

// The text of tokens as they are generated: the concatenated results of Push and Finish are the
// result of Decode for all ids.
class TextStream {
 public:
  TextStream(Tokenizer tokenizer, bool skip_special_tokens);

  // The part of the text that is final after one more token: whole characters only. Nothing before
  // Finish if a decoder changes the end of a text or depends on later tokens.
  std::string Push(int32_t id);
  // The rest of the text. Afterwards a new text starts.
  std::string Finish();

 private:
  std::string PushBytes(const std::string& token);
  std::string PushPending();

  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  std::string bytes_;  // bytes of an incomplete character, for a decoder that joins bytes
  // Otherwise: the last tokens whose text was returned, and the later ones.
  std::vector<std::string> shown_, pending_;
};

// The tokens that end a text according to the model folder's files: "eos_token_id" (a token, or a
// list of them) of generation_config.json if set there, else of config.json, as in transformers.
// Rising; empty: neither sets any. Leaves out ids outside `vocab`, because a model of another size
// may have kept its family's. Throws Error(kUsage) naming file, line and key for anything else than
// tokens.
std::vector<int32_t> StopTokensOf(const std::filesystem::path& folder, int64_t vocab);

// Runs the same work for many items on several threads.

// Calls work(i) for each i in [0, count), smaller ones first, on `threads` threads (0: one a
// processor), including the caller's. Once a call has thrown no other starts; the exception of the
// call with the smallest i reaches the caller.
void ParallelEach(size_t count, int threads, const std::function<void(size_t)>& work);

}  // namespace zeroplan
