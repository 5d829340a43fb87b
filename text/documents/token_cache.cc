#include "text/documents/token_cache.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/hash.h"
#include "core/base/json_source.h"
#include "core/base/log.h"
#include "core/base/units.h"
#include "text/documents/chat_template.h"
#include "text/documents/token_text.h"
#include "text/files/byte_source.h"
#include "text/files/data_files.h"
#include "text/files/token_dataset.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// The number of what is made of the same facts: it rises when that changes.
constexpr int kVersion = 5;
// Files of less share a file of tokens with their neighbours.
constexpr uint64_t kSmallBytes = uint64_t{1} << 20;
constexpr size_t kMostInGroup = 4096;
constexpr uint64_t kDefaultLimit = 100'000'000'000;

// Files that become one file of tokens.
struct Group {
  std::vector<fs::path> files;
  std::vector<Checksum> contents;
};

Checksum ContentOf(const fs::path& path) {
  const MappedFile file = MappedFile::Open(path);
  ChecksumStream content;
  content.Add(file, 0, file.size());
  return content.Get();
}

std::vector<Checksum> ContentsOf(std::span<const fs::path> files, int threads) {
  std::vector<Checksum> contents(files.size());
  ParallelEach(files.size(), threads, [&](size_t i) { contents[i] = ContentOf(files[i]); });
  return contents;
}

// Small files that follow one another are one group, which ends at a content that says so: a file
// more or less changes its own group and no other.
std::vector<Group> GroupsOf(std::span<const fs::path> files, std::span<const Checksum> contents) {
  std::vector<Group> groups;
  bool open = false;
  for (size_t i = 0; i < files.size(); ++i) {
    std::error_code ignored;
    const bool small = fs::file_size(files[i], ignored) < kSmallBytes;
    if (!open || !small || groups.back().files.size() >= kMostInGroup) groups.emplace_back();
    groups.back().files.push_back(files[i]);
    groups.back().contents.push_back(contents[i]);
    open = small && contents[i][0] % 256 != 0;
  }
  return groups;
}

// What decides the tokens besides the files' contents.
std::string FactsOf(const DataRequest& request, const Tokenizer& tokenizer,
                    std::optional<int32_t> end_of_text) {
  const TextChoices& choices = request.choices;
  std::string facts = fmt::format("{} {} {} {} {} {}\n", kVersion, AsText(tokenizer.digest()),
                                  end_of_text.value_or(-1), choices.train_on_all,
                                  choices.special_tokens, choices.skip_bad);
  for (const auto& [member, in_file] : choices.names) {
    facts += fmt::format("{}={}:{}\n", member, in_file.size(), in_file);
  }
  return facts;
}

std::string NameOf(const Group& group, const std::string& facts, const fs::path& model_folder) {
  std::string all = facts;
  bool records = false;
  for (size_t i = 0; i < group.files.size(); ++i) {
    // The name decides how a file is read.
    const fs::path name = group.files[i].filename();
    records = records || FileKindOf(name) == FileKind::kRecords;
    all += fmt::format("{} {} {:016x}{:016x}\n", KindSuffix(name), KindSuffix(name.stem()),
                       group.contents[i][0], group.contents[i][1]);
  }
  // What decides the text of conversations; what decides ids is in the tokenizer's digest.
  std::vector<fs::path> read = TemplateFiles(model_folder);
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json",
                           "generation_config.json", "config.json"}) {
    read.push_back(model_folder / name);
  }
  for (const fs::path& file : read) {
    std::error_code ignored;
    if (!records || !fs::exists(file, ignored)) continue;
    all += fmt::format("{} {}", file.filename().string(), AsText(Sha256(ReadTextFile(file))));
  }
  const Sha256Digest digest = Sha256(all);
  return BytesToHex(digest.data(), 16) + ".bin";
}

// Of processes that want the same file one makes it, while it holds this lock. Held until it is
// closed, also by the end of the process.
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

// Files that this process reads are locked, shared, until it ends, so that nobody removes them.
void KeepInUse(const fs::path& file) {
  static std::mutex mutex;
  static std::map<fs::path, UniqueFd> in_use;
  UniqueFd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd) flock(fd.get(), LOCK_SH | LOCK_NB);
  const std::lock_guard guard(mutex);
  in_use.insert_or_assign(file, std::move(fd));
}

bool IsInUse(const fs::path& file) {
  const UniqueFd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  return fd && flock(fd.get(), LOCK_EX | LOCK_NB) != 0;
}

bool IsWhole(const fs::path& file, const Tokenizer& tokenizer) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return false;
  try {
    const MappedFile bytes = MappedFile::Open(file);
    CheckOrigin(FindTokens(bytes, file), file, tokenizer);
    if (ChecksumHolds(bytes).value_or(false)) return true;
  } catch (const Error&) {
  }
  LogWarning("{}: damaged, and made again.", file.string());
  return false;
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

// For models that take the files as they are.
void CheckAsTheyAre(const DataRequest& request, std::span<const fs::path> files) {
  std::error_code ignored;
  const fs::path& folder = request.model_folder;
  const bool has_tokenizer = !folder.empty() && fs::exists(folder / "tokenizer.json", ignored);
  const bool has_tokens = std::any_of(files.begin(), files.end(), IsTokenFile);
  if (has_tokenizer && has_tokens) CheckDataOrigin(request.data, folder);
  const TextChoices& choices = request.choices;
  const char* unused = !choices.names.empty()    ? "⟦map⟧"
                       : choices.train_on_all    ? "⟦train_on⟧"
                       : choices.skip_bad > 0    ? "⟦skip_bad⟧"
                       : !choices.special_tokens ? "⟦no_special_tokens⟧"
                                                 : nullptr;
  if (unused != nullptr) {
    ThrowUsage("{}: there are no records or texts to be turned into tokens here, {}; leave it out",
               unused, has_tokens ? "these are tokens already" : "the model has bytes as tokens");
  }
  for (const fs::path& file : files) {
    if (!has_tokenizer && !folder.empty() && request.vocab != kByteTokens && !IsTokenFile(file)) {
      RefuseWithoutTokenizer(folder, request.vocab, file);
    }
  }
  ParallelEach(files.size(), request.threads, [&](size_t i) {
    RefuseAsBytes(files[i]);
    if (!IsTokenFile(files[i])) return;
    const MappedFile file = MappedFile::Open(files[i]);
    FindTokens(file, files[i]);
    RefuseDamaged(file, files[i]);
  });
}

// Throws if the texts that `file` was made of have a token that was added to the tokenizer and not
// to the model.
void RefuseAddedTokens(const fs::path& file, const Tokenizer& tokenizer, const DataRequest& request,
                       std::span<const fs::path> texts) {
  if (tokenizer.vocab_size() <= request.vocab) return;
  constexpr uint64_t kLookTokens = uint64_t{1} << 18;
  const std::string name = file.string();
  const TokenDataset data = TokenDataset::Open({&name, 1});
  std::vector<int32_t> ids;
  for (uint64_t at = 0; at < data.size(); at += ids.size()) {
    ids.resize(std::min(kLookTokens, data.size() - at));
    data.Read(at, ids);
    const auto added =
        std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return id >= request.vocab; });
    if (added == ids.end()) continue;
    ThrowUsage(
        "{}: has {} (token {}), which the tokenizer in {} knows and the model, with {} tokens, "
        "does not; ⟦resize_embeddings⟧ adds the tokenizer's tokens to the model",
        FileNames(texts), tokenizer.Decode({&*added, 1}, false), *added,
        request.model_folder.string(), request.vocab);
  }
}

// How a token file of the same data is made by hand.
std::string ByHand(const DataRequest& request, const char* more) {
  std::string map;
  for (const auto& [member, in_file] : request.choices.names) {
    map += fmt::format("{}{}={}", map.empty() ? " ⟦map⟧ " : ",", member, in_file);
  }
  return fmt::format("zeroplan data tokenize {} ⟦tokenizer⟧ {}{}{}{} -o tokens.bin",
                     fmt::join(request.data, " "), request.model_folder.string(), map,
                     request.choices.train_on_all ? " ⟦train_on⟧ all" : "", more);
}

}  // namespace

std::vector<std::string> DataForModel(const DataRequest& request) {
  const DataSelection selection = SelectData(request.data);
  const std::vector<fs::path>& files = selection.files;
  if (request.says) {
    for (const std::string& note : selection.notes) LogInfo("{}.", note);
  }
  CheckOneKind(files);
  std::error_code ignored;
  const fs::path tokenizer_file = request.model_folder / "tokenizer.json";
  const bool has_tokenizer = !request.model_folder.empty() && fs::exists(tokenizer_file, ignored);
  if (!has_tokenizer || request.vocab == kByteTokens ||
      std::any_of(files.begin(), files.end(), IsTokenFile)) {
    CheckAsTheyAre(request, files);
    return request.data;
  }
  const Tokenizer tokenizer = Tokenizer::FromFile(tokenizer_file);
  const std::optional<int32_t> end_of_text = EndOfText(request.model_folder, tokenizer);
  if (request.cache_folder.empty()) {
    ThrowUsage(
        "{}: there is no folder to keep the tokens of text in (HOME is not set); set "
        "ZEROPLAN_CACHE_DIR, or make a token file and train with that: {}",
        request.data[0], ByHand(request, ""));
  }
  const uint64_t limit = CacheLimit();
  const fs::path folder = request.cache_folder / "tokens";
  if (std::error_code failed; !fs::create_directories(folder, failed) && failed) {
    ThrowRuntime(
        "{}: the folder to keep tokens in cannot be made ({}); ZEROPLAN_CACHE_DIR names another",
        folder.string(), failed.message());
  }
  TokenizeOptions options;
  options.model = request.model_folder;
  options.choices = request.choices;
  options.threads = request.threads;
  options.says_losses = false;  // of kept tokens they are said, too
  options.end_of_text = [&] {
    if (end_of_text) return *end_of_text;
    ThrowUsage(
        "{}: no tokenizer_config.json there names an eos_token, which ends each text; make a "
        "token file that says it, and train with that: {}",
        request.model_folder.string(), ByHand(request, " ⟦end_of_text⟧ TOKEN"));
  };
  const std::string facts = FactsOf(request, tokenizer, end_of_text);
  std::vector<std::string> made;
  TokenizedFiles all;
  std::string first;
  for (const Group& group : GroupsOf(files, ContentsOf(files, request.threads))) {
    const fs::path output = folder / NameOf(group, facts, request.model_folder);
    const UniqueFd lock = LockBeside(output);
    if (!IsWhole(output, tokenizer)) {
      const TokenizedFiles done =
          TokenizeFiles(tokenizer, group.files, options, output, /*whole=*/false);
      if (ContentsOf(group.files, request.threads) != group.contents) {
        fs::remove(output, ignored);
        ThrowUsage("{}: changed while it was read; wait for whoever writes there",
                   group.files[0].string());
      }
      all.Add(done);
    }
    // When it was last used; its own time stays that of its making.
    const std::array<timespec, 2> times = {timespec{0, UTIME_NOW}, timespec{0, UTIME_OMIT}};
    utimensat(AT_FDCWD, output.c_str(), times.data(), 0);
    const TokenFileExtent extent = FindTokens(MappedFile::Open(output), output);
    if (request.says) SayLosses(extent.losses, FileNames(group.files), request.choices);
    if (extent.count == 0) continue;
    RefuseAddedTokens(output, tokenizer, request, group.files);
    KeepInUse(output);
    made.push_back(output.string());
    if (first.empty() && FileKindOf(group.files[0]) == FileKind::kRecords) first = output.string();
  }
  if (made.empty()) ThrowUsage("{}: no text in it", request.data[0]);
  if (!TokenDataset::Open(made).any_counts()) RefuseUncounted(files[0]);
  if (all.tokens > 0) {
    LogInfo("Tokens: {}, by {}, kept in {}.", Summary(all), tokenizer_file.string(),
            folder.string());
    TrimCachedTokens(request.cache_folder, limit);
  }
  if (request.says && !first.empty()) {
    LogInfo("The first record, what counts in the loss in [[ ]]:\n{}",
            FirstDocument(tokenizer, first));
  }
  return made;
}

void CheckRecordChoices(const TextChoices& choices, std::span<const std::string> data) {
  const char* unused = !choices.names.empty() ? "⟦map⟧, ⟦text_field⟧"
                       : choices.skip_bad > 0 ? "⟦skip_bad⟧"
                                              : nullptr;
  if (unused == nullptr) return;
  const std::vector<fs::path> files = DataFiles(data);
  if (std::all_of(files.begin(), files.end(),
                  [](const fs::path& file) { return FileKindOf(file) == FileKind::kText; })) {
    ThrowUsage("{}: there are no records here, {} is text; leave it out", unused,
               files.empty() ? "" : files[0].string());
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

uint64_t CacheLimit() {
  const char* given = std::getenv("ZEROPLAN_CACHE_LIMIT");
  if (given == nullptr || *given == '\0') return kDefaultLimit;
  return ParseBytes(given, "ZEROPLAN_CACHE_LIMIT");
}

std::vector<CachedTokens> ListCachedTokens(const fs::path& cache_folder) {
  std::vector<std::pair<std::pair<int64_t, int64_t>, CachedTokens>> found;
  std::error_code ignored;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(cache_folder / "tokens", ignored)) {
    struct stat status {};
    if (entry.path().extension() != ".bin" || stat(entry.path().c_str(), &status) != 0) continue;
    found.emplace_back(
        std::pair(status.st_atim.tv_sec, status.st_atim.tv_nsec),
        CachedTokens{entry.path(), static_cast<uint64_t>(status.st_size), IsInUse(entry.path())});
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<CachedTokens> files;
  files.reserve(found.size());
  for (auto& [time, one] : found) files.push_back(std::move(one));
  return files;
}

uint64_t TrimCachedTokens(const fs::path& cache_folder, uint64_t limit) {
  const std::vector<CachedTokens> files = ListCachedTokens(cache_folder);
  uint64_t total = 0;
  for (const CachedTokens& file : files) total += file.bytes;
  uint64_t removed = 0;
  for (const CachedTokens& file : files) {
    if (total - removed <= limit) break;
    std::error_code failed;
    if (file.in_use || !fs::remove(file.path, failed) || failed) continue;
    fs::remove(file.path.string() + ".lock", failed);
    removed += file.bytes;
  }
  return removed;
}

}  // namespace zeroplan
