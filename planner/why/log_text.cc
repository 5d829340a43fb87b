#include "planner/why/log_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "core/base/strings.h"

namespace zeroplan {
namespace {

// Digits with commas between thousands, a fraction and an exponent. `*end` is behind it.
std::optional<double> NumberAt(std::string_view text, size_t at, size_t* end) {
  std::string digits;
  size_t i = at;
  for (; i < text.size() && digits.size() < 40; ++i) {
    const char c = text[i];
    if (c == ',' && i + 3 < text.size() && i > at && IsDigit(text[i + 1]) && IsDigit(text[i + 2]) &&
        IsDigit(text[i + 3]) && (i + 4 >= text.size() || !IsDigit(text[i + 4]))) {
      continue;
    }
    const bool exponent = (c == 'e' || c == 'E') && !digits.empty() && i + 1 < text.size() &&
                          (IsDigit(text[i + 1]) || text[i + 1] == '+' || text[i + 1] == '-');
    const bool sign =
        (c == '+' || c == '-') && !digits.empty() && (digits.back() == 'e' || digits.back() == 'E');
    const bool point = c == '.' && i + 1 < text.size() && IsDigit(text[i + 1]);
    if (!IsDigit(c) && !exponent && !sign && !point) break;
    digits += c;
  }
  double value = 0;
  const char* last = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), last, value);
  if (error != std::errc() || stop != last || !std::isfinite(value)) return std::nullopt;
  if (end != nullptr) *end = i;
  return value;
}

struct SizeUnit {
  std::string_view name;
  double bytes;
};
constexpr auto kSizeUnits = std::to_array<SizeUnit>({{"GiB", 1ull << 30},
                                                     {"MiB", 1ull << 20},
                                                     {"KiB", 1ull << 10},
                                                     {"TiB", 1ull << 40},
                                                     {"bytes", 1},
                                                     {"Bytes", 1}});

std::optional<uint64_t> Bytes(double value, std::string_view unit) {
  for (const SizeUnit& known : kSizeUnits) {
    if (unit.starts_with(known.name) && value * known.bytes < 1e18) {
      return static_cast<uint64_t>(value * known.bytes);
    }
  }
  return std::nullopt;
}

size_t Behind(std::string_view line, std::string_view key) {
  const size_t at = line.find(key);
  if (at == std::string_view::npos) return at;
  size_t i = at + key.size();
  while (i < line.size() && std::string_view(" =:'\"").find(line[i]) != std::string_view::npos) ++i;
  return i;
}

}  // namespace

bool IsTrue(std::string_view value) {
  return value.empty() || value == "True" || value == "true" || value == "1" || value == "yes";
}
bool IsFalse(std::string_view value) {
  return value == "False" || value == "false" || value == "0" || value == "no" || value == "None";
}
bool IsCount(std::string_view value) {
  return !value.empty() && value.size() < 12 &&
         value.find_first_not_of("0123456789") == value.npos && value.front() != '0';
}

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::optional<double> NumberAfter(std::string_view line, std::string_view key) {
  size_t at = Behind(line, key);
  if (at == std::string_view::npos) return std::nullopt;
  if (line.substr(at, 2) == "..") at = line.find_first_not_of(". ", at);
  if (at == std::string_view::npos) return std::nullopt;
  return NumberAt(line, at, nullptr);
}

std::optional<int64_t> CountAfter(std::string_view line, std::string_view key) {
  const std::optional<double> value = NumberAfter(line, key);
  if (!value || *value < 0 || *value > 9e15 || *value != std::floor(*value)) return std::nullopt;
  return static_cast<int64_t>(*value);
}

std::optional<uint64_t> SizeAfter(std::string_view line, std::string_view key) {
  const size_t at = Behind(line, key);
  if (at == std::string_view::npos) return std::nullopt;
  size_t end = at;
  const std::optional<double> value = NumberAt(line, at, &end);
  if (!value) return std::nullopt;
  return Bytes(*value, Trimmed(line.substr(end)));
}

std::optional<uint64_t> SizeBefore(std::string_view line, std::string_view key) {
  const size_t at = line.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view before = Trimmed(line.substr(0, at));
  const size_t space = before.rfind(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const std::string_view unit = before.substr(space + 1);
  const std::string_view head = Trimmed(before.substr(0, space));
  size_t begin = head.size();
  while (begin > 0 && (IsDigit(head[begin - 1]) || head[begin - 1] == '.')) --begin;
  size_t end = begin;
  const std::optional<double> value = NumberAt(head, begin, &end);
  if (!value || end != head.size()) return std::nullopt;
  return Bytes(*value, unit);
}

std::optional<uint64_t> GibibytesAfter(std::string_view line, std::string_view key) {
  const std::optional<double> value = NumberAfter(line, key);
  if (!value || *value > 1e6) return std::nullopt;
  return static_cast<uint64_t>(*value * (1ull << 30));
}

std::vector<std::string> WordsIn(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  const auto end_word = [&] {
    if (in_word) words.push_back(std::move(word));
    word.clear();
    in_word = false;
  };
  bool quoted = false;  // what is before ends with a quote
  for (const char c : line) {
    const bool behind_quote = std::exchange(quoted, false);
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
        quoted = true;
      } else {
        word += c;
      }
    } else if (c == '"' || c == '\'') {
      quote = c;
      in_word = true;
    } else if (c == ' ' || c == '\t' || c == '[' || c == ']' || c == '\\' ||
               (c == ',' && (behind_quote ||
                             (!word.starts_with("--") && word.find('=') == std::string::npos)))) {
      end_word();
    } else {
      word += c;
      in_word = true;
    }
  }
  end_word();
  return words;
}

std::string WithoutControls(std::string_view line) {
  std::string text;
  text.reserve(line.size());
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '\x1b' && i + 1 < line.size() && line[i + 1] == '[') {
      i += 2;
      while (i < line.size() && (line[i] < '@' || line[i] > '~')) ++i;
      continue;
    }
    if (c == '\t' || static_cast<unsigned char>(c) >= ' ') text += c;
  }
  return text;
}

std::optional<int> RankOf(std::string_view line) {
  const std::string_view start = line.substr(0, 24);
  for (const std::string_view key : {"[rank", "[default", "[Rank "}) {
    const size_t at = start.find(key);
    if (at == std::string_view::npos) continue;
    size_t end = 0;
    const std::optional<double> rank = NumberAt(line, at + key.size(), &end);
    if (rank && *rank < 1e6 && end < line.size() && line[end] == ']') {
      return static_cast<int>(*rank);
    }
  }
  return std::nullopt;
}

std::string PlainOption(std::string_view name) {
  while (name.starts_with('-')) name.remove_prefix(1);
  std::string normal(name);
  std::replace(normal.begin(), normal.end(), '-', '_');
  return normal;
}

bool IsCommand(std::string_view line) {
  for (const std::string_view launcher :
       {"llamafactory-cli ", "swift sft", "swift rlhf", "axolotl train", "axolotl.cli.train",
        "NPROC_PER_NODE="}) {
    if (HasPart(line, launcher)) return true;
  }
  if (!HasPart(line, "--")) return false;
  for (const std::string_view mark : {"python", "torchrun", "deepspeed ", "accelerate launch",
                                      "cmd = ", ".py", "return code", "tune run", "trl "}) {
    if (HasPart(line, mark)) return true;
  }
  return Trimmed(line).starts_with("--") || Trimmed(line).starts_with("> ");
}

std::string PlainOptimizer(std::string value) {
  const size_t dot = value.find("OptimizerNames.");
  if (dot == std::string::npos) return value;
  value = value.substr(dot + 15);
  if (const size_t colon = value.find(": "); colon != std::string::npos) {
    value = value.substr(colon + 2);
  }
  std::erase(value, '>');
  return LowerAscii(value);
}

std::string GpuNameIn(std::string_view line) {
  const size_t at = line.find("NVIDIA ");
  const bool names_gpu = at != std::string_view::npos &&
                         (HasPart(line, "CUDA capacity: ") || HasPart(line, "CUDA device (") ||
                          (Trimmed(line).starts_with("|") && !HasPart(line, "SMI")));
  if (!names_gpu) return "";
  std::string_view name = line.substr(at);
  for (const std::string_view end : {"  ", " with ", "'", "|"}) {
    name = name.substr(0, name.find(end));
  }
  // nvidia-smi shortens names to what several cards have in common.
  return HasPart(name, "...") ? "" : std::string(Trimmed(name));
}

}  // namespace zeroplan
