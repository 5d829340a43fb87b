// Python's two ways to format: text % values, and text.format(values).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "core/base/strings.h"
#include "text/jinja/evaluate.h"

namespace zeroplan::jinja {
namespace {

// [[fill]align][sign][#][0][width][,][.precision][type]
struct FormatSpec {
  Text fill = {" ", {}};
  char align = '\0', sign = '-', grouping = '\0', type = '\0';
  bool alternate = false, zeros = false;
  int64_t width = 0;
  std::optional<int> precision;
};

constexpr int64_t kMostWidth = 1000;

class SpecReader {
 public:
  explicit SpecReader(std::string_view text) : text_(text) {}

  FormatSpec Braces() {
    FormatSpec spec;
    const size_t first = text_.empty() ? 0 : Utf8Length(text_[0]);
    if (first < text_.size() && IsOneOf(text_[first], "<>=^")) {
      spec.fill.bytes = text_.substr(0, first);
      spec.align = text_[first];
      at_ = first + 1;
    } else if (!text_.empty() && IsOneOf(text_[0], "<>=^")) {
      spec.align = text_[at_++];
    }
    if (IsOneOf(Peek(), "+- ")) spec.sign = text_[at_++];
    spec.alternate = Take('#');
    if (Take('0')) {
      spec.zeros = true;
      if (spec.align == '\0') {
        spec.align = '=';
        spec.fill.bytes = "0";
      }
    }
    spec.width = Number().value_or(0);
    if (IsOneOf(Peek(), ",_")) spec.grouping = text_[at_++];
    if (Take('.')) spec.precision = NeedNumber();
    if (at_ < text_.size()) spec.type = text_[at_++];
    if (at_ < text_.size() || spec.alternate) Fail("a format that is not supported");
    return spec;
  }

  // From behind a % up to its letter.
  FormatSpec Percent(size_t* at) {
    FormatSpec spec;
    at_ = *at;
    for (;; ++at_) {
      const char flag = Peek();
      if (flag == '-') spec.align = '<';
      if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
      if (flag == '0') spec.zeros = true;
      if (flag == '#') Fail("the format %# is not supported");
      if (flag == '\0' || !IsOneOf(flag, "-+ 0")) break;
    }
    spec.width = Number().value_or(0);
    if (Take('.')) spec.precision = static_cast<int>(Number().value_or(0));
    while (IsOneOf(Peek(), "hlL")) ++at_;
    if (at_ >= text_.size()) Fail("a format that ends behind %");
    spec.type = text_[at_++];
    if (spec.align == '\0') spec.align = spec.zeros ? '=' : '>';
    if (spec.align == '=') spec.fill.bytes = "0";
    *at = at_;
    return spec;
  }

 private:
  static bool IsOneOf(char c, std::string_view set) {
    return c != '\0' && set.find(c) != std::string_view::npos;
  }
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Take(char c) { return at_ < text_.size() && text_[at_] == c && ++at_ > 0; }
  std::optional<int64_t> Number() {
    const size_t begin = at_;
    int64_t number = 0;
    for (; Peek() >= '0' && Peek() <= '9'; ++at_) {
      number = number * 10 + (Peek() - '0');
      if (number > kMostWidth) Fail("a format with a number above 1000 is not supported");
    }
    return at_ > begin ? std::optional(number) : std::nullopt;
  }
  int NeedNumber() {
    const std::optional<int64_t> number = Number();
    if (!number) Fail("a format without its number");
    return static_cast<int>(*number);
  }

  std::string_view text_;
  size_t at_ = 0;
};

void AppendPadded(const FormatSpec& spec, const Text& text, size_t sign, Output* out) {
  const int64_t missing =
      std::max<int64_t>(0, spec.width - static_cast<int64_t>(CodePoints(text.bytes)));
  const int64_t left = spec.align == '^'                        ? missing / 2
                       : spec.align == '>' || spec.align == '=' ? missing
                                                                : 0;
  const size_t before = spec.align == '=' ? sign : 0;
  out->Append(text.Part(0, before));
  for (int64_t i = 0; i < left; ++i) out->Append(spec.fill);
  out->Append(text.Part(before, text.bytes.size()));
  for (int64_t i = left; i < missing; ++i) out->Append(spec.fill);
}

std::string Grouped(const std::string& digits, char separator) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && i < whole && (whole - i) % 3 == 0) out += separator;
    out += digits[i];
  }
  return out;
}

std::string IntegerIn(char type, const Value& value) {
  if (type == 'd') {
    const std::string text = IntegerText(value);
    return text[0] == '-' ? text.substr(1) : text;
  }
  if (!value.number()) Fail("an integer of over 64 bits in another base is not supported");
  const int64_t number = *value.number();
  const uint64_t size =
      number < 0 ? uint64_t{0} - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
  switch (type) {
    case 'x':
      return fmt::format("{:x}", size);
    case 'X':
      return fmt::format("{:X}", size);
    case 'o':
      return fmt::format("{:o}", size);
    default:
      return fmt::format("{:b}", size);
  }
}

std::string RealIn(char type, double value, std::optional<int> precision) {
  if (type == '\0' && !precision) return RealText(value);
  if (type == '\0') Fail("a format of a number with a precision, but without a type");
  if (!std::isfinite(value)) {
    std::string text = std::isnan(value) ? "nan" : "inf";
    if (type == 'E' || type == 'F' || type == 'G') text = std::isnan(value) ? "NAN" : "INF";
    return type == '%' ? text + "%" : text;
  }
  const std::string format = std::string("%.*") + (type == '%' ? 'f' : type);
  const int digits = precision.value_or(6);
  const double shown = type == '%' ? value * 100 : value;
  std::string text(static_cast<size_t>(std::snprintf(nullptr, 0, format.c_str(), digits, shown)),
                   '\0');
  std::snprintf(text.data(), text.size() + 1, format.c_str(), digits, shown);
  return type == '%' ? text + "%" : text;
}

void AppendNumber(FormatSpec spec, const Value& value, Output* out) {
  const bool is_real = value.real() != nullptr ||
                       std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
  const bool is_known =
      spec.type == '\0' ||
      std::string_view(is_real ? "eEfFgG%" : "bdoxX").find(spec.type) != std::string_view::npos;
  if (!is_known || (!is_real && spec.precision)) Fail("a format of a number is not supported");
  bool negative = false;
  std::string digits;
  if (is_real) {
    if (value.large() != nullptr) Fail("an integer of over 64 bits as a real number");
    const double real = *value.as_real();
    negative = std::signbit(real) && !std::isnan(real);
    digits = RealIn(spec.type, std::fabs(real), spec.precision);
  } else {
    negative = IntegerText(value)[0] == '-';
    digits = IntegerIn(spec.type == '\0' ? 'd' : spec.type, value);
  }
  if (spec.grouping != '\0') {
    if (spec.align == '=' || (!is_real && spec.type != '\0' && spec.type != 'd')) {
      Fail("a format of a number is not supported");
    }
    digits = Grouped(digits, spec.grouping);
  }
  std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  if (spec.align == '\0') spec.align = '>';
  AppendPadded(spec, {sign + digits, {}}, sign.size(), out);
}

void AppendText(FormatSpec spec, Text text, Output* out) {
  if (spec.precision) text = CodePointPart(text, 0, *spec.precision);
  if (spec.align == '=') {
    spec.align = '>';  // of %05s: a text is not filled with zeros
    spec.fill.bytes = " ";
  }
  if (spec.align == '\0') spec.align = '<';
  AppendPadded(spec, text, 0, out);
}

Value Truncated(const Value& value) {
  if (value.real() == nullptr) return value;
  if (!std::isfinite(*value.real())) Fail("a number that is none as an integer");
  return Value::Integer(fmt::format("{:.0f}", std::trunc(*value.real()) + 0.0));
}

void AppendPercent(const FormatSpec& spec, const Value& value, Output* out) {
  switch (spec.type) {
    case 's':
      return AppendText(spec, Printed(value), out);
    case 'r':
      return AppendText(spec, Represented(value), out);
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      NeedDefined(value);
      const bool decimal = spec.type != 'x' && spec.type != 'X' && spec.type != 'o';
      if (!value.is_number() || (!decimal && value.real() != nullptr) || spec.precision) {
        Fail(fmt::format("%{} of {} is not supported", spec.type, value.KindName()));
      }
      FormatSpec number = spec;
      if (decimal) number.type = 'd';
      return AppendNumber(number, Truncated(value), out);
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      NeedDefined(value);
      if (!value.is_number()) Fail(fmt::format("%{} of {}", spec.type, value.KindName()));
      return AppendNumber(spec, value, out);
    default:
      Fail("the format %" + std::string(1, spec.type) + " is not supported");
  }
}

}  // namespace

Text FormatPercent(const Text& format, const Value& arguments) {
  if (format.safe) Fail("% of a safe text is not supported");
  const bool is_tuple =
      arguments.list() != nullptr && arguments.sequence()->kind == Sequence::Kind::kTuple;
  const List given = is_tuple ? *arguments.list() : List{arguments};
  size_t used = 0;
  Output out;
  const std::string& bytes = format.bytes;
  for (size_t at = 0; at < bytes.size();) {
    const size_t sign = std::min(bytes.find('%', at), bytes.size());
    out.Append(format.Part(at, sign));
    if (sign == bytes.size()) break;
    Step();
    at = sign + 1;
    const Value* named = nullptr;
    if (at < bytes.size() && bytes[at] == '(') {
      const size_t close = bytes.find(')', at);
      if (close == std::string::npos || arguments.dict() == nullptr) Fail("a format %(name)");
      named = arguments.dict()->Find(std::string_view(bytes).substr(at + 1, close - at - 1));
      if (named == nullptr) Fail("a format of a name that is not given");
      at = close + 1;
    }
    const FormatSpec spec = SpecReader(bytes).Percent(&at);
    if (spec.type == '%') {
      out.Append("%");
      continue;
    }
    if (named == nullptr && used == given.size()) Fail("a format has more % than values");
    AppendPercent(spec, named != nullptr ? *named : given[used++], &out);
  }
  const bool may_be_left =
      !is_tuple && (arguments.dict() != nullptr || arguments.list() != nullptr);
  if (used < given.size() && !may_be_left) Fail("a format has fewer % than values");
  return out.Take();
}

namespace {

// {name.attribute[key]!r:spec}
class BraceField {
 public:
  BraceField(const Arguments& arguments, int64_t* next) : arguments_(arguments), next_(next) {}

  void Append(std::string_view field, Output* out) {
    const size_t colon = std::min(field.find(':'), field.size());
    std::string_view name = field.substr(0, colon);
    const std::string_view spec_text = field.substr(std::min(colon + 1, field.size()));
    char conversion = '\0';
    if (name.size() >= 2 && name[name.size() - 2] == '!') {
      conversion = name.back();
      name.remove_suffix(2);
    }
    Value value = ValueOf(name);
    if (conversion == 's') value = Printed(value);
    if (conversion == 'r') value = Represented(value);
    if (conversion != '\0' && conversion != 's' && conversion != 'r') Fail("a format with !");
    if (spec_text.find('{') != std::string_view::npos) Fail("a format within a format");
    if (value.text() == nullptr && spec_text.empty()) return out->Append(Printed(value));
    const FormatSpec spec = SpecReader(spec_text).Braces();
    if (value.is_number()) return AppendNumber(spec, value, out);
    const bool is_for_text = (spec.type == '\0' || spec.type == 's') && spec.align != '=' &&
                             spec.sign == '-' && spec.grouping == '\0' && !spec.zeros;
    if (value.text() == nullptr || !is_for_text) Fail("a format is not supported for this value");
    AppendText(spec, *value.text(), out);
  }

 private:
  Value ValueOf(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = First(name.substr(0, end));
    for (std::string_view rest = name.substr(end); !rest.empty();) {
      if (rest[0] == '.') {
        const size_t stop = std::min(rest.find_first_of(".[", 1), rest.size());
        value = GetAttribute(value, rest.substr(1, stop - 1));
        rest.remove_prefix(stop);
      } else {
        const size_t close = rest.find(']');
        if (rest[0] != '[' || close == std::string_view::npos) Fail("a format's name");
        const std::string_view key = rest.substr(1, close - 1);
        value = GetItem(value, IsNumber(key) ? Value::Integer(key) : Value::Of(key));
        rest.remove_prefix(close + 1);
      }
    }
    return value;
  }

  static bool IsNumber(std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  }

  Value First(std::string_view name) {
    if (!name.empty() && !IsNumber(name)) {
      for (const auto& [known, value] : arguments_.named) {
        if (known == name) return value;
      }
      Fail("a format of a name that is not given");
    }
    if ((name.empty() ? *next_ < 0 : *next_ > 0)) Fail("a format with and without numbers");
    const std::optional<int64_t> number =
        name.empty() ? std::optional((*next_)++) : Value::Integer(name).number();
    if (!name.empty()) *next_ = -1;
    if (!number || *number >= static_cast<int64_t>(arguments_.values.size())) {
      Fail("a format has more fields than values");
    }
    return arguments_.values[static_cast<size_t>(*number)];
  }

  const Arguments& arguments_;
  int64_t* next_;
};

}  // namespace

Text FormatBraces(const Text& format, const Arguments& arguments) {
  if (format.safe) Fail("format of a safe text is not supported");
  Output out;
  int64_t next = 0;
  BraceField reader(arguments, &next);
  const std::string& bytes = format.bytes;
  for (size_t at = 0; at < bytes.size();) {
    Step();
    const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
    out.Append(format.Part(at, brace));
    if (brace == bytes.size()) break;
    if (brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace]) {
      out.Append(format.Part(brace, brace + 1));
      at = brace + 2;
      continue;
    }
    const size_t close = bytes.find('}', brace);
    if (bytes[brace] == '}' || close == std::string::npos) Fail("a format with a single brace");
    reader.Append(std::string_view(bytes).substr(brace + 1, close - brace - 1), &out);
    at = close + 1;
  }
  return out.Take();
}

}  // namespace zeroplan::jinja
