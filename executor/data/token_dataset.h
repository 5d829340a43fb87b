// Training tokens as one long stream, read in place from memory-mapped files.
//
// Text (any file that is not a token file) is read byte by byte: exactly 256 tokens, the bytes.
// Token files end in .bin or .u16 and hold little-endian uint16 tokens, with llm.c's header (see
// token_file.h) or, without its magic number, bare. Several files make one stream, in the order
// given; a folder stands for the regular files below it, in byte order of their paths (as `find
// -type f | LC_ALL=C sort` prints them). Empty files are skipped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "executor/data/mapped_file.h"

namespace zeroplan {

// Thread-safe once SetVocab has been called. The files must not be cut short while it is open.
class TokenDataset {
 public:
  // Throws Error(kUsage) naming the path: not there, neither file nor folder, a folder without
  // files, no tokens at all, text and token files mixed, a token file of odd size, a header that
  // contradicts the file's size.
  static TokenDataset Open(std::span<const std::string> paths);

  // Tokens of the whole stream, at least 1.
  uint64_t size() const { return size_; }
  bool is_text() const { return is_text_; }
  // 256 for text. Token files do not say what vocabulary they were made with: nullopt, and tokens
  // are checked as they are read.
  std::optional<int64_t> vocab_needed() const;
  // Files that hold tokens.
  size_t file_count() const { return pieces_.size(); }

  // The model's real (unpadded) vocabulary; without it any uint16 is accepted. Throws Error(kUsage)
  // if text is to train a model with fewer than 256 tokens.
  void SetVocab(int64_t vocab);

  // Tokens [begin, begin + out.size()). REQUIRES: they lie within the stream. Throws Error(kUsage)
  // naming file and position of a token that is not in the vocabulary.
  void Read(uint64_t begin, std::span<int32_t> out) const;

 private:
  // One file's tokens at positions [begin, begin + count) of the stream.
  struct Piece {
    std::filesystem::path path;
    MappedFile file;
    const std::byte* data = nullptr;  // into file, behind the header
    uint64_t begin = 0;
    uint64_t count = 0;
  };

  TokenDataset() = default;
  void Add(const std::filesystem::path& path);
  void ReadTokens(const Piece& piece, uint64_t first, std::span<int32_t> out) const;

  std::vector<Piece> pieces_;
  uint64_t size_ = 0;
  bool is_text_ = true;
  int64_t vocab_ = std::numeric_limits<uint16_t>::max() + 1;
};

}  // namespace zeroplan
