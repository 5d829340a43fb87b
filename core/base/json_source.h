// JSON as people write it, with the line of every key for messages. Parsed as Hjson
// (hjson.github.io/syntax.html): comments (//, #, /* */), trailing commas, a comma left out at a
// line's end, the outer braces left out, keys without quotes, strings in single quotes, in
// '''several lines''' or without quotes. A string without quotes extends to the end of its line,
// commas and brackets included. Python's True, False and None are accepted for true, false and
// null. A duplicate key is an error.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace zeroplan {

// The `what` of a nlohmann::json exception without its leading name and number in brackets.
inline std::string_view JsonErrorText(std::string_view what) {
  const size_t end = what.find("] ");
  return what.starts_with("[json.exception") && end != std::string_view::npos ? what.substr(end + 2)
                                                                              : what;
}

// One scalar as a file gives it. The JSON library is heavy to compile: only json_source.cc needs
// it, not the readers of a config.
class JsonScalar {
 public:
  // A number has the first of these types that holds it: uint64_t, int64_t, double.
  using Value = std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string>;

  JsonScalar() : value_(nullptr) {}
  explicit JsonScalar(Value value) : value_(std::move(value)) {}
  explicit JsonScalar(std::string text) : value_(std::move(text)) {}

  bool is_null() const { return Is<std::nullptr_t>(); }
  bool is_boolean() const { return Is<bool>(); }
  bool is_string() const { return Is<std::string>(); }
  bool is_number() const { return Is<int64_t>() || Is<uint64_t>() || Is<double>(); }
  const Value& value() const { return value_; }

  // REQUIRES: the scalar has that type.
  bool boolean() const { return std::get<bool>(value_); }
  const std::string& text() const { return std::get<std::string>(value_); }
  double number() const {
    return Is<double>()     ? std::get<double>(value_)
           : Is<uint64_t>() ? static_cast<double>(std::get<uint64_t>(value_))
                            : static_cast<double>(std::get<int64_t>(value_));
  }

  // The scalar as JSON text.
  std::string Dump() const;

  friend bool operator==(const JsonScalar& a, std::string_view text) {
    return a.is_string() && a.text() == text;
  }
  friend bool operator==(const JsonScalar& a, std::same_as<bool> auto value) {
    return a.is_boolean() && a.boolean() == value;
  }
  template <typename T>
    requires(std::floating_point<T> || (std::integral<T> && !std::same_as<T, bool>))
  friend bool operator==(const JsonScalar& a, T value) {
    return a.is_number() && a.number() == static_cast<double>(value);
  }

 private:
  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(value_);
  }

  Value value_;
};

// The scalar that `text` is in strict JSON; nullopt if it is anything else.
std::optional<JsonScalar> ParseJsonScalar(std::string_view text);

struct JsonMember;

// One value of the text.
struct JsonNode {
  enum class Kind { kScalar, kObject, kArray };

  Kind kind = Kind::kScalar;
  int line = 1;                     // line of its key, or, without a key, of its start
  JsonScalar scalar;                // kScalar
  std::vector<JsonMember> members;  // kObject, in the order of the text
  std::vector<JsonNode> elements;   // kArray

  bool is_object() const { return kind == Kind::kObject; }
  bool is_array() const { return kind == Kind::kArray; }
  bool is_null() const { return kind == Kind::kScalar && scalar.is_null(); }
  bool is_string() const { return kind == Kind::kScalar && scalar.is_string(); }

  // The member of that name, or nullptr; nullptr if this is no object.
  const JsonNode* Find(std::string_view key) const;
  // The value as messages quote it: scalars in full (shortened past 60 characters), else "{...}" or
  // "[...]".
  std::string Quote() const;
  // The value as strict JSON on one line.
  std::string Dump() const;
};

struct JsonMember {
  std::string key;
  JsonNode value;
};

// Throws Error(kUsage) "SOURCE:LINE: ..." that names the expected syntax. Nesting is limited to 64
// levels.
JsonNode ParseJsonText(std::string_view text, std::string_view source);

// Reads the file as text. Throws Error(kUsage) if it cannot be read, is larger than 16 MiB, or is
// no regular file: reading a pipe without a writer would block. Reads /dev/stdin (or -) and a
// shell's /dev/fd/N all the same; a second call returns the same text.
std::string ReadTextFile(const std::filesystem::path& file);

}  // namespace zeroplan
