// One JSON scalar as a file gives it. The JSON library is heavy to compile: only json_scalar.cc
// needs it, not whoever reads a config.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace zeroplan {

class JsonScalar {
 public:
  // A number keeps the first of these that holds it: uint64_t, int64_t, double.
  using Value = std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string>;

  JsonScalar() : value_(nullptr) {}
  explicit JsonScalar(Value value) : value_(std::move(value)) {}
  explicit JsonScalar(std::string text) : value_(std::move(text)) {}

  bool is_null() const { return Is<std::nullptr_t>(); }
  bool is_boolean() const { return Is<bool>(); }
  bool is_string() const { return Is<std::string>(); }
  bool is_number() const { return Is<int64_t>() || Is<uint64_t>() || Is<double>(); }
  const Value& value() const { return value_; }

  // REQUIRES: it is one.
  bool boolean() const { return std::get<bool>(value_); }
  const std::string& text() const { return std::get<std::string>(value_); }
  double number() const {
    return Is<double>()     ? std::get<double>(value_)
           : Is<uint64_t>() ? static_cast<double>(std::get<uint64_t>(value_))
                            : static_cast<double>(std::get<int64_t>(value_));
  }

  // As JSON text.
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

}  // namespace zeroplan
