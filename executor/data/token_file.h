// Files of uint16 tokens, as llm.c reads and writes them: a header of 256 int32 (magic number,
// version, number of tokens, zeros), then the tokens, all little-endian. Bare uint16 files have no
// header. Source: karpathy/llm.c, dev/data/data_common.py (write_datafile).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "executor/data/durable_file.h"
#include "executor/data/mapped_file.h"

namespace zeroplan {

inline constexpr int32_t kTokenFileMagic = 20240520;
inline constexpr int32_t kTokenFileVersion = 1;
inline constexpr uint64_t kTokenFileHeaderBytes = 256 * sizeof(int32_t);

// By its name: ".bin" or ".u16".
bool IsTokenFile(const std::filesystem::path& path);

// Where the tokens of a token file lie. Throws Error(kUsage) naming `path` if the size is odd, or
// if there is a header that names another version or another number of tokens than the file has.
struct TokenFileExtent {
  uint64_t offset = 0;  // bytes
  uint64_t count = 0;   // tokens
};
TokenFileExtent FindTokens(const MappedFile& file, const std::filesystem::path& path);

// Writes a token file with a header, piece by piece. The file appears under its name, whole and on
// disk, when Finish returns; what was there before stays until then.
class TokenFileWriter {
 public:
  // Throws Error(kUsage) if `path` does not end in .bin (it would be taken for text),
  // Error(kRuntime) if it cannot be written.
  explicit TokenFileWriter(const std::filesystem::path& path, IoHook* hook = nullptr);

  // REQUIRES: tokens in [0, 65535]. Throws Error(kUsage) past 2^31 - 1 tokens, the most the header
  // can say.
  void Append(std::span<const int32_t> tokens);
  void Finish();

  uint64_t count() const { return count_; }

 private:
  IoHook* hook_;
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
