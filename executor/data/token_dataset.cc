#include "executor/data/token_dataset.h"

#include <algorithm>
#include <cstring>

#include "core/base/error.h"
#include "executor/data/token_file.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kByteTokens = 256;

// The regular files below `folder`, at any depth, in byte order of their paths. Linked files count,
// linked folders are not entered: they could lead in circles.
std::vector<fs::path> FilesBelow(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  auto entry = fs::recursive_directory_iterator(folder, error);
  while (!error && entry != fs::recursive_directory_iterator()) {
    std::error_code gone;  // a dangling link is no file
    if (entry->is_regular_file(gone)) files.push_back(entry->path());
    entry.increment(error);
  }
  if (error) ThrowUsage("{}: cannot list the folder: {}", folder.string(), error.message());
  if (files.empty()) ThrowUsage("{}: the folder holds no files", folder.string());
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  return files;
}

uint16_t LoadU16(const std::byte* data) {
  uint16_t value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

}  // namespace

TokenDataset TokenDataset::Open(std::span<const std::string> paths) {
  if (paths.empty()) ThrowUsage("--data: no file or folder given");
  TokenDataset data;
  for (const std::string& path : paths) {
    std::error_code error;
    if (fs::is_directory(path, error)) {
      for (const fs::path& file : FilesBelow(path)) data.Add(file);
    } else {
      data.Add(path);
    }
  }
  if (data.pieces_.empty()) {
    ThrowUsage("{}{}: no tokens, every file is empty", paths[0], paths.size() > 1 ? ", ..." : "");
  }
  return data;
}

void TokenDataset::Add(const fs::path& path) {
  Piece piece{.path = path, .file = MappedFile::Open(path), .begin = size_};
  if (piece.file.size() == 0) return;
  const bool is_text = !IsTokenFile(path);
  const auto extent =
      is_text ? TokenFileExtent{0, piece.file.size()} : FindTokens(piece.file, path);
  if (extent.count == 0) return;
  if (!pieces_.empty() && is_text != is_text_) {
    const Piece& first = pieces_.front();
    ThrowUsage(
        "{} is text and {} is a file of uint16 tokens: one run reads one kind; turn the text into "
        "tokens with 'zeroplan data tokenize'",
        (is_text ? path : first.path).string(), (is_text ? first.path : path).string());
  }
  is_text_ = is_text;
  piece.data = piece.file.bytes().data() + extent.offset;
  piece.count = extent.count;
  size_ += extent.count;
  pieces_.push_back(std::move(piece));
}

std::optional<int64_t> TokenDataset::vocab_needed() const {
  return is_text_ ? std::optional(kByteTokens) : std::nullopt;
}

void TokenDataset::SetVocab(int64_t vocab) {
  if (is_text_ && vocab < kByteTokens) {
    ThrowUsage("{}: text has {} tokens (its bytes), the model's vocabulary only {}",
               pieces_.front().path.string(), kByteTokens, vocab);
  }
  vocab_ = vocab;
}

void TokenDataset::Read(uint64_t begin, std::span<int32_t> out) const {
  ZEROPLAN_CHECK(begin <= size_ && out.size() <= size_ - begin, "tokens {} + {} of {}", begin,
                 out.size(), size_);
  if (out.empty()) return;
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), begin,
                                [](uint64_t at, const Piece& p) { return at < p.begin; }) -
               1;
  for (; !out.empty(); ++piece) {
    const uint64_t first = begin - piece->begin;
    const size_t count = std::min<uint64_t>(out.size(), piece->count - first);
    ReadTokens(*piece, first, out.first(count));
    out = out.subspan(count);
    begin += count;
  }
}

void TokenDataset::ReadTokens(const Piece& piece, uint64_t first, std::span<int32_t> out) const {
  if (is_text_) {
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = std::to_integer<int32_t>(piece.data[first + i]);
    return;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const uint16_t token = LoadU16(piece.data + sizeof(uint16_t) * (first + i));
    if (token >= vocab_) {
      ThrowUsage("{}: token {} at position {} is outside the model's vocabulary of {}",
                 piece.path.string(), token, first + i, vocab_);
    }
    out[i] = token;
  }
}

}  // namespace zeroplan
