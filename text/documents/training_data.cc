#include "text/documents/training_data.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/hash.h"
#include "core/base/json_source.h"
#include "core/base/log.h"
#include "text/documents/document_source.h"
#include "text/documents/tokenize_files.h"
#include "text/files/byte_source.h"
#include "text/files/mapped_file.h"
#include "text/files/token_dataset.h"
#include "text/files/token_file.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {
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
  const std::vector<std::string> as_it_is(data.begin(), data.end());
  std::error_code ignored;
  const fs::path tokenizer_file = model_folder / "tokenizer.json";
  const std::vector<fs::path> files = DataFiles(data);
  const bool has_tokenizer = !model_folder.empty() && fs::exists(tokenizer_file, ignored);
  const bool has_tokens = std::any_of(files.begin(), files.end(), IsTokenFile);
  if (!has_tokenizer || has_tokens || vocab == kByteTokens) {
    if (has_tokenizer && has_tokens) CheckDataOrigin(data, model_folder);
    if (!choices.text_field.empty() || choices.train_on_all) {
      ThrowUsage("{}: there are no records to be turned into tokens here, {}; leave it out",
                 choices.train_on_all ? "@@train_on" : "@@text_field",
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
    return fmt::format("zeroplan data tokenize {} @@tokenizer {}{}{}{} -o tokens.bin",
                       fmt::join(as_it_is, " "), model_folder.string(),
                       choices.text_field.empty() ? "" : " @@text_field " + choices.text_field,
                       choices.train_on_all ? " @@train_on all" : "", more);
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
          model_folder.string(), by_hand(" @@end_of_text TOKEN"));
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
