// How much readers take of what others wrote: configs, records, tables, tokenizers, templates,
// weights, logs. One fact has one place here, and what is past it is refused by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace zeroplan {

// Bytes of a config or another file that people write.
inline constexpr uint64_t kMostConfigBytes = uint64_t{16} << 20;
// Bytes of a record, and of a value of a table: what it takes in memory is a multiple.
inline constexpr uint64_t kMostRecordBytes = uint64_t{64} << 20;
// Bytes of a tokenizer.json.
inline constexpr uint64_t kMostTokenizerBytes = uint64_t{256} << 20;
// Bytes of the header of a safetensors file, as the package safetensors has it.
inline constexpr uint64_t kMostHeaderBytes = 100'000'000;
// Values of JSON in each other: much of what walks over them does it by recursion.
inline constexpr int kMostJsonDepth = 64;
// Members of an object of a record, and columns of a table.
inline constexpr size_t kMostMembers = 10'000;
// Values of a record, and of a JSON file, which take some 100 bytes of memory each: a number and
// its comma are two of the file's. The largest tokenizer.json in use has two million.
inline constexpr size_t kMostRecordValues = 1'000'000, kMostJsonValues = 4'000'000;
// Steps of a tokenizer's normalizer, pre-tokenizer or decoder, and tokens that it puts before or
// behind a text.
inline constexpr size_t kMostTokenizerSteps = 100, kMostTokensAround = 1'000;
// Bytes of an error or a line of the log.
inline constexpr size_t kMostMessageBytes = size_t{8} << 10;

// Bytes that a tokenizer's steps may make of a text of so many: no step of a tokenizer that is in
// use makes more than eleven of one (NFKD of U+FDFA).
inline constexpr uint64_t MostMadeOf(uint64_t bytes) {
  constexpr uint64_t kMost = uint64_t{1} << 30;
  return bytes > kMost / 64 ? kMost : 64 * bytes + (uint64_t{1} << 20);
}

// Throws Error(kUsage) that begins with `where` for a record nested deeper than kMostJsonDepth,
// with more values than kMostRecordValues, with an object of more members than kMostMembers, or
// with objects so many and large that looking their members up takes seconds. Looks at nothing
// else: `text` need not be JSON.
void CheckJsonBounds(std::string_view text, std::string_view where);

// Throws Error(kUsage) for a name with a byte 0 in it: the system would take what stands before.
void CheckFileName(const std::filesystem::path& path);

// A message within kMostMessageBytes, its middle left out, and "\x00" for bytes that are 0, at
// which a C string ends.
std::string BoundedMessage(std::string_view message);

}  // namespace zeroplan
