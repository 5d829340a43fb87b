#include "planner/request/parse.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "core/base/units.h"
#include "planner/request/request.h"

namespace zeroplan {

int64_t ParseWhole(std::string_view text, std::string_view option, int64_t low, int64_t high) {
  // ParseCount does not accept 0.
  if (low == 0 && !text.empty() && text.find_first_not_of('0') == std::string_view::npos) return 0;
  // ParseCount's examples in millions do not help if only small numbers are allowed.
  constexpr int64_t kMany = int64_t{1} << 32;
  if (high < kMany && text.find_first_not_of("-+.0123456789") == std::string_view::npos) {
    int64_t whole = 0;
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, whole);
    if (error != std::errc() || at != end || whole < low) {
      ThrowUsage("{}: {} is not allowed; use a whole number from {} to {}", option,
                 text.empty() ? "''" : text, low, high);
    }
  }
  const uint64_t value = ParseCount(text, option);
  if (value < static_cast<uint64_t>(low) || value > static_cast<uint64_t>(high)) {
    ThrowUsage("{}: {} is not allowed; use a whole number from {} to {}", option, text, low, high);
  }
  return static_cast<int64_t>(value);
}

namespace {

// nullopt: not a number.
std::optional<double> ParseNumber(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole ? std::optional(value) : std::nullopt;
}

// nullopt: not a number above 0 and up to `high`.
std::optional<double> ParsePositive(const std::string& text, double high) {
  const std::optional<double> value = ParseNumber(text);
  return value && *value > 0 && *value <= high ? value : std::nullopt;
}

}  // namespace

double ParseRatio(const std::string& text, std::string_view option) {
  const std::optional<double> value = ParsePositive(text, 1);
  if (!value) ThrowUsage("{}: {} is not allowed; use a number above 0 and up to 1", option, text);
  return *value;
}

double ParseFactor(const std::string& text, std::string_view option) {
  const std::optional<double> value = ParsePositive(text, 1000);
  if (!value || *value < 0.01) {
    ThrowUsage("{}: {} is not allowed; use a number from 0.01 to 1000", option, text);
  }
  return *value;
}

double ParseCoefficient(const std::string& text, std::string_view option) {
  const std::optional<double> value = ParseNumber(text);
  if (!value || !(*value >= 0 && *value <= 1000)) {
    ThrowUsage("{}: {} is not allowed; use a number from 0 to 1000, such as 0.001", option, text);
  }
  return *value;
}

double ParseAlpha(const std::string& text, std::string_view option) {
  const std::optional<double> value = ParsePositive(text, 1e6);
  if (!value)
    ThrowUsage("{}: {} is not allowed; use a number above 0 and up to 1000000, such as 32", option,
               text);
  return *value;
}

double ParseDropout(const std::string& text, std::string_view option) {
  const std::optional<double> value = ParseNumber(text);
  if (!value || !(*value >= 0 && *value < 1)) {
    ThrowUsage("{}: {} is not allowed; use a number from 0 to below 1, such as 0.05", option, text);
  }
  return *value;
}

double ParseEpochs(const std::string& text, std::string_view option) {
  const std::optional<double> value = ParsePositive(text, 1e6);
  if (!value) {
    ThrowUsage("{}: {} is not allowed; use a number above 0 and up to 1000000, such as 3 or 0.5",
               option, text);
  }
  return *value;
}

double ParsePrice(const std::string& text, std::string_view option) {
  const std::optional<double> value = ParsePositive(text, 1e6);
  if (!value) {
    ThrowUsage("{}: {} is not allowed; use a number above 0 and up to 1000000, without a currency",
               option, text);
  }
  return *value;
}

std::vector<int> ParseCounts(const std::string& text, std::string_view option, int64_t high) {
  std::vector<int> counts;
  for (std::string_view one : SplitList(text)) {
    one = WithoutBlanks(one);
    const auto count = static_cast<int>(ParseWhole(one, option, 1, high));
    if (std::find(counts.begin(), counts.end(), count) != counts.end()) {
      ThrowUsage("{}: {} has {} twice; name each once", option, text, one);
    }
    counts.push_back(count);
  }
  std::sort(counts.begin(), counts.end());
  return counts;
}

std::vector<std::string> ParseNames(const std::string& text, std::string_view option) {
  std::vector<std::string> names;
  for (std::string_view one : SplitList(text)) {
    one = WithoutBlanks(one);
    if (one.empty()) ThrowUsage("{}: {} has an empty name; leave the comma out", option, text);
    if (one == "any") ThrowUsage("{}: any stands alone; leave the other names out", option);
    if (std::find(names.begin(), names.end(), one) != names.end()) {
      ThrowUsage("{}: {} has {} twice; name each once", option, text, one);
    }
    names.emplace_back(one);
  }
  return names;
}

namespace {

constexpr double kMostSeconds = 100 * 365 * 86400.0;

// Seconds of a unit of time; nullopt: not a unit. "m" is not one, because it may mean a month.
std::optional<double> UnitSeconds(std::string_view unit) {
  struct Unit {
    double seconds;
    std::vector<std::string_view> names;
  };
  static const Unit kUnits[] = {{1, {"s", "sec", "second", "seconds"}},
                                {60, {"min", "mins", "minute", "minutes"}},
                                {3600, {"h", "hr", "hour", "hours"}},
                                {86400, {"d", "day", "days"}},
                                {7 * 86400.0, {"w", "week", "weeks"}}};
  for (const Unit& known : kUnits) {
    if (std::find(known.names.begin(), known.names.end(), unit) != known.names.end()) {
      return known.seconds;
    }
  }
  return std::nullopt;
}

// "6h", "h" (one) and "1.5 h" in seconds; nullopt: not a time, or not above 0.
std::optional<double> TimeOf(std::string_view text, bool needs_number) {
  const size_t letters = text.find_first_not_of("0123456789.+-eE");
  if (letters == std::string_view::npos) return std::nullopt;
  std::string_view unit = text.substr(letters);
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  const std::optional<double> seconds = UnitSeconds(unit);
  const std::string number(text.substr(0, letters));
  if (!seconds || (number.empty() && needs_number)) return std::nullopt;
  const std::optional<double> count = number.empty() ? 1 : ParsePositive(number, 1e9);
  return count ? std::optional(*count * *seconds) : std::nullopt;
}

}  // namespace

double ParseRate(const std::string& text, std::string_view option) {
  const size_t slash = text.find('/');
  if (slash != std::string::npos) {
    const std::optional<double> count = ParsePositive(text.substr(0, slash), 1e9);
    const std::optional<double> time = TimeOf(std::string_view(text).substr(slash + 1), false);
    if (count && time && *count <= *time && *time <= kMostSeconds * *count) return *count / *time;
  }
  ThrowUsage(
      "{}: {} is not allowed; use how many there are in a time, at most one a second and at least "
      "one in a hundred years, such as 0.1/h, 2/day or 1/6h",
      option, text.empty() ? "''" : text);
}

double ParseSeconds(const std::string& text, std::string_view option) {
  const std::optional<double> time = TimeOf(text, true);
  if (time && *time <= kMostSeconds) return *time;
  ThrowUsage(
      "{}: {} is not allowed; use a time above 0 with its unit, such as 30s, 2min, 24h or 3d",
      option, text.empty() ? "''" : text);
}

size_t ParseWord(const std::string& text, std::string_view option,
                 const std::vector<std::string>& allowed) {
  // Synonyms from other tools and earlier versions.
  constexpr std::pair<std::string_view, std::string_view> kSame[] = {
      {"gpu", "cuda"}, {"table", "text"}, {"true", "on"}, {"false", "off"}};
  for (size_t i = 0; i < allowed.size(); ++i) {
    if (allowed[i] == text) return i;
  }
  for (size_t i = 0; i < allowed.size(); ++i) {
    for (const auto& [other, own] : kSame) {
      if (text == other && allowed[i] == own) return i;
    }
  }
  const std::string nearest = NearestName(text, allowed);
  ThrowUsage("{}: {} is not allowed{}; use {}", option, text.empty() ? "\"\"" : text,
             nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest),
             fmt::join(allowed, ", "));
}

int ParseShardGroup(const std::string& text, std::string_view option) {
  if (text == "all") return 0;
  if (text == "node") return kWholeNode;
  const std::optional<double> number = ParseNumber(text);
  if (!number || *number != std::floor(*number) || *number < 2 ||
      *number > static_cast<double>(kMaxGpus)) {
    ThrowUsage("{}: {} is not allowed; use the GPUs of a shard group (from 2 on), node or all",
               option, text.empty() ? "''" : text);
  }
  return static_cast<int>(*number);
}

std::vector<int> ParseStages(const std::string& text, std::string_view option) {
  if (text == "all") return {0, 1, 2, 3};
  std::vector<int> stages;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(',', begin);
    const std::string one = text.substr(begin, end - begin);
    const bool known = one.size() == 1 && one[0] >= '0' && one[0] <= '3';
    const int stage = known ? one[0] - '0' : -1;
    if (!known || std::find(stages.begin(), stages.end(), stage) != stages.end()) {
      ThrowUsage("{}: {} is not allowed; use 0, 1, 2, 3, all, or some of them such as 2,3", option,
                 text);
    }
    stages.push_back(stage);
  }
  std::sort(stages.begin(), stages.end());
  return stages;
}

std::vector<int> ParseSequenceRanks(const std::string& text, std::string_view option) {
  std::vector<int> ranks;
  if (text == "auto") return ranks;
  for (const std::string_view one : SplitList(text)) {
    const std::optional<double> number = ParseNumber(std::string(one));
    const bool whole = number && *number == std::floor(*number) && *number >= 1 &&
                       *number <= static_cast<double>(kMaxGpus);
    if (!whole || std::find(ranks.begin(), ranks.end(), static_cast<int>(*number)) != ranks.end()) {
      ThrowUsage(
          "{}: {} is not allowed; use the GPUs that share a sequence, some such as 1,2,4, or auto",
          option, text.empty() ? "''" : text);
    }
    ranks.push_back(static_cast<int>(*number));
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

uint64_t ParseMemory(const std::string& text, std::string_view option) {
  constexpr uint64_t kLeast = 1'000'000;
  const uint64_t bytes = ParseBytes(text, option);
  if (bytes >= kLeast) return bytes;
  const bool bare = text.find_first_not_of("0123456789.") == std::string::npos;
  // Nobody writes 4096 GB for the memory of a GPU or host; nvidia-smi and free report MiB.
  const char* meant = bytes < 4096 ? "GB" : "MiB";
  ThrowUsage("{}: {} is {} byte{}; {}", option, text, bytes, bytes == 1 ? "" : "s",
             bare ? fmt::format("did you mean {}{}?", text, meant)
                  : std::string("use a size such as 80GB or 79GiB"));
}

uint64_t ParseReserve(const std::string& text, std::string_view option) {
  return text == "0" ? 0 : ParseMemory(text, option);
}

int64_t ParseSequenceTokens(const std::string& text, std::string_view option, int64_t high) {
  const int64_t tokens = ParseWhole(text, option, 1, high);
  if (text.ends_with('k') || text.ends_with('K')) {
    ThrowUsage("{}: {} is {} or {}? Give the number", option, text, tokens,
               tokens / 1000 * 1024 + tokens % 1000 * 1024 / 1000);
  }
  return tokens;
}

std::vector<size_t> ParseSome(const std::string& text, std::string_view option,
                              const std::vector<std::string>& words) {
  std::vector<size_t> some;
  if (text.find(',') == std::string::npos) {
    std::vector<std::string> allowed = words;
    allowed.emplace_back("all");
    some = {ParseWord(text, option, allowed)};
    if (some.front() < words.size()) return some;
    some.resize(words.size());
    std::iota(some.begin(), some.end(), size_t{0});
    return some;
  }
  for (const std::string_view one : SplitList(text)) {
    const size_t index = ParseWord(std::string(one), option, words);
    if (std::find(some.begin(), some.end(), index) != some.end()) {
      ThrowUsage("{}: {} has {} twice; name each once", option, text, one);
    }
    some.push_back(index);
  }
  std::sort(some.begin(), some.end());
  return some;
}

std::vector<OffloadDevice> ParseOffload(const std::string& text, std::string_view option) {
  std::vector<OffloadDevice> devices;
  for (const size_t index : ParseSome(text, option, WordsOf(kWords<OffloadDevice>))) {
    devices.push_back(kWords<OffloadDevice>[index].value);
  }
  return devices;
}

}  // namespace zeroplan
