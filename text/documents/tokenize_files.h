// Converts files of text to a file of tokens, and back.
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

// A document as tokens, and which of them count in the loss.
struct EncodedDocument {
  std::vector<int32_t> ids;
  std::vector<uint8_t> counted;  // one for each id, 1: counts; empty: all do
  uint64_t broken = 0;           // bytes that are not UTF-8
  // For a record: members that are not used, and those of which the chat template prints nothing.
  std::vector<std::string> unused, unprinted;
};

// Choices in reading documents.
struct TextChoices {
  RecordNames names;           // records' names of members; empty: those of the first record
  bool train_on_all = false;   // all tokens count in the loss, not only the answers
  bool special_tokens = true;  // add the tokenizer's special tokens around a text
  uint64_t skip_bad = 0;       // the number of unreadable records to leave out
};

// The tokens that count:
//
//   text                    all
//   prompt and completion   the completion, and the end of the text
//   conversation            the assistant's text (ChatTemplate::Rendered); for a prompt and
//                           completion of messages, its text in the completion
//
// A token across a border counts. Text, and prompt with completion, get the special tokens that the
// tokenizer adds around a text (a token that begins a text, for most), unless they begin or end
// with them already, and end with `end_of_text`, which is added unless it is there. A conversation
// is exactly the template's output.
class DocumentEncoder {
 public:
  // `end_of_text`: required for all but conversations; `chat` for conversations.
  DocumentEncoder(Tokenizer tokenizer, std::optional<int32_t> end_of_text,
                  std::optional<ChatTemplate> chat, const TextChoices& choices);

  // Thread-safe. REQUIRES: the document has no `more`. Throws Error(kUsage) starting with the
  // document's place.
  EncodedDocument Encode(const RawDocument& document) const;

  // Encodes a text with `more` on `threads` threads and passes it to `sink` part by part, in order:
  // the concatenated ids are those of the text. Calls `read` with the number of bytes read, and of
  // those among them that are not UTF-8.
  void EncodeLong(RawDocument document, int threads,
                  const std::function<void(std::span<const int32_t> ids)>& sink,
                  const std::function<void(uint64_t bytes, uint64_t broken)>& read) const;

 private:
  EncodedDocument EncodeText(std::string_view text) const;
  EncodedDocument EncodeCompletion(const Record& record) const;
  EncodedDocument EncodeChat(Record* record, std::string_view where) const;
  // The ids to add before and behind a text, given its own first and last ids.
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
// that this tokenizer lacks.
void CheckOrigin(const TokenFileExtent& extent, const std::filesystem::path& path,
                 const Tokenizer& tokenizer);

// The token that ends a text according to the folder's tokenizer_config.json ("eos_token");
// nullopt: there is no such file, or it names none. `path` as for Tokenizer::FromFile. Throws
// Error(kUsage) if it names one that the tokenizer lacks.
std::optional<int32_t> EndOfText(const std::filesystem::path& path, const Tokenizer& tokenizer);

struct TokenizeOptions {
  // The model's folder, or its tokenizer.json; the chat template is in the same folder.
  std::filesystem::path model;
  // Returns the token that ends a text. Called once, and only if not all documents are
  // conversations.
  std::function<int32_t()> end_of_text;
  TextChoices choices;
  int threads = 0;  // 0: one a processor
  IoHook* hook = nullptr;
  bool says_losses = true;  // call SayLosses
};

struct TokenizedFiles {
  uint64_t documents = 0;
  uint64_t bytes = 0;  // bytes of text files, and of records as they are written
  uint64_t tokens = 0;
  uint64_t counted = 0;      // tokens that count in the loss
  uint64_t uncounted = 0;    // documents without a token that counts
  uint64_t skipped = 0;      // records that could not be read
  uint64_t broken = 0;       // bytes of texts that are not UTF-8
  bool prints_date = false;  // the chat template prints a date
  uint32_t token_bytes = 0;  // 2 or 4

  // Adds the counts of more files.
  void Add(const TokenizedFiles& other);
};
// "1200 tokens of 16 bits (300 count in the loss), 12 documents".
std::string Summary(const TokenizedFiles& done);

// Warns about data that the tokens of `file` lack.
void SayLosses(const TokenFileLosses& losses, std::string_view file, const TextChoices& choices);

// Throws Error(kUsage) for a file whose bytes are no text to train on: compressed ones, tables,
// images and the like (RefuseNoText, TextCheck). Reads all of the file.
void RefuseAsBytes(const std::filesystem::path& path);

// Writes each text file and each record (DocumentSource), also in files below a folder, as a
// document of `output`, with its loss mask (DocumentEncoder). Holds some documents at a time in
// memory, and some parts of a long text. Shows its progress if stderr is a terminal. Logs the
// recognised forms of records, the records that were left out, the members that are not trained on,
// and the data that the tokens lack (SayLosses), which `output` records, too. Throws Error(kUsage)
// naming file and line if an input cannot be read, is no text (RefuseNoText), is empty altogether,
// is a token file already, is a conversation for a model without a chat template, or is named as
// text and holds records; and, with `whole`, if no token counts or there is none.
TokenizedFiles TokenizeFiles(const Tokenizer& tokenizer,
                             std::span<const std::filesystem::path> files,
                             const TokenizeOptions& options, const std::filesystem::path& output,
                             bool whole = true);

// Throws Error(kUsage): no token of the data counts; `file` is its first file.
[[noreturn]] void RefuseUncounted(const std::filesystem::path& file);

}  // namespace zeroplan
