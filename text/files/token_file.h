// Token files in llm.c's format: a header of 256 int32 (magic number, version, number of tokens,
// zeros), then the tokens, all little-endian. Magic number and version determine the size of a
// token. Bare files have no header: .u32 holds uint32 tokens, .u16 and .bin uint16. Source:
// karpathy/llm.c, dev/data/data_common.py (HEADERS_INFO, write_datafile).
//
// In the header's zeros, which llm.c ignores, zeroplan records the tokenizer of the tokens
// (TokenFileOrigin). A file of documents has sections behind its tokens, and is refused by llm.c,
// which expects the file to end there. In the header from its int32 number 13 on:
//
//   13      kTokenFileSectionsMark
//   14, 15  tokens, uint64: number 2 is -1 if they are more than 2^31 - 1
//   16, 17  documents, uint64
//   18      1: there is a loss mask; else 0
//   19      kTokenFileChecksumMark, if there is a checksum
//   20..23  128-bit XXH3 digest: of all behind the header, then of the header with zeros here
//   24      kTokenFileLossesMark, if the tokens lack parts of the data (TokenFileLosses)
//   25, 26  records, uint64
//   27, 28  bytes, uint64
//
// Behind the tokens follow zeros up to a multiple of 8 bytes; then, for each document, the position
// of its first token (uint64, rising, the first 0): a document ends where the next one begins; then
// the loss mask, one bit a token, lowest bit first, 1: the token counts as a target of the loss.
// The bits behind the last token are 0. Without a mask all tokens count.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "text/files/mapped_file.h"

namespace zeroplan {

struct TokenFileKind {
  int32_t magic = 0;
  int32_t version = 0;
  uint32_t token_bytes = 0;
};
inline constexpr TokenFileKind kTokenFiles16 = {20240520, 1, 2};
inline constexpr TokenFileKind kTokenFiles32 = {20240801, 7, 4};
inline constexpr uint64_t kTokenFileHeaderBytes = 256 * sizeof(int32_t);

// The tokenizer of a file's tokens. In the header behind the number of tokens:
// kTokenFileOriginMark, then the digest (32 bytes), then vocab.
struct TokenFileOrigin {
  std::array<uint8_t, 32> digest{};  // Tokenizer::digest
  int32_t vocab = 0;                 // Tokenizer::vocab_size
  friend bool operator==(const TokenFileOrigin&, const TokenFileOrigin&) = default;
};
inline constexpr int32_t kTokenFileOriginMark = 0x4B4F545A;  // "ZTOK"

inline constexpr int32_t kTokenFileSectionsMark = 0x4345535A;  // "ZSEC"
inline constexpr int32_t kTokenFileChecksumMark = 0x4B48435A;  // "ZCHK"
inline constexpr int32_t kTokenFileLossesMark = 0x534F4C5A;    // "ZLOS"

// The parts of the data that its tokens lack.
struct TokenFileLosses {
  uint64_t records = 0;  // records that could not be read
  uint64_t bytes = 0;    // bytes that are not UTF-8
  friend bool operator==(const TokenFileLosses&, const TokenFileLosses&) = default;
};

// Whether a file holds tokens, by its name: ".bin", ".u16" or ".u32".
bool IsTokenFile(const std::filesystem::path& path);

// The places of a token file's parts. Throws Error(kUsage) naming `path` if the size is no multiple
// of a token's, or if there is a header that names another version, other numbers of tokens and
// documents than the file has, or tokens of another size than the file's name; also if documents do
// not begin one after the other within the tokens, or the mask has bits behind them. Checks all
// borders of documents: 8 bytes each.
struct TokenFileExtent {
  uint64_t offset = 0;       // bytes
  uint64_t count = 0;        // tokens
  uint32_t token_bytes = 0;  // 2 or 4
  bool has_header = false;
  std::optional<TokenFileOrigin> origin;
  TokenFileLosses losses;
  // Offset of the `documents` uint64 positions; a multiple of 8 bytes. With 0 documents the file
  // does not record them.
  uint64_t documents_offset = 0;
  uint64_t documents = 0;
  std::optional<uint64_t> mask_offset;  // size (count + 7) / 8 bytes; nullopt: all tokens count
};
TokenFileExtent FindTokens(const MappedFile& file, const std::filesystem::path& path);
// Whether the file is unchanged since it was written: nullopt if it has no checksum. Reads all of
// it. REQUIRES: FindTokens accepted it.
std::optional<bool> ChecksumHolds(const MappedFile& file);
// Throws Error(kUsage) naming `path` if ChecksumHolds is false.
void RefuseDamaged(const MappedFile& file, const std::filesystem::path& path);

// Writes a file of tokens with a header, piece by piece: of uint16, or of uint32 for a vocabulary
// larger than 65,536. The file appears under its name, whole and on disk, when Finish returns; an
// earlier file stays until then.
//
// It has sections, and a checksum, if it has an origin, if a document was ended, or if a token does
// not count. They are kept in memory until Finish: 8 bytes a document, and a bit a token from the
// first one on that does not count.
class TokenFileWriter {
 public:
  // Throws Error(kUsage) if `path` does not end in .bin (it would be read as text), Error(kRuntime)
  // if it cannot be written.
  explicit TokenFileWriter(const std::filesystem::path& path, IoHook* hook = nullptr,
                           std::optional<TokenFileOrigin> origin = std::nullopt);

  // Appends tokens that all count. REQUIRES: tokens in [0, origin's vocab), without an origin in
  // [0, 65535]. Throws Error(kUsage) beyond 2^31 - 1 tokens without an origin, the limit of llm.c.
  void Append(std::span<const int32_t> tokens);
  // Appends tokens that count if their `counted` is not 0. REQUIRES: equally many of both.
  void Append(std::span<const int32_t> tokens, std::span<const uint8_t> counted);
  // Ends the document behind the tokens appended so far. No effect if none were appended since the
  // last end.
  void EndDocument();
  // REQUIRES: an origin, if there are any losses.
  void SetLosses(const TokenFileLosses& losses) { losses_ = losses; }
  // Also ends the last document.
  void Finish();

  uint64_t count() const { return count_; }
  uint64_t documents() const { return documents_.size(); }
  // Number of tokens that count.
  uint64_t counted() const { return counted_; }
  uint32_t token_bytes() const { return kind_.token_bytes; }

 private:
  void Write(std::span<const int32_t> tokens);
  void WriteAt(uint64_t at, std::span<const std::byte> bytes);
  using FileHeader = std::array<int32_t, kTokenFileHeaderBytes / sizeof(int32_t)>;
  void WriteSections(FileHeader* header);

  IoHook* hook_;
  std::optional<TokenFileOrigin> origin_;
  TokenFileLosses losses_;
  TokenFileKind kind_;
  int32_t end_;  // one past the largest token
  TemporaryFile temporary_;
  DurableFile file_;
  std::vector<uint16_t> buffer_;
  uint64_t count_ = 0;
  uint64_t counted_ = 0;
  uint64_t document_begin_ = 0;      // begin of the document that is not ended
  std::vector<uint64_t> documents_;  // begins of the ended documents
  std::vector<uint8_t> mask_;        // empty: all tokens so far count
  ChecksumStream checksum_;          // covers the bytes behind the header
};

// Writes `tokens` as one file.
void WriteTokenFile(const std::filesystem::path& path, std::span<const int32_t> tokens,
                    IoHook* hook = nullptr);
// Writes the bytes of text files and folders (see TokenDataset) as one token file. Returns the
// number of tokens. Throws Error(kUsage) if the inputs are token files already.
uint64_t TokenizeText(std::span<const std::string> texts, const std::filesystem::path& path,
                      IoHook* hook = nullptr);

}  // namespace zeroplan
