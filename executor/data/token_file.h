// Files of tokens, as llm.c reads and writes them: a header of 256 int32 (magic number, version,
// number of tokens, zeros), then the tokens, all little-endian. Magic number and version say how
// large a token is. Bare files have no header: .u32 holds uint32 tokens, .u16 and .bin uint16.
// Source: karpathy/llm.c, dev/data/data_common.py (HEADERS_INFO, write_datafile).
//
// In the header's zeros zeroplan says which tokenizer the tokens are from (TokenFileOrigin): llm.c
// does not look there.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/durable_file.h"
#include "executor/data/mapped_file.h"

namespace zeroplan {

struct TokenFileKind {
  int32_t magic = 0;
  int32_t version = 0;
  uint32_t token_bytes = 0;
};
inline constexpr TokenFileKind kTokenFiles16 = {20240520, 1, 2};
inline constexpr TokenFileKind kTokenFiles32 = {20240801, 7, 4};
inline constexpr uint64_t kTokenFileHeaderBytes = 256 * sizeof(int32_t);

// Whose ids the tokens of a file are. In the header behind the number of tokens:
// kTokenFileOriginMark, then the digest (32 bytes), then vocab.
struct TokenFileOrigin {
  std::array<uint8_t, 32> digest{};  // Tokenizer::digest
  int32_t vocab = 0;                 // Tokenizer::vocab_size
  friend bool operator==(const TokenFileOrigin&, const TokenFileOrigin&) = default;
};
inline constexpr int32_t kTokenFileOriginMark = 0x4B4F545A;  // "ZTOK"

// By its name: ".bin", ".u16" or ".u32".
bool IsTokenFile(const std::filesystem::path& path);

// Where the tokens of a token file lie. Throws Error(kUsage) naming `path` if the size is no
// multiple of a token's, or if there is a header that names another version, another number of
// tokens than the file has, or tokens of another size than the file's name.
struct TokenFileExtent {
  uint64_t offset = 0;       // bytes
  uint64_t count = 0;        // tokens
  uint32_t token_bytes = 0;  // 2 or 4
  bool has_header = false;
  std::optional<TokenFileOrigin> origin;
};
TokenFileExtent FindTokens(const MappedFile& file, const std::filesystem::path& path);

// Writes a file of tokens with a header, piece by piece: of uint16, or of uint32 where they come
// from a vocabulary that is larger than 65,536. The file appears under its name, whole and on disk,
// when Finish returns; what was there before stays until then.
class TokenFileWriter {
 public:
  // Throws Error(kUsage) if `path` does not end in .bin (it would be taken for text),
  // Error(kRuntime) if it cannot be written.
  explicit TokenFileWriter(const std::filesystem::path& path, IoHook* hook = nullptr,
                           std::optional<TokenFileOrigin> origin = std::nullopt);

  // REQUIRES: tokens in [0, origin's vocab), without an origin in [0, 65535]. Throws Error(kUsage)
  // past 2^31 - 1 tokens, the most the header can say.
  void Append(std::span<const int32_t> tokens);
  void Finish();

  uint64_t count() const { return count_; }
  uint32_t token_bytes() const { return kind_.token_bytes; }

 private:
  IoHook* hook_;
  std::optional<TokenFileOrigin> origin_;
  TokenFileKind kind_;
  int32_t end_;  // one past the largest token
  TemporaryFile temporary_;
  DurableFile file_;
  std::vector<uint16_t> buffer_;
  uint64_t count_ = 0;
};

// `tokens` as one file.
void WriteTokenFile(const std::filesystem::path& path, std::span<const int32_t> tokens,
                    IoHook* hook = nullptr);
// The bytes of text files and folders (see TokenDataset) as one token file. Returns the number of
// tokens. Throws Error(kUsage) if the inputs are token files already.
uint64_t TokenizeText(std::span<const std::string> texts, const std::filesystem::path& path,
                      IoHook* hook = nullptr);

}  // namespace zeroplan
