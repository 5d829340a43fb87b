// Converts a field's text to its value. Each function throws Error(kUsage) that names the field,
// the value and what is allowed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/settings/zero_config.h"

namespace zeroplan {

// A whole number from `low` to `high`; "2k" and "1e3" are numbers too. REQUIRES: low >= 1.
int64_t ParseWhole(std::string_view text, std::string_view option, int64_t low, int64_t high);
// A number from 0.01 to 1000, as a factor.
double ParseFactor(const std::string& text, std::string_view option);
// 0 to 1000.
double ParseCoefficient(const std::string& text, std::string_view option);
// A number above 0 and up to 1.
double ParseRatio(const std::string& text, std::string_view option);
// A number above 0 and up to a million, of adapters.
double ParseAlpha(const std::string& text, std::string_view option);
// A number from 0 to below 1: the dropped share.
double ParseDropout(const std::string& text, std::string_view option);
// A number above 0 and up to a million, such as 3 or 0.5.
double ParseEpochs(const std::string& text, std::string_view option);
// A number above 0 and up to a million, as a price.
double ParsePrice(const std::string& text, std::string_view option);
// Whole numbers from 1 to `high`, each once, in any order ("1,2,4,8"). The result is ascending.
std::vector<int> ParseCounts(const std::string& text, std::string_view option, int64_t high);
// Names, each once ("rtx4090,l40s"), in the given order.
std::vector<std::string> ParseNames(const std::string& text, std::string_view option);
// A rate such as "0.1/h", "2/day" or "1/6h", in events a second: above 0, at most 1.
double ParseRate(const std::string& text, std::string_view option);
// A time with its unit, such as "30s", "2min" or "3d", in seconds: above 0, at most 100 years.
double ParseSeconds(const std::string& text, std::string_view option);
// Index of `text` in `allowed`. The error suggests a near miss.
size_t ParseWord(const std::string& text, std::string_view option,
                 const std::vector<std::string>& allowed);

// "all" (0), "node" (kWholeNode) or a number from 2 on.
int ParseShardGroup(const std::string& text, std::string_view option);
// "0".."3", several of them ("2,3"; each once, in any order) or "all". The result is ascending.
std::vector<int> ParseStages(const std::string& text, std::string_view option);
// Numbers of GPUs that share a sequence ("1,2,4"; each once, in any order), ascending; empty for
// "auto".
std::vector<int> ParseSequenceRanks(const std::string& text, std::string_view option);
// Bytes of a memory or a disk, as ParseBytes reads them. A size below a megabyte probably lacks its
// unit ("80" for 80GB), so it is an error that suggests one.
uint64_t ParseMemory(const std::string& text, std::string_view option);
// The same, or "0" for none.
uint64_t ParseReserve(const std::string& text, std::string_view option);
int64_t ParseSequenceTokens(const std::string& text, std::string_view option, int64_t high);
// Indices of one of `words`, of several ("none,cpu"; each once, in any order) or of "all",
// ascending.
std::vector<size_t> ParseSome(const std::string& text, std::string_view option,
                              const std::vector<std::string>& words);
// ParseSome of the words of devices.
std::vector<OffloadDevice> ParseOffload(const std::string& text, std::string_view option);

// For Command::Value: ParseWhole as a T.
template <typename T>
auto WholeIn(int64_t low, int64_t high) {
  return [low, high](const std::string& text, std::string_view option) {
    return static_cast<T>(ParseWhole(text, option, low, high));
  };
}
// For Command::Value: tokens of a sequence, up to `high`. "4k" is refused with both readings:
// people mean 4096 by it, and counts here are powers of ten.
inline auto SequenceTokens(int64_t high) {
  return [high](const std::string& text, std::string_view option) {
    return ParseSequenceTokens(text, option, high);
  };
}
// For Command::Value: the value of one of the table's first `count` words.
template <typename T, size_t kCount>
auto OneOf(const WordTable<T, kCount>& table, size_t count = kCount) {
  return [&table, count](const std::string& text, std::string_view option) {
    return table[ParseWord(text, option, WordsOf(table, count))].value;
  };
}
// For Command::Value: ParseWord as an enum, whose values are the words in their order.
template <typename Enum>
auto WordIn(std::vector<std::string> words) {
  return [words = std::move(words)](const std::string& text, std::string_view option) {
    return static_cast<Enum>(ParseWord(text, option, words));
  };
}

// Limits on counts that train, estimate and plan share.
inline constexpr int64_t kMaxGpus = 1'000'000;
inline constexpr int kMaxDrives = 256;  // the same limit as host.nvme_drives has
inline constexpr int64_t kMaxBatch = 2'147'483'647;

}  // namespace zeroplan
