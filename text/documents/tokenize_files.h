// Files of text as a file of tokens, and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files.h"
#include "text/documents/chat_template.h"
#include "text/documents/document_source.h"
#include "text/files/data_files.h"
#include "text/files/token_file.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {

// Documents as tokens, and which of these count in the loss.
struct EncodedDocument {
  std::vector<int32_t> ids;
  std::vector<uint8_t> counted;  // one an id, 1: counts; empty: all do
  uint64_t broken = 0;           // bytes that are no UTF-8
  // Of a record: members that nothing was made of, and what the chat template prints nothing of.
  std::vector<std::string> unused, unprinted;
};

// How documents are taken.
struct TextChoices {
  RecordNames names;           // of records: what members are called; empty: as the first has them
  bool train_on_all = false;   // all tokens count in the loss, not the answers alone
  bool special_tokens = true;  // those that the tokenizer puts around a text
  uint64_t skip_bad = 0;       // so many records that cannot be read are left out
};

// What counts:
//
//   text                    all
//   prompt and completion   the completion, and the end of the text
//   conversation            what the assistant says (ChatTemplate::Rendered); of a prompt and
//                           completion of messages, what it says in the completion
//
// A token that lies across a border counts. Text, and prompt with completion, have the special
// tokens around them that the tokenizer adds by itself (a token that begins a text, for most),
// unless they begin or end with these already, and end with `end_of_text`, which is added unless it
// is there. A conversation is what the template makes of it, and no token more.
class DocumentEncoder {
 public:
  // `end_of_text`: REQUIRED for what is no conversation; `chat` for conversations.
  DocumentEncoder(Tokenizer tokenizer, std::optional<int32_t> end_of_text,
                  std::optional<ChatTemplate> chat, const TextChoices& choices);

  // Thread-safe. REQUIRES: the document has no `more`. Throws Error(kUsage) starting with where the
  // document is from.
  EncodedDocument Encode(const RawDocument& document) const;

  // A text with `more`, handed to `sink` part by part, in order, encoded by `threads` threads: the
  // ids of all parts are those of the text. `read` hears of bytes that were read, and how many of
  // them are no UTF-8.
  void EncodeLong(RawDocument document, int threads,
                  const std::function<void(std::span<const int32_t> ids)>& sink,
                  const std::function<void(uint64_t bytes, uint64_t broken)>& read) const;

 private:
  EncodedDocument EncodeText(std::string_view text) const;
  EncodedDocument EncodeCompletion(const Record& record) const;
  EncodedDocument EncodeChat(Record* record, std::string_view where) const;
  // What stands before and behind the ids of a text, which begin and end with those.
  std::span<const int32_t> Before(std::span<const int32_t> begin) const;
  std::vector<int32_t> Behind(std::span<const int32_t> end) const;
  void Wrap(EncodedDocument* document) const;

  Tokenizer tokenizer_;
  std::optional<int32_t> end_of_text_;
  std::optional<ChatTemplate> chat_;
  TextChoices choices_;
};

TokenFileOrigin OriginOf(const Tokenizer& tokenizer);

// Throws Error(kUsage) naming `path` if its header names another tokenizer, or if it has a token
// that this tokenizer does not.
void CheckOrigin(const TokenFileExtent& extent, const std::filesystem::path& path,
                 const Tokenizer& tokenizer);

// The token that ends a text by the folder's tokenizer_config.json ("eos_token"); nullopt: there is
// no such file, or it names none. `path` as for Tokenizer::FromFile. Throws Error(kUsage) if it
// names one that the tokenizer does not have.
std::optional<int32_t> EndOfText(const std::filesystem::path& path, const Tokenizer& tokenizer);

struct TokenizeOptions {
  // The model's folder, or its tokenizer.json: beside that is the chat template.
  std::filesystem::path model;
  // The token that ends a text. Asked for once, and only if there is what is no conversation.
  std::function<int32_t()> end_of_text;
  TextChoices choices;
  int threads = 0;  // 0: one a processor
  IoHook* hook = nullptr;
  bool says_losses = true;  // SayLosses
};

struct TokenizedFiles {
  uint64_t documents = 0;
  uint64_t bytes = 0;  // of text files, and of records as they are written
  uint64_t tokens = 0;
  uint64_t counted = 0;      // tokens that count in the loss
  uint64_t uncounted = 0;    // documents of which no token does
  uint64_t skipped = 0;      // records that could not be read
  uint64_t broken = 0;       // bytes of texts that are no UTF-8
  bool prints_date = false;  // the chat template has a date in what it makes
  uint32_t token_bytes = 0;  // 2 or 4

  // Those of more files.
  void Add(const TokenizedFiles& other);
};
// "1200 tokens of 16 bits (300 count in the loss), 12 documents".
std::string Summary(const TokenizedFiles& done);

// Warns of what the tokens of `file` lack.
void SayLosses(const TokenFileLosses& losses, std::string_view file, const TextChoices& choices);

// Throws Error(kUsage) for a file whose bytes are no text to train on: compressed ones, tables,
// images and the like (RefuseNoText, TextCheck). All of the file is read.
void RefuseAsBytes(const std::filesystem::path& path);

// Each text file and each record (DocumentSource), also in files below a folder, is a document of
// `output`, with its loss mask (DocumentEncoder). Some documents at a time are in memory, of a long
// text some parts. Where stderr is a terminal, it shows how far it is. Lines say what records were
// taken for, which were left out, what of them is not trained on, and what the tokens lack
// (SayLosses), which `output` says, too.
// Throws Error(kUsage) naming file and line of what cannot be read, is no text (RefuseNoText), is
// empty altogether, is a token file already, or is a conversation where the model has no chat
// template, or is named as text and holds records; and, with `whole`, if no token counts or there
// is none.
TokenizedFiles TokenizeFiles(const Tokenizer& tokenizer,
                             std::span<const std::filesystem::path> files,
                             const TokenizeOptions& options, const std::filesystem::path& output,
                             bool whole = true);

// Throws Error(kUsage): no token of the data counts, of which `file` is the first.
[[noreturn]] void RefuseUncounted(const std::filesystem::path& file);

}  // namespace zeroplan
