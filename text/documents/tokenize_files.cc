#include "text/documents/tokenize_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/log.h"
#include "core/base/long_work.h"
#include "core/base/strings.h"
#include "core/base/units.h"
#include "text/documents/chat_template.h"
#include "text/documents/document_source.h"
#include "text/documents/untrained_members.h"
#include "text/files/byte_source.h"
#include "text/files/data_files.h"
#include "text/files/record_reader.h"
#include "text/files/token_file.h"
#include "text/tokenizer/side_files.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {
namespace {

// The text of Alpaca's prompts has a place for the instruction and the input alone.
void RefuseWithoutPlace(const Record& record, const RecordFormat& format, std::string_view where) {
  const std::vector<ChatMessage>& messages = record.chat.messages;
  if (messages.size() <= 2) return;
  ThrowUsage(
      "{}: {}: needs a chat template, which the model has none of, and would be lost; take a model "
      "that has one, or remove it",
      where, format.NameOf(messages.front().role == "system" ? "system" : "history"));
}

}  // namespace

DocumentEncoder::DocumentEncoder(Tokenizer tokenizer, std::optional<int32_t> end_of_text,
                                 std::optional<ChatTemplate> chat, const TextChoices& choices)
    : tokenizer_(std::move(tokenizer)),
      end_of_text_(end_of_text),
      chat_(std::move(chat)),
      choices_(choices) {}

EncodedDocument DocumentEncoder::Encode(const RawDocument& document) const {
  ZEROPLAN_CHECK(document.more == nullptr);
  if (!document.format) {
    TextCheck check;
    check.Add(document.bytes);
    check.Refuse(document.where);
    EncodedDocument encoded = EncodeText(document.bytes);
    encoded.broken = check.broken();
    return encoded;
  }
  Record record = ReadRecord(document.bytes, *document.format, document.where);
  EncodedDocument encoded;
  if (document.format->kind == RecordFormat::Kind::kText) {
    if (!record.text.empty()) encoded = EncodeText(record.text);
  } else if (document.format->is_chat() && chat_) {
    encoded = EncodeChat(&record, document.where);
  } else {
    RefuseWithoutPlace(record, *document.format, document.where);
    encoded = EncodeCompletion(record);
  }
  if (choices_.train_on_all) encoded.counted.clear();
  encoded.broken = document.broken;
  encoded.unused = std::move(record.unused);
  return encoded;
}

EncodedDocument DocumentEncoder::EncodeText(std::string_view text) const {
  EncodedDocument encoded;
  encoded.ids = tokenizer_.Encode(text, false);
  Wrap(&encoded);
  return encoded;
}

EncodedDocument DocumentEncoder::EncodeCompletion(const Record& record) const {
  EncodedDocument encoded;
  const std::string text = record.text + record.completion;
  const TextSpan completion = {record.text.size(), text.size()};
  encoded.ids = tokenizer_.EncodeMarked(text, {&completion, 1}, &encoded.counted);
  Wrap(&encoded);
  return encoded;
}

EncodedDocument DocumentEncoder::EncodeChat(Record* record, std::string_view where) const {
  EncodedDocument encoded;
  if (!chat_->PrintsArgumentsAsGiven(record->chat, where)) ReadArguments(where, &record->chat);
  const ChatTemplate::Rendered rendered = chat_->Render(record->chat, false, where);
  encoded.unprinted = UnprintedParts(*chat_, record->chat, rendered);
  encoded.ids = tokenizer_.EncodeMarked(rendered.text, rendered.generated, &encoded.counted);
  return encoded;
}

std::span<const int32_t> DocumentEncoder::Before(std::span<const int32_t> begin) const {
  const std::vector<int32_t>& before = tokenizer_.special_before();
  const bool there =
      begin.size() >= before.size() && std::equal(before.begin(), before.end(), begin.begin());
  return there || !choices_.special_tokens ? std::span<const int32_t>() : before;
}

std::vector<int32_t> DocumentEncoder::Behind(std::span<const int32_t> end) const {
  ZEROPLAN_CHECK(end_of_text_.has_value());
  const std::vector<int32_t>& behind = tokenizer_.special_behind();
  const bool there =
      end.size() >= behind.size() && std::equal(behind.rbegin(), behind.rend(), end.rbegin());
  std::vector<int32_t> added;
  if (!there && choices_.special_tokens) added = behind;
  const int32_t last = !added.empty() ? added.back() : end.empty() ? -1 : end.back();
  if (last != *end_of_text_) added.push_back(*end_of_text_);
  return added;
}

void DocumentEncoder::Wrap(EncodedDocument* document) const {
  const bool marked = !document->counted.empty();
  const std::span<const int32_t> before = Before(document->ids);
  document->ids.insert(document->ids.begin(), before.begin(), before.end());
  if (marked) document->counted.insert(document->counted.begin(), before.size(), 0);
  const std::vector<int32_t> behind = Behind(document->ids);
  document->ids.insert(document->ids.end(), behind.begin(), behind.end());
  if (marked) document->counted.resize(document->ids.size(), 1);
}

void DocumentEncoder::EncodeLong(
    RawDocument document, int threads,
    const std::function<void(std::span<const int32_t> ids)>& sink,
    const std::function<void(uint64_t bytes, uint64_t broken)>& read) const {
  constexpr size_t kPartBytes = size_t{1} << 20;
  constexpr size_t kMostUncut = size_t{64} << 20;
  std::string text = std::move(document.bytes);
  std::vector<int32_t> last;
  TextCheck check;
  size_t checked = 0;  // bytes of `text`
  bool continues = false;
  for (bool more = true; more;) {
    more = document.more->ReadMore(std::max(2 * text.size(), DocumentSource::kTextBytes), &text);
    // A character that is cut at the end waits for what follows.
    const size_t whole = more ? text.size() - IncompleteUtf8Tail(text) : text.size();
    const uint64_t broken = check.broken();
    check.Add(std::string_view(text).substr(checked, whole - checked));
    read(whole - checked, check.broken() - broken);
    check.Refuse(document.where);
    checked = whole;
    // Where the text may be cut, and what is left for the next turn.
    std::vector<size_t> cuts = {0};
    for (size_t to = kPartBytes; to + kPartBytes <= text.size(); to += kPartBytes) {
      const std::optional<size_t> cut = tokenizer_.CutBefore(text, to);
      if (cut && *cut > cuts.back()) cuts.push_back(*cut);
    }
    if (more && cuts.size() == 1 && text.size() >= kMostUncut) {
      ThrowUsage(
          "{}: {} MiB without a blank or a line where they can be cut: no text has such words, and "
          "they take some 20 times their size in memory; break it into lines",
          document.where, text.size() >> 20);
    }
    if (!more) cuts.push_back(text.size());
    std::vector<std::vector<int32_t>> ids(cuts.size() - 1);
    ParallelEach(ids.size(), threads, [&](size_t i) {
      const std::string_view part = std::string_view(text).substr(cuts[i], cuts[i + 1] - cuts[i]);
      ids[i] = tokenizer_.EncodePart(part, continues || i > 0);
    });
    for (const std::vector<int32_t>& part : ids) {
      if (part.empty()) continue;
      if (last.empty()) sink(Before(part));
      sink(part);
      last.assign(part.end() - std::min<ptrdiff_t>(16, std::ssize(part)), part.end());
    }
    continues = continues || cuts.size() > 1;
    text.erase(0, cuts.back());
    checked -= cuts.back();
  }
  sink(Behind(last));
}

namespace {

namespace fs = std::filesystem;

// So much text is encoded between two writes.
constexpr uint64_t kBatchBytes = uint64_t{32} << 20;

constexpr size_t kBatchDocuments = 65'536;
constexpr uint64_t kShownSkips = 5;

// Makes the encoder as what documents need becomes known.
class EncoderOnDemand {
 public:
  EncoderOnDemand(const Tokenizer& tokenizer, const TokenizeOptions& options)
      : tokenizer_(tokenizer), options_(options) {}

  // REQUIRES: nothing is being encoded.
  void Prepare(const RawDocument& document) {
    const bool is_chat = document.format && document.format->is_chat();
    if (is_chat && !sought_) FindTemplate();
    if (is_chat && !chat_ && document.format->needs_template()) {
      ThrowUsage(
          "{}: a conversation, and {} has no chat template (chat_template.jinja, or chat_template "
          "in tokenizer_config.json); take a model that has one, say with ⟦map⟧ which members are "
          "prompt and completion, or render the conversations into lines with a \"text\" field",
          document.where, Folder().string());
    }
    if (!(is_chat && chat_) && !end_of_text_) end_of_text_ = options_.end_of_text();
    encoder_.emplace(tokenizer_, end_of_text_, chat_, options_.choices);
  }
  const DocumentEncoder& encoder() const { return *encoder_; }
  bool prints_date() const { return chat_ && chat_->prints_date(); }

 private:
  fs::path Folder() const {
    std::error_code ignored;
    const fs::path& model = options_.model;
    return fs::is_directory(model, ignored) ? model : ParentFolder(model);
  }
  void FindTemplate() {
    sought_ = true;
    chat_ = ChatTemplate::FromFolder(Folder(), tokenizer_);
    if (chat_ && !chat_->end_of_turn() && !options_.choices.train_on_all) {
      LogWarning(
          "{}: the chat template has no token behind the assistant's turns, so that nothing "
          "teaches the model to end them",
          chat_->source());
    }
  }

  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  std::optional<int32_t> end_of_text_;
  std::optional<ChatTemplate> chat_;
  bool sought_ = false;
  std::optional<DocumentEncoder> encoder_;
};

void Write(const EncodedDocument& document, TokenizedFiles* done, TokenFileWriter* writer) {
  const uint64_t counted = writer->counted();
  if (document.counted.empty()) {
    writer->Append(document.ids);
  } else {
    writer->Append(document.ids, document.counted);
  }
  writer->EndDocument();
  if (!document.ids.empty() && writer->counted() == counted) ++done->uncounted;
}

}  // namespace

TokenFileOrigin OriginOf(const Tokenizer& tokenizer) {
  return {tokenizer.digest(), tokenizer.vocab_size()};
}

void CheckOrigin(const TokenFileExtent& extent, const fs::path& path, const Tokenizer& tokenizer) {
  if (extent.origin && !(*extent.origin == OriginOf(tokenizer))) {
    ThrowUsage(
        "{}: made with another tokenizer ({} tokens; this one has {}); use the tokenizer it was "
        "made with, or make it again with zeroplan data tokenize",
        path.string(), extent.origin->vocab, tokenizer.vocab_size());
  }
}

std::optional<int32_t> EndOfText(const fs::path& path, const Tokenizer& tokenizer) {
  std::error_code ignored;
  const fs::path folder = fs::is_directory(path, ignored) ? path : path.parent_path();
  const NamedTokens named = NamedTokensOf(folder);
  const std::string* token = FindNamed(named, "eos_token");
  if (token == nullptr) return std::nullopt;
  const std::optional<int32_t> id = tokenizer.TokenId(*token);
  if (!id) {
    ThrowUsage("{}: eos_token: \"{}\" is no token of tokenizer.json; get both files again",
               (folder / "tokenizer_config.json").string(), PrintableText(*token, 60));
  }
  return id;
}

void TokenizedFiles::Add(const TokenizedFiles& other) {
  documents += other.documents;
  bytes += other.bytes;
  tokens += other.tokens;
  counted += other.counted;
  uncounted += other.uncounted;
  skipped += other.skipped;
  broken += other.broken;
  prints_date = prints_date || other.prints_date;
  token_bytes = other.token_bytes;
}

std::string Summary(const TokenizedFiles& done) {
  std::string text = fmt::format("{} tokens of {} bits", done.tokens, 8 * done.token_bytes);
  if (done.counted != done.tokens) text += fmt::format(" ({} count in the loss)", done.counted);
  text += fmt::format(", {} document{}", done.documents, done.documents == 1 ? "" : "s");
  if (done.uncounted > 0) text += fmt::format(" ({} without a token that counts)", done.uncounted);
  if (done.prints_date) text += ", the chat template's date being 26 Jul 2024";
  return text;
}

void SayLosses(const TokenFileLosses& losses, std::string_view file, const TextChoices& choices) {
  if (losses.records > 0) {
    LogWarning("{} record{} left out (⟦skip_bad⟧ {}).", losses.records,
               losses.records == 1 ? " was" : "s were", choices.skip_bad);
  }
  if (losses.bytes > 0) {
    LogWarning("{}: {} byte{} no UTF-8 and count{} as U+FFFD.", file, losses.bytes,
               losses.bytes == 1 ? " is" : "s are", losses.bytes == 1 ? "s" : "");
  }
}

void RefuseAsBytes(const fs::path& path) {
  if (!IsPlainText(path)) {
    ThrowUsage(
        "{}: its bytes are no text: where bytes are the tokens, files are taken as they are; "
        "write it out as text first",
        path.string());
  }
  if (IsTokenFile(path)) return;
  const std::unique_ptr<ByteSource> source = ByteSource::Open(path);
  TextCheck check;
  std::string text;
  bool first = true;
  for (bool more = true; more;) {
    more = source->ReadMore(DocumentSource::kTextBytes, &text);
    if (std::exchange(first, false)) RefuseNoText(path, text);
    // What may go on in the next part waits for it.
    const size_t whole = more ? text.size() - IncompleteUtf8Tail(text) : text.size();
    check.Add(std::string_view(text).substr(0, whole));
    text.erase(0, whole);
  }
  check.Refuse(path.string());
}

namespace {

// A file that is named as text, and whose first record is one that is known.
void RefuseRecordsAsText(const fs::path& file, std::string_view begin) {
  const size_t first = begin.find_first_not_of("\xEF\xBB\xBF \t\r\n");
  if (first == std::string_view::npos || (begin[first] != '{' && begin[first] != '[')) return;
  std::string form;
  try {
    const std::unique_ptr<RecordReader> reader = RecordReader::OpenJson(file);
    std::string record;
    if (!reader->Next(&record)) return;
    form = RecognizeRecord(record, reader->where(), {}).Description();
  } catch (const Error&) {
    return;
  }
  ThrowUsage(
      "{}: is text by its name, and its first record is of {}; give it a name that ends in "
      ".jsonl, so that its records are read and not their braces and names",
      file.string(), form);
}

// Turns the documents of some files into one file of tokens.
class Tokenizing {
 public:
  Tokenizing(const Tokenizer& tokenizer, std::span<const fs::path> files,
             const TokenizeOptions& options, const fs::path& output)
      : options_(options),
        source_({files.begin(), files.end()}, options.choices.names),
        encoder_(tokenizer, options),
        writer_(output, options.hook, OriginOf(tokenizer)) {}

  TokenizedFiles Run() {
    LongWork work("Tokenizing");
    const auto begin = std::chrono::steady_clock::now();
    const auto show = [&] {
      work.Show([&] {
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        const auto position = static_cast<double>(source_.position());
        return fmt::format("{} of {}, {}/s, {} tokens", FormatBytes(source_.position()),
                           FormatBytes(source_.size()),
                           FormatBytes(static_cast<uint64_t>(position / (seconds.count() + 1e-3))),
                           FormatCount(writer_.count()));
      });
    };
    while (ReadBatch()) {
      EncodeBatch();
      if (long_) EncodeLong(show);
      show();
    }
    const TokenFileLosses losses = {done_.skipped, done_.broken};
    writer_.SetLosses(losses);
    if (options_.says_losses) SayLosses(losses, broken_in_, options_.choices);
    untrained_.Say();
    done_.tokens = writer_.count();
    done_.counted = writer_.counted();
    done_.prints_date = encoder_.prints_date();
    done_.token_bytes = writer_.token_bytes();
    return done_;
  }
  void Finish() {
    writer_.Finish();
    done_.documents = writer_.documents();
  }
  const TokenizedFiles& done() const { return done_; }

 private:
  // Documents that are encoded at once; false: there are no more. A long text ends the batch.
  bool ReadBatch() {
    batch_.clear();
    long_.reset();
    for (uint64_t bytes = 0; bytes < kBatchBytes && batch_.size() < kBatchDocuments;) {
      ThrowIfInterrupted();
      RawDocument document;
      bool found = false;
      try {
        found = source_.Next(&document);
      } catch (const Error& error) {
        if (error.code() != ExitCode::kUsage || !source_.can_go_on()) throw;
        Skip(error);
        continue;
      }
      if (!found) break;
      if (document.format) SayForm(document);
      // A template that cannot take the first record says so before more is read.
      if (document.format && std::exchange(first_, false)) bytes = kBatchBytes;
      encoder_.Prepare(document);
      bytes += document.bytes.size();
      if (document.more != nullptr) {
        long_ = std::move(document);
        break;
      }
      batch_.push_back(std::move(document));
    }
    return !batch_.empty() || long_.has_value();
  }

  // A record that went wrong is left out, or too many were.
  void Skip(const Error& error) {
    const uint64_t most = options_.choices.skip_bad;
    if (done_.skipped == most) {
      if (most == 0) ThrowUsage("{}; ⟦skip_bad⟧ leaves so many records out", error.what());
      ThrowUsage("{}; {} record{} left out before it, as many as ⟦skip_bad⟧ allows", error.what(),
                 most, most == 1 ? " was" : "s were");
    }
    if (++done_.skipped <= kShownSkips) LogWarning("Left out: {}", error.what());
  }

  // What the records of a file were taken for; said once for each form.
  void SayForm(const RawDocument& document) {
    const std::string form = document.format->Description();
    if (std::find(forms_.begin(), forms_.end(), form) != forms_.end()) return;
    forms_.push_back(form);
    LogInfo("Records: {} of {}.", form, document.where.substr(0, document.where.rfind(':')));
  }

  void EncodeBatch() {
    std::vector<EncodedDocument> encoded(batch_.size());
    std::vector<std::optional<Error>> failed(batch_.size());
    // Where no record may be left out any more, what comes behind one that fails is not encoded.
    std::atomic<size_t> end = batch_.size();
    ParallelEach(batch_.size(), options_.threads, [&](size_t i) {
      ThrowIfInterrupted();
      if (i >= end) return;
      try {
        encoded[i] = encoder_.encoder().Encode(batch_[i]);
      } catch (const Error& error) {
        if (error.code() != ExitCode::kUsage || !batch_[i].format) throw;
        failed[i] = error;
        if (done_.skipped < options_.choices.skip_bad) return;
        for (size_t was = end; was > i + 1 && !end.compare_exchange_weak(was, i + 1);) continue;
      }
    });
    for (size_t i = 0; i < batch_.size(); ++i) {
      done_.bytes += batch_[i].bytes.size();
      if (failed[i]) {
        Skip(*failed[i]);
        continue;
      }
      AddBroken(batch_[i].where, encoded[i].broken);
      untrained_.Add(batch_[i].where, encoded[i].unused, encoded[i].unprinted);
      Write(encoded[i], &done_, &writer_);
    }
  }

  template <typename Show>
  void EncodeLong(Show show) {
    const std::string where = long_->where;
    encoder_.encoder().EncodeLong(
        *std::exchange(long_, std::nullopt), options_.threads,
        [&](std::span<const int32_t> ids) {
          writer_.Append(ids);
          show();
        },
        [&](uint64_t bytes, uint64_t broken) {
          done_.bytes += bytes;
          AddBroken(where, broken);
        });
    writer_.EndDocument();
  }

  void AddBroken(const std::string& where, uint64_t broken) {
    if (broken > 0 && done_.broken == 0) broken_in_ = where;
    done_.broken += broken;
  }

  const TokenizeOptions& options_;
  DocumentSource source_;
  EncoderOnDemand encoder_;
  TokenFileWriter writer_;
  TokenizedFiles done_;
  std::vector<RawDocument> batch_;
  bool first_ = true;  // no record was read
  std::optional<RawDocument> long_;
  std::vector<std::string> forms_;
  UntrainedMembers untrained_;
  std::string broken_in_;
};

}  // namespace

TokenizedFiles TokenizeFiles(const Tokenizer& tokenizer, std::span<const fs::path> files,
                             const TokenizeOptions& options, const fs::path& output, bool whole) {
  // What is no text is refused before any of it is encoded.
  for (const fs::path& file : files) {
    if (IsTokenFile(file)) ThrowUsage("{}: is a token file already, not text", file.string());
    std::string begin;
    if (const std::string suffix = KindSuffix(file); suffix != ".parquet" && suffix != ".arrow") {
      ByteSource::Open(file)->ReadMore(64, &begin);
    }
    RefuseNoText(file, begin);
    if (FileKindOf(file) == FileKind::kText) RefuseRecordsAsText(file, begin);
  }
  Tokenizing tokenizing(tokenizer, files, options, output);
  TokenizedFiles done = tokenizing.Run();
  if (whole && done.tokens == 0) {
    ThrowUsage("{}: no text in it", files.empty() ? "" : files[0].string());
  }
  if (whole && done.counted == 0) RefuseUncounted(files[0]);
  tokenizing.Finish();
  return tokenizing.done();
}

void RefuseUncounted(const fs::path& file) {
  ThrowUsage(
      "{}: no token counts in the loss: there is no assistant's message and no completion, or all "
      "are marked \"train\": false; ⟦train_on⟧ all takes all tokens",
      file.string());
}

}  // namespace zeroplan
