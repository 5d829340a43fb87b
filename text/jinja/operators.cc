// Operators and arithmetic, as Python has them.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>

#include "text/jinja/evaluate.h"

namespace zeroplan::jinja {
namespace {

constexpr double kExactReal = 9007199254740992.0;  // 2^53: up to it reals are exact

std::string_view SpellingOf(Operator operation) {
  static constexpr std::array<std::string_view, 16> kSpellings = {
      "+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kSpellings[static_cast<size_t>(operation)];
}

[[noreturn]] void FailKinds(Operator operation, const Value& a, const Value& b) {
  NeedDefined(a);
  NeedDefined(b);
  Fail(fmt::format("{} of {} and {}", SpellingOf(operation), a.KindName(), b.KindName()));
}

Value IntegerPower(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) Fail("a division by zero");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  __int128 power = 1;
  constexpr __int128 kMost = __int128{1} << 126;
  for (; exponent > 0 && base != 1 && power != 0; --exponent) {
    if (base == -1 && exponent > 1) exponent = exponent % 2 == 0 ? 2 : 1;
    if (base != 0 && (power < 0 ? -power : power) > kMost / (base < 0 ? -__int128{base} : base)) {
      Fail("numbers of over 126 bits are not supported");
    }
    power *= base;
  }
  return OfWide(power);
}

Value IntegerArithmetic(Operator operation, int64_t a, int64_t b) {
  switch (operation) {
    case Operator::kAdd:
      return OfWide(__int128{a} + b);
    case Operator::kSubtract:
      return OfWide(__int128{a} - b);
    case Operator::kMultiply:
      return OfWide(__int128{a} * b);
    case Operator::kPower:
      return IntegerPower(a, b);
    default:
      break;
  }
  if (b == 0) Fail("a division by zero");
  if (operation == Operator::kDivide) {
    const double x = static_cast<double>(a), y = static_cast<double>(b);
    if (std::fabs(x) > kExactReal || std::fabs(y) > kExactReal) {
      Fail("/ of numbers past 2^53 is not supported");
    }
    return x / y;
  }
  // As Python rounds: down.
  const __int128 x = a, y = b;
  const __int128 quotient = x / y - ((x % y != 0 && (x < 0) != (y < 0)) ? 1 : 0);
  return OfWide(operation == Operator::kFloorDivide ? quotient : x - quotient * y);
}

Value RealArithmetic(Operator operation, double a, double b) {
  switch (operation) {
    case Operator::kAdd:
      return a + b;
    case Operator::kSubtract:
      return a - b;
    case Operator::kMultiply:
      return a * b;
    case Operator::kPower: {
      if (a == 0 && b < 0) Fail("a division by zero");
      if (a < 0 && std::isfinite(b) && std::trunc(b) != b) Fail("a power that is no real number");
      const double power = std::pow(a, b);
      if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) Fail("a number is too large");
      return power;
    }
    default:
      break;
  }
  if (b == 0) Fail("a division by zero");
  if (operation == Operator::kDivide) return a / b;
  // CPython's float_divmod.
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) {
      rest += b;
      quotient -= 1;
    }
  } else {
    rest = std::copysign(0.0, b);
  }
  if (operation == Operator::kRemainder) return rest;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value Arithmetic(Operator operation, const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) FailKinds(operation, a, b);
  if (a.real() != nullptr || b.real() != nullptr) {
    if (a.large() != nullptr || b.large() != nullptr) {
      Fail("arithmetic with integers of over 64 bits is not supported");
    }
    return RealArithmetic(operation, *a.as_real(), *b.as_real());
  }
  if (!a.number() || !b.number()) {
    Fail("arithmetic with integers of over 64 bits is not supported");
  }
  return IntegerArithmetic(operation, *a.number(), *b.number());
}

// a + b of texts. What is safe escapes what is not, as markupsafe does.
Value Sum(const Text& a, const Text& b) {
  Make(a.Cost() + b.Cost());
  Text sum = a.safe || !b.safe ? a : Escaped(a);
  sum.Append(b.safe || !a.safe ? b : Escaped(b));
  sum.safe = a.safe || b.safe;
  return sum;
}

Value Repeated(const Value& value, int64_t times) {
  const uint64_t count = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  const size_t unit = value.text() != nullptr ? value.text()->Cost()
                                              : value.sequence()->elements.size() * sizeof(Value);
  if (unit == 0) return value;
  if (count > SIZE_MAX / unit) Make(SIZE_MAX);
  Make(count * unit);
  if (value.text() != nullptr) {
    const Text& once = *value.text();
    Text text;
    if (once.bytes.size() == 1) {
      text.bytes.assign(count, once.bytes[0]);
    } else {
      text.bytes.reserve(once.bytes.size() * count);
      for (uint64_t i = 0; i < count; ++i) text.bytes += once.bytes;
    }
    for (uint64_t i = 0; i < count && !once.marks.empty(); ++i) {
      for (const Mark& mark : once.marks) {
        const size_t before = i * once.bytes.size();
        text.marks.push_back({mark.begin + before, mark.end + before, mark.message});
      }
    }
    text.safe = value.text()->safe;
    return text;
  }
  const List& elements = value.sequence()->elements;
  List list;
  list.reserve(elements.size() * count);
  for (uint64_t i = 0; i < count; ++i) list.insert(list.end(), elements.begin(), elements.end());
  return Sequence{value.sequence()->kind, std::move(list), 0, {}};
}

bool CanBeRepeated(const Value& value) {
  return value.text() != nullptr || value.list() != nullptr;
}

}  // namespace

Value Operate(Operator operation, const Value& a, const Value& b) {
  switch (operation) {
    case Operator::kEqual:
      return a == b;
    case Operator::kUnequal:
      return !(a == b);
    case Operator::kIn:
      return Contains(b, a);
    case Operator::kNotIn:
      return !Contains(b, a);
    case Operator::kLess:
      return Compare(a, b) == -1;
    case Operator::kLessEqual: {
      const int order = Compare(a, b);
      return order == -1 || order == 0;
    }
    case Operator::kGreater:
      return Compare(a, b) == 1;
    case Operator::kGreaterEqual: {
      const int order = Compare(a, b);
      return order == 1 || order == 0;
    }
    case Operator::kConcat: {
      Output out;
      for (const Value* value : {&a, &b}) {
        if (value->text() != nullptr) {
          out.Append(*value->text());
        } else {
          out.Append(Printed(*value));
        }
      }
      return out.Take();
    }
    case Operator::kAdd:
      if (a.text() != nullptr && b.text() != nullptr) return Sum(*a.text(), *b.text());
      if (a.list() != nullptr && b.list() != nullptr && a.sequence()->kind == b.sequence()->kind) {
        Make((a.list()->size() + b.list()->size()) * sizeof(Value));
        List list = *a.list();
        list.insert(list.end(), b.list()->begin(), b.list()->end());
        return Sequence{a.sequence()->kind, std::move(list), 0, {}};
      }
      break;
    case Operator::kMultiply:
      if (CanBeRepeated(a) && b.number()) return Repeated(a, *b.number());
      if (CanBeRepeated(b) && a.number()) return Repeated(b, *a.number());
      break;
    case Operator::kRemainder:
      if (a.text() != nullptr) return FormatPercent(*a.text(), b);
      break;
    default:
      break;
  }
  if (a.dict() != nullptr && b.dict() != nullptr) Fail("operators between mappings");
  return Arithmetic(operation, a, b);
}

Value Minus(const Value& value) {
  NeedDefined(value);
  if (value.real() != nullptr) return -*value.real();
  if (value.number()) return OfWide(-__int128{*value.number()});
  if (value.large() == nullptr) Fail("- before " + std::string(value.KindName()));
  const std::string& digits = value.large()->digits;
  return Value::Integer(digits[0] == '-' ? digits.substr(1) : "-" + digits);
}

Value Plus(const Value& value) {
  NeedDefined(value);
  if (!value.is_number()) Fail("+ before " + std::string(value.KindName()));
  return value.flag() != nullptr ? Value(*value.number()) : value;
}

}  // namespace zeroplan::jinja
