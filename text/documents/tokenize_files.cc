#include "text/documents/tokenize_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/hash.h"
#include "core/base/json_section.h"
#include "core/base/json_source.h"
#include "core/base/log.h"
#include "core/base/long_work.h"
#include "core/base/units.h"
#include "text/documents/chat_template.h"
#include "text/documents/document_source.h"
#include "text/files/byte_source.h"
#include "text/files/mapped_file.h"
#include "text/files/token_dataset.h"
#include "text/files/token_file.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {

DocumentEncoder::DocumentEncoder(Tokenizer tokenizer, std::optional<int32_t> end_of_text,
                                 std::optional<ChatTemplate> chat, bool train_on_all)
    : tokenizer_(std::move(tokenizer)),
      end_of_text_(end_of_text),
      chat_(std::move(chat)),
      train_on_all_(train_on_all) {}

EncodedDocument DocumentEncoder::Encode(const RawDocument& document) const {
  if (!document.format) return EncodeText(document.bytes());
  const Record record = ReadRecord(document.bytes(), *document.format, document.where);
  EncodedDocument encoded;
  switch (document.format->kind) {
    case RecordFormat::Kind::kText:
      return record.text.empty() ? EncodedDocument() : EncodeText(record.text);
    case RecordFormat::Kind::kCompletion:
      encoded = EncodeCompletion(record);
      break;
    case RecordFormat::Kind::kChat:
    case RecordFormat::Kind::kChatCompletion:
      encoded = EncodeChat(record, document.where);
      break;
  }
  if (train_on_all_) encoded.counted.clear();
  return encoded;
}

EncodedDocument DocumentEncoder::EncodeText(std::string_view text) const {
  EncodedDocument encoded;
  encoded.ids = tokenizer_.Encode(text, false);
  End(&encoded);
  return encoded;
}

EncodedDocument DocumentEncoder::EncodeCompletion(const Record& record) const {
  EncodedDocument encoded;
  const std::string text = record.text + record.completion;
  const TextSpan completion = {record.text.size(), text.size()};
  encoded.ids = tokenizer_.EncodeMarked(text, {&completion, 1}, &encoded.counted);
  End(&encoded);
  encoded.counted.resize(encoded.ids.size(), 1);
  return encoded;
}

EncodedDocument DocumentEncoder::EncodeChat(const Record& record, std::string_view where) const {
  ZEROPLAN_CHECK(chat_.has_value());
  EncodedDocument encoded;
  const ChatTemplate::Rendered rendered =
      chat_->Render(record.messages, false, where, record.first_counted);
  encoded.ids = tokenizer_.EncodeMarked(rendered.text, rendered.generated, &encoded.counted);
  return encoded;
}

void DocumentEncoder::End(EncodedDocument* document) const {
  ZEROPLAN_CHECK(end_of_text_.has_value());
  if (document->ids.empty() || document->ids.back() != *end_of_text_) {
    document->ids.push_back(*end_of_text_);
  }
}

namespace {

namespace fs = std::filesystem;

// So much text is encoded between two writes.
constexpr uint64_t kBatchBytes = uint64_t{32} << 20;

constexpr size_t kBatchFiles = 4096;  // mapped
constexpr size_t kBatchDocuments = 65'536;

// Makes the encoder as what documents need becomes known.
class EncoderOnDemand {
 public:
  EncoderOnDemand(const Tokenizer& tokenizer, const TokenizeOptions& options)
      : tokenizer_(tokenizer), options_(options) {}

  // REQUIRES: nothing is being encoded.
  void Prepare(const RawDocument& document) {
    const bool is_chat = document.format && document.format->is_chat();
    if (is_chat ? chat_.has_value() : end_of_text_.has_value()) return;
    if (is_chat) {
      FindTemplate(document.where);
    } else {
      end_of_text_ = options_.end_of_text();
    }
    encoder_.emplace(tokenizer_, end_of_text_, chat_, options_.choices.train_on_all);
  }
  const DocumentEncoder& encoder() const { return *encoder_; }
  bool prints_date() const { return chat_ && chat_->prints_date(); }

 private:
  void FindTemplate(const std::string& where) {
    std::error_code ignored;
    const fs::path& model = options_.model;
    const fs::path folder = fs::is_directory(model, ignored) ? model : ParentFolder(model);
    chat_ = ChatTemplate::FromFolder(folder, tokenizer_);
    if (!chat_) {
      ThrowUsage(
          "{}: a conversation, and {} has no chat template (chat_template.jinja, or chat_template "
          "in tokenizer_config.json); take a model that has one, or render the conversations into "
          "lines with a \"text\" field",
          where, folder.string());
    }
    if (!chat_->end_of_turn() && !options_.choices.train_on_all) {
      LogWarning(
          "{}: the chat template has no token behind the assistant's turns, so that nothing "
          "teaches "
          "the model to end them",
          chat_->source());
    }
  }

  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  std::optional<int32_t> end_of_text_;
  std::optional<ChatTemplate> chat_;
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

void CheckDataOrigin(std::span<const std::string> data, const fs::path& model_folder) {
  const fs::path file = model_folder / "tokenizer.json";
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return;
  std::optional<Tokenizer> tokenizer;
  for (const fs::path& path : DataFiles(data)) {
    if (!IsTokenFile(path)) continue;
    const TokenFileExtent extent = FindTokens(MappedFile::Open(path), path);
    if (!extent.origin) continue;
    if (!tokenizer) tokenizer = Tokenizer::FromFile(file);
    CheckOrigin(extent, path, *tokenizer);
  }
}

std::optional<int32_t> EndOfText(const fs::path& path, const Tokenizer& tokenizer) {
  std::error_code ignored;
  const fs::path folder = fs::is_directory(path, ignored) ? path : path.parent_path();
  const fs::path file = folder / "tokenizer_config.json";
  if (!fs::exists(file, ignored)) return std::nullopt;
  const JsonNode document = ParseJsonText(ReadTextFile(file), file.string());
  JsonSection section(&document, "", file.string());
  const JsonNode* token = section.Raw("eos_token");
  if (token != nullptr && token->is_object()) token = token->Find("content");
  if (token == nullptr || !token->is_string()) return std::nullopt;
  const std::optional<int32_t> id = tokenizer.TokenId(token->scalar.text());
  if (!id) {
    section.Fail("eos_token", "{} is no token of tokenizer.json; get both files again",
                 token->Quote());
  }
  return id;
}

std::string Summary(const TokenizedFiles& done) {
  std::string text = fmt::format("{} tokens of {} bits", done.tokens, 8 * done.token_bytes);
  if (done.counted != done.tokens) text += fmt::format(" ({} count in the loss)", done.counted);
  text += fmt::format(", {} document{}", done.documents, done.documents == 1 ? "" : "s");
  if (done.uncounted > 0) text += fmt::format(" ({} without a token that counts)", done.uncounted);
  if (done.prints_date) text += ", the chat template's date being 26 Jul 2024";
  return text;
}

void RefuseAsBytes(const fs::path& path) {
  if (CompressionOf(path) == Compression::kNone && FileKindOf(path) != FileKind::kParquet) return;
  ThrowUsage(
      "{}: its bytes are no text: where bytes are the tokens, files are taken as they are; "
      "write it out as text first",
      path.string());
}

TokenizedFiles TokenizeFiles(const Tokenizer& tokenizer, std::span<const std::string> paths,
                             const TokenizeOptions& options, const fs::path& output) {
  std::vector<fs::path> files = DataFiles(paths);
  for (const fs::path& file : files) {
    if (IsTokenFile(file)) ThrowUsage("{}: is a token file already, not text", file.string());
  }
  DocumentSource source(std::move(files), options.choices.text_field);
  EncoderOnDemand encoder(tokenizer, options);
  TokenFileWriter writer(output, options.hook, OriginOf(tokenizer));
  TokenizedFiles done;
  LongWork work("Tokenizing");
  const auto begin = std::chrono::steady_clock::now();
  std::vector<RawDocument> batch;
  std::vector<EncodedDocument> encoded;
  for (bool more = true; more;) {
    batch.clear();
    size_t mapped = 0;
    for (uint64_t bytes = 0;
         bytes < kBatchBytes && batch.size() < kBatchDocuments && mapped < kBatchFiles;) {
      RawDocument document;
      more = source.Next(&document);
      if (!more) break;
      bytes += document.bytes().size();
      mapped += document.file.size() > 0 ? 1 : 0;
      encoder.Prepare(document);
      batch.push_back(std::move(document));
    }
    encoded.assign(batch.size(), {});
    ParallelEach(batch.size(), options.threads,
                 [&](size_t i) { encoded[i] = encoder.encoder().Encode(batch[i]); });
    for (size_t i = 0; i < batch.size(); ++i) {
      Write(encoded[i], &done, &writer);
      done.bytes += batch[i].bytes().size();
    }
    work.Show([&] {
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      const auto position = static_cast<double>(source.position());
      return fmt::format("{} of {}, {}/s, {} tokens", FormatBytes(source.position()),
                         FormatBytes(source.size()),
                         FormatBytes(static_cast<uint64_t>(position / (seconds.count() + 1e-3))),
                         FormatCount(writer.count()));
    });
  }
  if (writer.count() == 0) ThrowUsage("{}: no text in it", paths.empty() ? "" : paths[0]);
  if (writer.counted() == 0) {
    ThrowUsage(
        "{}: no token counts in the loss: there is no assistant's message and no completion; "
        "⟦train_on⟧ all takes all tokens",
        paths[0]);
  }
  writer.Finish();
  done.documents = writer.documents();
  done.tokens = writer.count();
  done.counted = writer.counted();
  done.prints_date = encoder.prints_date();
  done.token_bytes = writer.token_bytes();
  return done;
}

std::string TokensAsText(const Tokenizer& tokenizer, const fs::path& path,
                         const ShowOptions& options) {
  if (!IsTokenFile(path)) ThrowUsage("{}: is no token file (.bin, .u16, .u32)", path.string());
  const MappedFile file = MappedFile::Open(path);
  const TokenFileExtent extent = FindTokens(file, path);
  CheckOrigin(extent, path, tokenizer);
  if (options.mask && extent.documents == 0) {
    ThrowUsage("⟦mask⟧: {} does not say what counts in the loss; leave it out", path.string());
  }
  const std::string name = path.string();
  TokenDataset data = TokenDataset::Open({&name, 1});
  data.SetVocab(tokenizer.vocab_size());
  const uint64_t begin = std::min(options.begin, data.size());
  std::vector<int32_t> ids(std::min(options.count, data.size() - begin));
  if (ids.empty()) return "";
  data.Read(begin, ids);

  const auto document_begin = [&](uint64_t document) {
    uint64_t at = 0;
    std::memcpy(&at, file.bytes().data() + extent.documents_offset + sizeof at * document,
                sizeof at);
    return at;
  };
  const auto counts = [&](uint64_t at) {
    if (!extent.mask_offset) return true;
    return (std::to_integer<unsigned>(file.bytes()[*extent.mask_offset + at / 8]) >> at % 8 & 1) !=
           0;
  };
  // The first document that begins behind the first token, or with it.
  uint64_t next = 0;
  for (uint64_t last = extent.documents; next < last;) {
    const uint64_t middle = next + (last - next) / 2;
    if (document_begin(middle) < begin) {
      next = middle + 1;
    } else {
      last = middle;
    }
  }
  std::string text;
  for (size_t from = 0; from < ids.size();) {
    uint64_t end = ids.size();
    if (next < extent.documents && document_begin(next) == begin + from) {
      text += fmt::format("{}-- document {}, token {} --\n", text.empty() ? "" : "\n", next + 1,
                          begin + from);
      ++next;
    }
    if (next < extent.documents) end = std::min(end, document_begin(next) - begin);
    const std::span<const int32_t> document = std::span(ids).subspan(from, end - from);
    if (!options.mask) {
      text += tokenizer.Decode(document, false);
    } else {
      // What a token looks like may depend on those before: each run of tokens is what it adds.
      std::string before;
      for (size_t first = 0, last = 0; first < document.size(); first = last) {
        const bool counted = counts(begin + from + first);
        while (last < document.size() && counts(begin + from + last) == counted) ++last;
        std::string all = tokenizer.Decode(document.first(last), false);
        const std::string added =
            all.starts_with(before)
                ? all.substr(before.size())
                : tokenizer.Decode(document.subspan(first, last - first), false);
        text += counted ? "[[" + added + "]]" : added;
        before = std::move(all);
      }
    }
    from = end;
  }
  return text;
}

namespace {

namespace fs = std::filesystem;

// What these texts become depends on.
struct Facts {
  const Tokenizer& tokenizer;
  std::optional<int32_t> end_of_text;
  const fs::path& model_folder;
  const TextChoices& choices;
  std::span<const fs::path> files;
};

// The name of what they become. Other paths to the same files make another name, no harm.
std::string NameOf(const Facts& about) {
  // The number is that of what is made of the same files: it rises when that changes.
  std::string facts = fmt::format("2 {} {} {} {}:{}\n", AsText(about.tokenizer.digest()),
                                  about.end_of_text.value_or(-1), about.choices.train_on_all,
                                  about.choices.text_field.size(), about.choices.text_field);
  const bool records = std::any_of(about.files.begin(), about.files.end(), [](const fs::path& f) {
    return FileKindOf(f) != FileKind::kText;
  });
  for (const char* name : {"chat_template.jinja", "tokenizer_config.json"}) {
    std::error_code ignored;
    const fs::path file = about.model_folder / name;
    if (records && fs::exists(file, ignored)) facts += AsText(Sha256(ReadTextFile(file)));
  }
  for (const fs::path& file : about.files) {
    struct stat status {};
    if (stat(file.c_str(), &status) != 0) {
      ThrowUsage("{}: cannot be looked at ({})", file.string(), std::strerror(errno));
    }
    facts += fmt::format("{}\n{} {}.{:09}\n", fs::absolute(file).string(), status.st_size,
                         status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  }
  const Sha256Digest digest = Sha256(facts);
  return BytesToHex(digest.data(), 16) + ".bin";
}

// Held until it is closed, also by the end of the process.
UniqueFd LockBeside(const fs::path& file) {
  const std::string path = file.string() + ".lock";
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  int failed = lock ? 0 : errno;
  while (failed == 0 && flock(lock.get(), LOCK_EX) != 0) failed = errno == EINTR ? 0 : errno;
  if (failed != 0) {
    ThrowRuntime("{}: cannot be locked ({}); ZEROPLAN_CACHE_DIR names another folder", path,
                 std::strerror(failed));
  }
  return lock;
}

bool IsWhole(const fs::path& file, const Tokenizer& tokenizer) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return false;
  try {
    CheckOrigin(FindTokens(MappedFile::Open(file), file), file, tokenizer);
    return true;
  } catch (const Error&) {
    return false;
  }
}

bool HasWeights(const fs::path& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name == "model.safetensors" || name == "model.safetensors.index.json" ||
        name.starts_with("model-00001-of-")) {
      return true;
    }
  }
  return false;
}

// Throws if the folder's weights were trained with a tokenizer that it does not have as
// tokenizer.json. What zeroplan saved, with its checkpoints, may have been trained on bytes.
void RefuseWithoutTokenizer(const fs::path& folder, int64_t vocab, const fs::path& text) {
  std::error_code ignored;
  const fs::path* sign = nullptr;
  static const std::array<fs::path, 6> kOfTokenizers = {
      "tokenizer.model",        "vocab.json", "merges.txt", "tekken.json", "tokenizer_config.json",
      "special_tokens_map.json"};
  for (const fs::path& name : kOfTokenizers) {
    if (sign == nullptr && fs::exists(folder / name, ignored)) sign = &name;
  }
  if (sign == nullptr && (!HasWeights(folder) || fs::exists(folder / "checkpoints", ignored))) {
    return;
  }
  ThrowUsage(
      "{}: text for the model in {}, whose {} tokens are no bytes, and there is no tokenizer.json "
      "in that folder{}; or, to train on bytes all the same, make them tokens first: zeroplan data "
      "tokenize {} -o tokens.bin",
      text.string(), folder.string(), vocab,
      sign != nullptr ? fmt::format(" ({} is not read): transformers writes it, as "
                                    "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
                                    sign->string())
                      : ": put the one there that the model was published with",
      text.string());
}

}  // namespace

std::vector<std::string> DataForModel(std::span<const std::string> data,
                                      const fs::path& model_folder, int64_t vocab,
                                      const fs::path& cache_folder, int threads,
                                      const TextChoices& choices) {
  std::vector<std::string> as_it_is(data.begin(), data.end());
  std::error_code ignored;
  const fs::path tokenizer_file = model_folder / "tokenizer.json";
  const std::vector<fs::path> files = DataFiles(data);
  const bool has_tokenizer = !model_folder.empty() && fs::exists(tokenizer_file, ignored);
  const bool has_tokens = std::any_of(files.begin(), files.end(), IsTokenFile);
  if (!has_tokenizer || has_tokens || vocab == kByteTokens) {
    if (has_tokenizer && has_tokens) CheckDataOrigin(data, model_folder);
    if (!choices.text_field.empty() || choices.train_on_all) {
      ThrowUsage("{}: there are no records to be turned into tokens here, {}; leave it out",
                 choices.train_on_all ? "⟦train_on⟧" : "⟦text_field⟧",
                 has_tokens ? "these are tokens already" : "the model has bytes as tokens");
    }
    for (const fs::path& file : files) {
      RefuseAsBytes(file);
      if (!has_tokenizer && !model_folder.empty() && vocab != kByteTokens && !IsTokenFile(file)) {
        RefuseWithoutTokenizer(model_folder, vocab, file);
      }
    }
    return as_it_is;
  }

  const auto by_hand = [&](const char* more) {
    return fmt::format("zeroplan data tokenize {} ⟦tokenizer⟧ {}{}{}{} -o tokens.bin",
                       fmt::join(as_it_is, " "), model_folder.string(),
                       choices.text_field.empty() ? "" : " ⟦text_field⟧ " + choices.text_field,
                       choices.train_on_all ? " ⟦train_on⟧ all" : "", more);
  };
  const Tokenizer tokenizer = Tokenizer::FromFile(tokenizer_file);
  const std::optional<int32_t> end_of_text = EndOfText(model_folder, tokenizer);
  if (cache_folder.empty()) {
    ThrowUsage(
        "{}: there is no folder to keep the tokens of text in (HOME is not set); set "
        "ZEROPLAN_CACHE_DIR, or make a token file and train with that: {}",
        as_it_is[0], by_hand(""));
  }
  const fs::path folder = cache_folder / "tokens";
  fs::create_directories(folder, ignored);
  const Facts facts = {tokenizer, end_of_text, model_folder, choices, files};
  const std::string name = NameOf(facts);
  const fs::path output = folder / name;
  const UniqueFd lock = LockBeside(output);
  if (!IsWhole(output, tokenizer)) {
    TokenizeOptions options;
    options.model = model_folder;
    options.choices = choices;
    options.threads = threads;
    options.end_of_text = [&] {
      if (end_of_text) return *end_of_text;
      ThrowUsage(
          "{}: no tokenizer_config.json there names an eos_token, which ends each text; make a "
          "token file that says it, and train with that: {}",
          model_folder.string(), by_hand(" ⟦end_of_text⟧ TOKEN"));
    };
    const TokenizedFiles done = TokenizeFiles(tokenizer, data, options, output);
    if (NameOf(facts) != name) {
      fs::remove(output, ignored);
      ThrowUsage("{}: changed while it was read; wait for whoever writes there", as_it_is[0]);
    }
    LogInfo("Tokens: {}, by {}, kept in {}.", Summary(done), tokenizer_file.string(),
            output.string());
  }
  return {output.string()};
}

}  // namespace zeroplan
