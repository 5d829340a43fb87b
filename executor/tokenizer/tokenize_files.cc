#include "executor/tokenizer/tokenize_files.h"

#include <algorithm>
#include <vector>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "executor/data/files_below.h"
#include "executor/data/mapped_file.h"
#include "executor/data/token_dataset.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// So much text is encoded between two writes.
constexpr uint64_t kBatchBytes = uint64_t{32} << 20;
constexpr size_t kBatchFiles = 4096;

std::vector<fs::path> TextFiles(std::span<const std::string> paths) {
  std::vector<fs::path> files = DataFiles(paths);
  for (const fs::path& file : files) {
    if (IsTokenFile(file)) ThrowUsage("{}: is a token file already, not text", file.string());
  }
  return files;
}

std::string_view Text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.size()};
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

TokenizedFiles TokenizeFiles(const Tokenizer& tokenizer, std::span<const std::string> paths,
                             int32_t end_of_text, const fs::path& output, int threads,
                             IoHook* hook) {
  const std::vector<fs::path> files = TextFiles(paths);
  TokenFileWriter writer(output, hook, OriginOf(tokenizer));
  TokenizedFiles done;
  for (size_t next = 0; next < files.size();) {
    std::vector<MappedFile> batch;
    std::vector<std::string_view> texts;
    for (uint64_t bytes = 0;
         next < files.size() && bytes < kBatchBytes && batch.size() < kBatchFiles; ++next) {
      MappedFile file = MappedFile::Open(files[next]);
      if (file.size() == 0) continue;
      bytes += file.size();
      batch.push_back(std::move(file));
      texts.push_back(Text(batch.back()));
    }
    for (const std::vector<int32_t>& ids : tokenizer.EncodeMany(texts, false, threads)) {
      writer.Append(ids);
      writer.Append({&end_of_text, 1});
      writer.EndDocument();
    }
    done.documents += texts.size();
    for (const std::string_view text : texts) done.bytes += text.size();
  }
  if (done.documents == 0) ThrowUsage("{}: no text in it", paths.empty() ? "" : paths[0]);
  writer.Finish();
  done.tokens = writer.count();
  done.token_bytes = writer.token_bytes();
  return done;
}

std::string TokensAsText(const Tokenizer& tokenizer, const fs::path& path, uint64_t begin,
                         uint64_t count) {
  if (!IsTokenFile(path)) ThrowUsage("{}: is no token file (.bin, .u16, .u32)", path.string());
  CheckOrigin(FindTokens(MappedFile::Open(path), path), path, tokenizer);
  const std::string name = path.string();
  TokenDataset data = TokenDataset::Open({&name, 1});
  data.SetVocab(tokenizer.vocab_size());
  std::vector<int32_t> ids(std::min(count, data.size() - std::min(begin, data.size())));
  if (!ids.empty()) data.Read(begin, ids);
  return tokenizer.Decode(ids, false);
}

}  // namespace zeroplan
