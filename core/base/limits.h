// Limits on what readers accept from others' files: configs, records, tables, tokenizers,
// templates, weights, logs. Each limit is defined here only; readers refuse by name whatever
// exceeds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace zeroplan {

// Bytes of a config or another file that people write.
inline constexpr uint64_t kMostConfigBytes = uint64_t{16} << 20;
// Bytes of a record, and of a value of a table; it needs a multiple of this in memory.
inline constexpr uint64_t kMostRecordBytes = uint64_t{64} << 20;
// Bytes of a tokenizer.json.
inline constexpr uint64_t kMostTokenizerBytes = uint64_t{256} << 20;
// Bytes of the header of a safetensors file: the limit of the package safetensors.
inline constexpr uint64_t kMostHeaderBytes = 100'000'000;
// Nesting depth of JSON values: much of the code that walks over them is recursive.
inline constexpr int kMostJsonDepth = 64;
// Members of an object of a record, and columns of a table.
inline constexpr size_t kMostMembers = 10'000;
// Values of a record, and of a JSON file, which need some 100 bytes of memory each, while a number
// and its comma can be two bytes of the file. The largest tokenizer.json in use has two million.
inline constexpr size_t kMostRecordValues = 1'000'000, kMostJsonValues = 4'000'000;
// Steps of a tokenizer's normalizer, pre-tokenizer or decoder, and tokens that it adds before or
// after a text.
inline constexpr size_t kMostTokenizerSteps = 100, kMostTokensAround = 1'000;
// Bytes of an error or a line of the log.
inline constexpr size_t kMostMessageBytes = size_t{8} << 10;

// Bytes that a tokenizer's steps may make of a text of `bytes` bytes: no step of a tokenizer in use
// makes more than eleven from one (NFKD of U+FDFA).
inline constexpr uint64_t MostMadeOf(uint64_t bytes) {
  constexpr uint64_t kMost = uint64_t{1} << 30;
  return bytes > kMost / 64 ? kMost : 64 * bytes + (uint64_t{1} << 20);
}

// Throws Error(kUsage) that begins with `where` for a record nested deeper than kMostJsonDepth,
// with more values than kMostRecordValues, with an object of more members than kMostMembers, or
// with so many and large objects that looking up their members takes seconds. Checks nothing else:
// `text` need not be JSON.
void CheckJsonBounds(std::string_view text, std::string_view where);

// Throws Error(kUsage) for a name with a zero byte: the system would use the part before it.
void CheckFileName(const std::filesystem::path& path);

// A message within kMostMessageBytes, shortened in its middle, with "\x00" for zero bytes, which
// end a C string.
std::string BoundedMessage(std::string_view message);

}  // namespace zeroplan
