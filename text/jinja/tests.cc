// Jinja's tests: value is name(arguments).
#include <array>
#include <cstdlib>
#include <optional>

#include "text/jinja/evaluate.h"

namespace zeroplan::jinja {
namespace {

// Tests that are operators, by their names.
std::optional<Operator> OperatorOfTest(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, Operator>, 12> kNames = {
      {{"eq", Operator::kEqual},
       {"equalto", Operator::kEqual},
       {"ne", Operator::kUnequal},
       {"gt", Operator::kGreater},
       {"greaterthan", Operator::kGreater},
       {"ge", Operator::kGreaterEqual},
       {"lt", Operator::kLess},
       {"lessthan", Operator::kLess},
       {"le", Operator::kLessEqual},
       {"in", Operator::kIn},
       {"==", Operator::kEqual},
       {"!=", Operator::kUnequal}}};
  static constexpr std::array<std::pair<std::string_view, Operator>, 4> kSigns = {
      {{">", Operator::kGreater},
       {">=", Operator::kGreaterEqual},
       {"<", Operator::kLess},
       {"<=", Operator::kLessEqual}}};
  for (const auto& [known, operation] : kNames) {
    if (known == name) return operation;
  }
  for (const auto& [known, operation] : kSigns) {
    if (known == name) return operation;
  }
  return std::nullopt;
}

bool IsSame(const Value& a, const Value& b) {
  if (a.IsSameAs(b)) {
    const bool may_be_two = a.real() != nullptr || a.large() != nullptr ||
                            (a.is_plain_integer() && std::llabs(*a.number()) > 256);
    if (may_be_two) Fail("sameas of numbers that may be two is not supported");
    return true;
  }
  if (a.text() != nullptr && b.text() != nullptr && a == b) {
    Fail("sameas of equal texts is not supported");
  }
  return false;
}

bool IsRest(const Value& value, const Value& by, const Value& rest) {
  return Operate(Operator::kRemainder, value, by) == rest;
}

}  // namespace

bool CallTest(std::string_view name, const Value& value, const Arguments& arguments) {
  if (const std::optional<Operator> operation = OperatorOfTest(name)) {
    return Operate(*operation, value, Bound(name, {"other"}, arguments).Need(0)).IsTrue();
  }
  if (name == "sameas") return IsSame(value, Bound(name, {"other"}, arguments).Need(0));
  if (name == "divisibleby") {
    return IsRest(value, Bound(name, {"num"}, arguments).Need(0), int64_t{0});
  }
  const Bound none(name, {}, arguments);
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.text() != nullptr;
  if (name == "mapping") return value.dict() != nullptr;
  if (name == "boolean") return value.flag() != nullptr;
  if (name == "true" || name == "false") {
    return value.flag() != nullptr && *value.flag() == (name == "true");
  }
  if (name == "number") return value.is_number();
  if (name == "integer") return value.is_plain_integer();
  if (name == "float") return value.real() != nullptr;
  if (name == "callable") return value.is_callable();
  if (name == "escaped") return value.text() != nullptr && value.text()->safe;
  if (name == "iterable") {
    return value.text() != nullptr || value.sequence() != nullptr || value.dict() != nullptr ||
           value.is_undefined() || value.loop() != nullptr;
  }
  if (name == "sequence") {
    return value.text() != nullptr || value.list() != nullptr || value.dict() != nullptr ||
           value.is_undefined() ||
           (value.sequence() != nullptr && value.sequence()->kind == Sequence::Kind::kRange);
  }
  if (name == "odd" || name == "even") {
    return IsRest(value, int64_t{2}, int64_t{name == "odd"});
  }
  if (name == "lower" || name == "upper") {
    return *IsOfKind(name == "lower" ? "islower" : "isupper", Printed(value).bytes);
  }
  if (name == "filter" || name == "test")
    Fail("the test " + std::string(name) + " is not supported");
  Fail("there is no test " + std::string(name));
}

}  // namespace zeroplan::jinja
