// The words of options, configs and JSON for the values of a type. Each type's table is next to the
// type and is the only list of its words.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

template <typename T>
struct Word {
  std::string_view word;
  T value;
};
template <typename T, size_t kCount>
using WordTable = std::array<Word<T>, kCount>;

// The table of an enum. Each enum specializes it next to its definition.
template <typename T>
inline constexpr WordTable<T, 0> kWords{};

// The first word of `value`. REQUIRES: the table has one.
template <typename T, size_t kCount>
constexpr std::string_view WordFor(const WordTable<T, kCount>& table, T value) {
  for (const Word<T>& entry : table) {
    if (entry.value == value) return entry.word;
  }
  return "unknown";
}
template <typename T>
constexpr std::string_view WordOf(T value) {
  return WordFor(kWords<T>, value);
}

// The value of `word`; nullopt if the table lacks the word.
template <typename T, size_t kCount>
constexpr std::optional<T> ValueIn(const WordTable<T, kCount>& table, std::string_view word) {
  for (const Word<T>& entry : table) {
    if (entry.word == word) return entry.value;
  }
  return std::nullopt;
}

// The first `count` words in the order of the table.
template <typename Text = std::string, typename T, size_t kCount>
std::vector<Text> WordsOf(const WordTable<T, kCount>& table, size_t count = kCount) {
  std::vector<Text> words;
  for (size_t i = 0; i < count; ++i) words.emplace_back(table[i].word);
  return words;
}
// "none|cpu|nvme".
std::string AnyOf(const std::vector<std::string>& words);
// "\"none\", \"cpu\" or \"nvme\"".
std::string QuotedChoice(const std::vector<std::string>& words);

}  // namespace zeroplan
