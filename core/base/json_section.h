// Typed, checked reading of one JSON object. Reading a key makes it known, so that the list of
// known keys and the code that reads them cannot differ.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/words.h"

namespace zeroplan {

inline constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();

// Something wrong at a line, ready for a terminal: "SOURCE:LINE: path.key: ...".
struct JsonProblem {
  int line = 1;
  std::string text;
};

// A key's properties as its reader requested them, for code that describes the input
// (planner/schemas).
struct JsonKey {
  enum class Kind : uint8_t { kAny, kBool, kWhole, kNumber, kText, kSection };
  std::string name;
  Kind kind = Kind::kAny;
  double min = 0, max = 0;           // range of kWhole and kNumber
  std::vector<std::string> words{};  // allowed values of kText; empty: any
  bool any_case = false;             // `words` match in any case
  bool or_bool = false;              // a boolean is allowed, too
  bool required = false;             // required if its section is present
  bool refused = false;              // an error if it is switched on (IsSwitchedOn)
  std::string form{};                // JSON Schema of values that no getter reads
  std::string about{};               // a remark for people
};

// Getters return nullopt for a key that is absent, null or "auto": it is open. They accept numbers
// as people write them (5e8, "1"). Anything else is a problem: "SOURCE:LINE: path.key: VALUE is not
// allowed; use ALLOWED". `allowed` replaces the generic ending. A problem is thrown as
// Error(kUsage); a section with a list of problems adds it to the list instead, and the key counts
// as open.
class JsonSection {
 public:
  // `node` may be nullptr: an absent section, all keys open. It must outlive the section. `path` is
  // the key of the section itself ("zero_optimization"), empty for the root. It is a problem if
  // node is no object. `problems` may be nullptr, and must outlive the section.
  JsonSection(const JsonNode* node, std::string path, std::string source,
              std::vector<JsonProblem>* problems = nullptr);

  bool present() const { return node_ != nullptr; }
  const std::string& path() const { return path_; }
  const std::string& source() const { return source_; }
  const std::vector<std::string>& known() const { return known_; }
  // The known keys with their properties, in the same order.
  const std::vector<JsonKey>& keys() const { return keys_; }
  // The properties of a key, for the caller to extend. Marks it as known.
  JsonKey& Key(std::string_view key);

  // The member as written, or nullptr. Marks the key as known.
  const JsonNode* Raw(std::string_view key);
  // The same, but nullptr for null and "auto" too.
  const JsonNode* Value(std::string_view key);
  bool IsAuto(std::string_view key);

  std::optional<bool> Bool(std::string_view key);
  std::optional<int64_t> Int(std::string_view key, int64_t min = 0, int64_t max = kMaxInt,
                             std::string_view allowed = {});
  // Finite, min <= value <= max.
  std::optional<double> Number(std::string_view key, double min, double max,
                               std::string_view allowed = {});
  std::optional<std::string> String(std::string_view key, std::string_view allowed = {});
  // One of `words`, in that spelling; with `any_case` in any case.
  std::optional<std::string> Word(std::string_view key, const std::vector<std::string>& words,
                                  std::string_view allowed, bool any_case = false);
  // The value of one of the table's words.
  template <typename T, size_t kCount>
  std::optional<T> Word(std::string_view key, const WordTable<T, kCount>& table) {
    const std::vector<std::string> words = WordsOf(table);
    const std::optional<std::string> word = Word(key, words, QuotedChoice(words));
    return word ? ValueIn(table, *word) : std::nullopt;
  }

  // Keys that are present and not known, in the order of the text.
  std::vector<std::string> Unknown() const;

  // The member's value as a message quotes it, "nothing" if it is absent.
  std::string Quote(std::string_view key) const;
  // "SOURCE:LINE: path.key: ", the line being the key's, else the section's.
  std::string Where(std::string_view key) const;
  // Reports a problem at `key`.
  template <typename... Args>
  void Report(std::string_view key, fmt::format_string<Args...> format, Args&&... args) const {
    Add(key, fmt::format(format, std::forward<Args>(args)...));
  }
  // "VALUE is not allowed; use ALLOWED". REQUIRES: the key is present.
  void ReportValue(std::string_view key, std::string_view allowed) const;
  // The same as Report and ReportValue, but always thrown.
  [[noreturn]] void FailValue(std::string_view key, std::string_view allowed) const;
  template <typename... Args>
  [[noreturn]] void Fail(std::string_view key, fmt::format_string<Args...> format,
                         Args&&... args) const {
    throw Error(ExitCode::kUsage, Where(key) + fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  int LineOf(std::string_view key) const;
  void Add(std::string_view key, const std::string& text) const;

  const JsonNode* node_;
  std::string path_, source_;
  std::vector<JsonProblem>* problems_;
  std::vector<std::string> known_;
  std::vector<JsonKey> keys_;
};

// The number that a scalar is or, as a string, spells; nullopt for anything else.
std::optional<double> ScalarNumber(const JsonNode& node);

// Whether a switch is on: true, a number other than 0, a string other than "none", "false" and
// "auto", a non-empty list, or an object that is not {"enabled": false}.
bool IsSwitchedOn(const JsonNode& node);

}  // namespace zeroplan
