// Files of text as a file of tokens, and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "text/documents/chat_template.h"
#include "text/documents/document_source.h"
#include "text/files/token_file.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {

// Documents as tokens, and which of these count in the loss.
struct EncodedDocument {
  std::vector<int32_t> ids;
  std::vector<uint8_t> counted;  // one an id, 1: counts; empty: all do
};

// What counts:
//
//   text                    all
//   prompt and completion   the completion, and the end of the text
//   conversation            contents of the assistant's messages, with the tokens that end its
//                           turns; of a prompt and completion of messages, those of the completion
//
// A token that lies across a border counts. Text, and prompt with completion, end with
// `end_of_text`, which is added unless it is there; a conversation is what the template makes of
// it. No other tokens are added.
class DocumentEncoder {
 public:
  // `end_of_text`: REQUIRED for what is no conversation; `chat` for conversations. `train_on_all`:
  // all tokens count.
  DocumentEncoder(Tokenizer tokenizer, std::optional<int32_t> end_of_text,
                  std::optional<ChatTemplate> chat, bool train_on_all);

  // Thread-safe. Throws Error(kUsage) starting with where the document is from.
  EncodedDocument Encode(const RawDocument& document) const;

 private:
  EncodedDocument EncodeText(std::string_view text) const;
  EncodedDocument EncodeCompletion(const Record& record) const;
  EncodedDocument EncodeChat(const Record& record, std::string_view where) const;
  void End(EncodedDocument* document) const;

  Tokenizer tokenizer_;
  std::optional<int32_t> end_of_text_;
  std::optional<ChatTemplate> chat_;
  bool train_on_all_;
};

TokenFileOrigin OriginOf(const Tokenizer& tokenizer);

// Throws Error(kUsage) naming `path` if its header names another tokenizer, or if it has a token
// that this tokenizer does not.
void CheckOrigin(const TokenFileExtent& extent, const std::filesystem::path& path,
                 const Tokenizer& tokenizer);

// Throws as CheckOrigin if a token file among `data` (files, and folders of them, as TokenDataset
// takes them) is of another tokenizer than the one in `model_folder`. A folder without a
// tokenizer.json has nothing to compare with, and neither have files without an origin.
void CheckDataOrigin(std::span<const std::string> data, const std::filesystem::path& model_folder);

// The token that ends a text by the folder's tokenizer_config.json ("eos_token"); nullopt: there is
// no such file, or it names none. `path` as for Tokenizer::FromFile. Throws Error(kUsage) if it
// names one that the tokenizer does not have.
std::optional<int32_t> EndOfText(const std::filesystem::path& path, const Tokenizer& tokenizer);

// How documents are taken.
struct TextChoices {
  std::string text_field;     // of records: the member that holds the text; "": what there is
  bool train_on_all = false;  // all tokens count in the loss, not the answers alone
};

struct TokenizeOptions {
  // The model's folder, or its tokenizer.json: beside that is the chat template.
  std::filesystem::path model;
  // The token that ends a text. Asked for once, and only if there is what is no conversation.
  std::function<int32_t()> end_of_text;
  TextChoices choices;
  int threads = 0;  // 0: one a processor
  IoHook* hook = nullptr;
};

struct TokenizedFiles {
  uint64_t documents = 0;
  uint64_t bytes = 0;  // of text files, and of records as they are written
  uint64_t tokens = 0;
  uint64_t counted = 0;      // tokens that count in the loss
  uint64_t uncounted = 0;    // documents of which no token does
  bool prints_date = false;  // the chat template has a date in what it makes
  uint32_t token_bytes = 0;  // 2 or 4
};
// "1200 tokens of 16 bits (300 count in the loss), 12 documents".
std::string Summary(const TokenizedFiles& done);

// Throws Error(kUsage) for a file whose bytes are no text to train on: compressed ones, tables.
void RefuseAsBytes(const std::filesystem::path& path);

// Each text file and each record (DocumentSource), also in files below a folder, is a document of
// `output`, with its loss mask (DocumentEncoder). Some documents at a time are in memory: what it
// takes is a multiple of the largest one, a text file being one. Where stderr is a terminal, it
// shows how far it is. Throws Error(kUsage) naming file and line of what cannot be read, is empty
// altogether, is a token file already, or is a conversation where the model has no chat template;
// and if no token counts.
TokenizedFiles TokenizeFiles(const Tokenizer& tokenizer, std::span<const std::string> paths,
                             const TokenizeOptions& options, const std::filesystem::path& output);

// How a file of tokens is shown.
struct ShowOptions {
  uint64_t begin = 0;
  uint64_t count = 0;
  // What counts in the loss is between "[[" and "]]".
  bool mask = false;
};
// The text of tokens [begin, begin + count) of a token file, cut at its end, special tokens
// included. Where the file says where documents begin, each begins with a line of its own: "--
// document 3, token 120 --". Throws as CheckOrigin.
std::string TokensAsText(const Tokenizer& tokenizer, const std::filesystem::path& path,
                         const ShowOptions& options);

// What a model is trained on, in its own tokens.

// `data` (files, and folders of them, as TokenDataset takes them) for the model of `model_folder`.
//
// Text and records become a file of the tokens of the folder's tokenizer.json, with its chat
// template and eos_token (TokenizeFiles, with `choices` and `threads`). It is kept in
// `cache_folder` under a name made of the tokenizer's digest, the choices, for records also the
// folder's chat template and tokenizer_config.json, and of each file's path, size and time of
// change: nothing is done twice, and of processes that ask at once one does it. A line says where
// the file is. Nobody deletes it.
//
// `data` itself is returned where the folder is empty or has no tokenizer.json, where the model's
// `vocab` is 256, so that bytes are its tokens, and where there are token files in it. Throws
// Error(kUsage) for token files of another tokenizer (CheckOrigin), for text where the folder has
// weights with other tokens than bytes and no tokenizer.json (unless checkpoints lie there: that
// run may have been trained on bytes), for text that nothing says the
// end of, or that changes while it is read, without a cache folder (""), with the way out in each,
// for choices that would change nothing; also for compressed files and tables whose bytes would be
// the tokens. Error(kRuntime) if the file cannot be written.
std::vector<std::string> DataForModel(std::span<const std::string> data,
                                      const std::filesystem::path& model_folder, int64_t vocab,
                                      const std::filesystem::path& cache_folder, int threads,
                                      const TextChoices& choices = {});

}  // namespace zeroplan
