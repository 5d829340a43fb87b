// Training tokens as one long stream, read in place from memory-mapped files.
//
// Text (any file that is not a token file) is read byte by byte: exactly 256 tokens, the bytes.
// Token files end in .bin, .u16 or .u32 and hold little-endian uint16 or uint32 tokens, with
// llm.c's header or bare (see token_file.h). Several files make one stream, in the order given; a
// folder stands for the regular files below it, in byte order of their paths (the order of `find
// -type f | LC_ALL=C sort`). Empty files are skipped.
//
// A token file may record its documents; a file that does not is one document.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/files/mapped_file.h"

namespace zeroplan {

// The vocabulary of text that is read byte by byte.
inline constexpr int64_t kByteTokens = 256;

// Thread-safe once SetVocab has been called. The files must not be cut short while it is open.
class TokenDataset {
 public:
  // Throws Error(kUsage) naming the path: missing, neither file nor folder, a folder without files,
  // no tokens at all, text and token files mixed, a token file that does not end with a whole
  // token, a header that contradicts the file.
  static TokenDataset Open(std::span<const std::string> paths);

  // Tokens of the whole stream, at least 1.
  uint64_t size() const { return size_; }
  bool is_text() const { return is_text_; }
  // 256 for text. nullopt for token files, which do not record their vocabulary: tokens are checked
  // as they are read.
  std::optional<int64_t> vocab_needed() const;
  // Files that hold tokens.
  size_t file_count() const { return pieces_.size(); }
  uint64_t documents() const { return documents_; }
  // Whether any file records which tokens count in the loss, as conversations do.
  bool has_mask() const { return has_mask_; }
  // Whether any of the tokens counts. Stops at the first.
  bool any_counts() const;
  // The number of tokens that count.
  uint64_t counted() const;

  // Calls fn(begin, end) for the documents, at least one token each, that begin at tokens [begin,
  // end) of the stream, in order.
  template <typename Fn>
  void ForEachDocument(uint64_t begin, uint64_t end, Fn&& fn) const {
    for (const Piece& piece : pieces_) {
      if (piece.begin >= end) return;
      if (piece.begin + piece.count <= begin) continue;
      const uint64_t first = FirstDocumentFrom(piece, begin);
      for (uint64_t d = first; d < piece.documents; ++d) {
        const uint64_t at = piece.begin + DocumentBegin(piece, d);
        if (at >= end) return;
        fn(at, piece.begin + DocumentBegin(piece, d + 1));
      }
    }
  }

  // Sets the model's real (unpadded) vocabulary; without it any id up to 2^31 - 1 is accepted.
  // Throws Error(kUsage) if a model with fewer than 256 tokens is to be trained on text, and if a
  // bare file interpreted as uint16 tokens can only hold uint32 ones.
  void SetVocab(int64_t vocab);

  // Searches for tokens outside the vocabulary before they are trained on, in part `part` of
  // `parts` of the stream. A part of more than `budget_bytes` is searched in evenly spaced blocks
  // of that much in all. Returns how many tokens of the part were checked or cannot be outside: all
  // of the part's, unless the budget was short. Throws as Read. REQUIRES: 0 <= part < parts.
  uint64_t CheckVocab(int part, int parts, uint64_t budget_bytes) const;
  // The number of tokens of that part.
  uint64_t PartSize(int part, int parts) const;

  // Digest of the content, independent of the files' names, including its documents and loss mask:
  // "8c1f..., 300000 tokens". Beyond `most_bytes` it covers evenly spaced blocks of 4 MiB, and
  // tells so: "..., 34 % of the bytes compared".
  std::string Digest(uint64_t most_bytes = uint64_t{16} << 30) const;

  // Reads tokens [begin, begin + out.size()). REQUIRES: they are within the stream. Throws
  // Error(kUsage) naming file and position of a token that is not in the vocabulary.
  void Read(uint64_t begin, std::span<int32_t> out) const;
  // Sets targets that do not count to -1. `targets` are tokens [begin, begin + targets.size()).
  void MaskTargets(uint64_t begin, std::span<int32_t> targets) const;

 private:
  // One file's tokens at positions [begin, begin + count) of the stream.
  struct Piece {
    std::filesystem::path path;
    MappedFile file;
    const std::byte* data = nullptr;  // points into file, behind the header
    uint64_t begin = 0;
    uint64_t count = 0;
    uint32_t token_bytes = 1;  // 1: text
    bool is_bare = false;      // a token file without a header
    uint64_t documents = 1;
    const std::byte* document_begins = nullptr;  // uint64 each; null: the file is one
    const std::byte* mask = nullptr;             // a bit a token; null: all count
  };

  // Document d of the piece, counted from its first token; d may be piece.documents: the end.
  static uint64_t DocumentBegin(const Piece& piece, uint64_t d) {
    if (d == piece.documents) return piece.count;
    if (piece.document_begins == nullptr) return 0;
    uint64_t begin;
    std::memcpy(&begin, piece.document_begins + 8 * d, sizeof begin);
    return begin;
  }
  // The first document that begins at the stream's token `position` or behind it.
  static uint64_t FirstDocumentFrom(const Piece& piece, uint64_t position);

  TokenDataset() = default;
  void Add(const std::filesystem::path& path);
  size_t PieceAt(uint64_t position) const;
  // Whether every possible token of the piece is in the vocabulary.
  bool CannotBeOutside(const Piece& piece) const;
  // Checks tokens [first, first + count) of the piece.
  void CheckTokens(const Piece& piece, uint64_t first, uint64_t count) const;
  [[noreturn]] void ThrowOutside(const Piece& piece, uint64_t position, uint32_t token) const;

  std::vector<Piece> pieces_;
  uint64_t size_ = 0;
  uint64_t documents_ = 0;
  bool is_text_ = true;
  bool has_mask_ = false;
  int64_t vocab_ = int64_t{std::numeric_limits<int32_t>::max()} + 1;
};

}  // namespace zeroplan
