// Jinja's filters: value | name(arguments).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>

#include "core/base/strings.h"
#include "text/jinja/evaluate.h"

namespace zeroplan::jinja {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::array kUnknownFilters = {"filesizeformat"sv, "groupby"sv,  "pprint"sv,    "random"sv,
                                        "striptags"sv,      "truncate"sv, "urlencode"sv, "urlize"sv,
                                        "wordcount"sv,      "wordwrap"sv, "xmlattr"sv};

// What a filter asks each element for: nothing, its index, or names with dots between.
Value AttributePath(const Value& element, const Value* attribute) {
  if (attribute == nullptr || attribute->is_none()) return element;
  if (attribute->text() == nullptr) return GetItem(element, *attribute);
  Value value = element;
  for (const Value& part :
       Elements(CallTextMethod("split", *attribute->text(), {{Value::Of(".")}, {}}))) {
    const std::string& name = part.text()->bytes;
    const bool is_number = IsOfKind("isdigit", name).value_or(false);
    value = GetItem(value, is_number ? Value::Integer(name) : part);
  }
  return value;
}

Value WithoutCase(const Value& value) {
  return value.text() != nullptr ? Value(Lower(*value.text())) : value;
}

// An iterator over what `make` gives for each element; nullopt leaves one out. What it throws is
// thrown once the iterator comes to it, as Python computes an element when it is asked for.
Value Lazily(const Value& value, const std::function<std::optional<Value>(const Value&)>& make) {
  List made;
  std::exception_ptr error;
  try {
    std::exception_ptr behind;
    for (const Value& element : Pull(value, &behind)) {
      Step();
      if (std::optional<Value> one = make(element)) made.push_back(std::move(*one));
    }
    error = behind;
  } catch (const TemplateError&) {
    error = std::current_exception();
  }
  return MakeIterator(std::move(made), std::move(error));
}

// select, reject, selectattr, rejectattr.
Value Select(std::string_view name, const Value& value, const Arguments& arguments) {
  if (!value.IsTrue()) return MakeIterator({});
  const bool of_attribute = name.ends_with("attr");
  const bool wanted = name.starts_with("select");
  const auto& values = arguments.values;
  const size_t off = of_attribute ? 1 : 0;
  return Lazily(value, [&](const Value& element) -> std::optional<Value> {
    if (values.size() < off) Fail(std::string(name) + " without an attribute");
    const Value asked = of_attribute ? AttributePath(element, &values[0]) : element;
    bool passes = asked.IsTrue();
    if (values.size() > off) {
      if (values[off].text() == nullptr) Fail("a test that is no name");
      passes = CallTest(
          values[off].text()->bytes, asked,
          {{values.begin() + static_cast<ptrdiff_t>(off) + 1, values.end()}, arguments.named});
    }
    return passes == wanted ? std::optional(element) : std::nullopt;
  });
}

Value Map(const Value& value, const Arguments& arguments) {
  if (!value.IsTrue()) return MakeIterator({});
  const auto named = [&](std::string_view name) -> const Value* {
    for (const auto& [known, given] : arguments.named) {
      if (known == name) return &given;
    }
    return nullptr;
  };
  const Value* attribute = named("attribute");
  if (arguments.values.empty() && attribute != nullptr) {
    const Value* otherwise = named("default");
    if (arguments.named.size() > (otherwise != nullptr ? 2 : 1)) Fail("arguments of map");
    if (otherwise != nullptr && otherwise->is_none()) otherwise = nullptr;
    return Lazily(value, [&](const Value& element) -> std::optional<Value> {
      if (otherwise == nullptr) return AttributePath(element, attribute);
      if (attribute->text() != nullptr && attribute->text()->bytes.find('.') != std::string::npos) {
        Fail("map of an attribute with dots and a default is not supported");
      }
      Value found = AttributePath(element, attribute);
      return found.is_undefined() ? *otherwise : found;
    });
  }
  return Lazily(value, [&](const Value& element) -> std::optional<Value> {
    if (arguments.values.empty() || arguments.values[0].text() == nullptr) {
      Fail("map without the name of a filter");
    }
    return CallFilter(arguments.values[0].text()->bytes, element,
                      {{arguments.values.begin() + 1, arguments.values.end()}, arguments.named});
  });
}

Value Join(const Value& value, const Bound& bound) {
  Output out;
  const Text separator = bound.IsGiven(0) ? Printed(*bound[0]) : Text();
  bool first = true;
  for (const Value& element : Elements(value)) {
    const Value part = AttributePath(element, bound[1]);
    if (!std::exchange(first, false)) out.Append(separator);
    if (part.text() != nullptr) {
      out.Append(*part.text());
    } else {
      out.Append(Printed(part));
    }
  }
  return out.Take();
}

struct Keyed {
  Value key;
  Value value;
};

void SortByKey(std::vector<Keyed>* list, bool reverse) {
  std::stable_sort(list->begin(), list->end(), [&](const Keyed& a, const Keyed& b) {
    return Compare(reverse ? b.key : a.key, reverse ? a.key : b.key) == -1;
  });
}

List ValuesOf(std::vector<Keyed> list) {
  List values;
  for (Keyed& keyed : list) values.push_back(std::move(keyed.value));
  return values;
}

Value Sort(const Value& value, const Bound& bound) {
  const bool keeps_case = bound.Flag(1, false);
  List attributes;
  if (bound.IsGiven(2) && bound[2]->text() != nullptr) {
    attributes = Elements(CallTextMethod("split", *bound[2]->text(), {{Value::Of(",")}, {}}));
  } else if (bound.IsGiven(2)) {
    attributes.push_back(*bound[2]);
  } else {
    attributes.push_back(None());
  }
  std::vector<Keyed> list;
  for (Value& element : Elements(value)) {
    List key;
    for (const Value& attribute : attributes) {
      Value part = AttributePath(element, &attribute);
      key.push_back(keeps_case ? part : WithoutCase(part));
    }
    list.push_back({std::move(key), std::move(element)});
  }
  SortByKey(&list, bound.Flag(0, false));
  return ValuesOf(std::move(list));
}

Value DictSort(const Value& value, const Bound& bound) {
  if (value.dict() == nullptr) Fail("dictsort of " + std::string(value.KindName()));
  const bool keeps_case = bound.Flag(0, false);
  const std::string by = bound.IsGiven(1) ? bound.TextOf(1)->bytes : "key";
  if (by != "key" && by != "value") Fail("dictsort by " + by);
  std::vector<Keyed> list;
  for (const auto& [key, member] : *value.dict()) {
    const Value& asked = by == "key" ? key : member;
    list.push_back({keeps_case ? asked : WithoutCase(asked), Value::Tuple({key, member})});
  }
  SortByKey(&list, bound.Flag(2, false));
  return ValuesOf(std::move(list));
}

Value Unique(const Value& value, const Bound& bound) {
  const bool keeps_case = bound.Flag(0, false);
  Dict seen;
  return Lazily(value, [&](const Value& element) -> std::optional<Value> {
    Value key = AttributePath(element, bound[1]);
    if (!keeps_case) key = WithoutCase(key);
    if (seen.FindKey(key) != nullptr) return std::nullopt;
    seen.SetKey(std::move(key), true);
    return element;
  });
}

Value Extreme(std::string_view name, const Value& value, const Bound& bound) {
  std::optional<Keyed> best;
  for (const Value& element : Elements(value)) {
    Value key = AttributePath(element, bound[1]);
    if (!bound.Flag(0, false)) key = WithoutCase(key);
    const bool better =
        !best || (name == "min" ? Compare(key, best->key) == -1 : Compare(key, best->key) == 1);
    if (better) best = Keyed{std::move(key), element};
  }
  return best ? best->value : Value(Undefined{"the " + std::string(name) + " of nothing"});
}

Value Sum(const Value& value, const Bound& bound) {
  Value sum = bound.IsGiven(1) ? *bound[1] : Value(int64_t{0});
  if (sum.text() != nullptr) Fail("sum of texts");
  for (const Value& element : Elements(value)) {
    sum = Operate(Operator::kAdd, sum, AttributePath(element, bound[0]));
  }
  return sum;
}

// batch, and slice.
Value Batches(const Value& value, const Bound& bound) {
  const int64_t size = bound.Integer(0, 0);
  if (size < 1) Fail("batch of less than 1");
  List batches, batch;
  const auto close = [&] { batches.push_back(std::exchange(batch, {})); };
  for (Value& element : Elements(value)) {
    if (static_cast<int64_t>(batch.size()) == size) close();
    batch.push_back(std::move(element));
  }
  if (!batch.empty()) {
    if (bound.IsGiven(1) && !bound[1]->is_none()) {
      Make(static_cast<size_t>(std::min(size, int64_t{1} << 40)) * sizeof(Value));
      batch.resize(static_cast<size_t>(size), *bound[1]);
    }
    close();
  }
  return MakeIterator(std::move(batches));
}

Value Slices(const Value& value, const Bound& bound) {
  const List list = Elements(value);
  const int64_t count = bound.Integer(0, 0);
  if (count < 1) Fail("slice into less than 1");
  Step(static_cast<uint64_t>(count));
  Make(static_cast<size_t>(count) * 100);
  const auto slices = static_cast<size_t>(count);
  List parts;
  for (size_t i = 0, begin = 0; i < slices; ++i) {
    const size_t end = begin + list.size() / slices + (i < list.size() % slices ? 1 : 0);
    List part(list.begin() + static_cast<ptrdiff_t>(begin),
              list.begin() + static_cast<ptrdiff_t>(end));
    if (bound.IsGiven(1) && !bound[1]->is_none() && i >= list.size() % slices) {
      part.push_back(*bound[1]);
    }
    parts.push_back(std::move(part));
    begin = end;
  }
  return MakeIterator(std::move(parts));
}

Value Indented(const Value& value, const Bound& bound) {
  if (value.text() == nullptr) {
    NeedDefined(value);
    Fail("indent of " + std::string(value.KindName()));
  }
  if (value.text()->safe) Fail("indent of a safe text is not supported");
  Text indent;
  if (bound.IsGiven(0) && bound[0]->text() != nullptr) {
    indent = *bound[0]->text();
  } else {
    const int64_t width = std::max<int64_t>(bound.Integer(0, 4), 0);
    Make(static_cast<size_t>(width));
    indent.bytes = std::string(static_cast<size_t>(width), ' ');
  }
  const bool of_first = bound.Flag(1, false), of_blank = bound.Flag(2, false);
  Text text = *value.text();
  text.Append("\n");
  Output out;
  bool first = true;
  for (const Value& line : SplitLines(text, false)) {
    if (!first) out.Append("\n");
    const bool is_indented = first ? of_first : of_blank || !line.text()->bytes.empty();
    if (is_indented) out.Append(indent);
    out.Append(*line.text());
    first = false;
  }
  return out.Take();
}

// Whether it has digits that are not ASCII, which Python takes for numbers as well.
void RefuseOtherDigits(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t size = Utf8Length(text[at]);
    if (size > 1 && IsOfKind("isdecimal", text.substr(at, size)).value_or(false)) {
      Fail("a number in other digits than 0 to 9 is not supported");
    }
    at += size;
  }
}

// Of Python's float(text): nullopt for what is no number.
std::optional<double> RealOf(std::string_view text) {
  const Range range = WithoutSpace(text, 3);
  std::string digits;
  bool after_digit = false;
  text = text.substr(range.begin, range.end - range.begin);
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool is_digit = c >= '0' && c <= '9';
    if (c == '_') {
      const bool before_digit = i + 1 < text.size() && text[i + 1] >= '0' && text[i + 1] <= '9';
      if (!after_digit || !before_digit) return std::nullopt;
      continue;
    }
    digits += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    after_digit = is_digit;
  }
  const size_t sign = digits.starts_with('+') || digits.starts_with('-') ? 1 : 0;
  const std::string_view size = std::string_view(digits).substr(sign);
  const bool is_word = size == "inf" || size == "infinity" || size == "nan";
  if (!is_word && size.find_first_not_of("0123456789.e+-") != std::string_view::npos) {
    return std::nullopt;
  }
  char* end = nullptr;
  const double value = std::strtod(digits.c_str(), &end);
  if (digits.empty() || end != digits.c_str() + digits.size()) return std::nullopt;
  return value;
}

// Of Python's int(text): nullopt for what is no number.
std::optional<Value> IntegerOf(std::string_view text) {
  const Range range = WithoutSpace(text, 3);
  text = text.substr(range.begin, range.end - range.begin);
  std::string digits;
  if (text.starts_with('-')) digits += '-';
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  bool after_digit = false;
  for (const char c : text) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit && !(c == '_' && after_digit)) return std::nullopt;
    if (is_digit) digits += c;
    after_digit = is_digit;
  }
  if (!after_digit || digits.size() > 4300) return std::nullopt;
  return Value::Integer(digits);
}

Value IntegerFromReal(double value) {
  return Value::Integer(fmt::format("{:.0f}", std::trunc(value) + 0.0));
}

Value ToInteger(const Value& value, const Bound& bound) {
  NeedDefined(value);
  Value otherwise = bound.IsGiven(0) ? *bound[0] : Value(int64_t{0});
  if (bound.Integer(1, 10) != 10 && value.text() != nullptr) {
    Fail("int in another base than 10 is not supported");
  }
  if (value.real() != nullptr) {
    if (std::isinf(*value.real())) Fail("int of an infinite number");
    return std::isnan(*value.real()) ? otherwise : IntegerFromReal(*value.real());
  }
  if (value.flag() != nullptr) return *value.number();
  if (value.is_number()) return value;
  if (value.text() == nullptr) return otherwise;
  RefuseOtherDigits(value.text()->bytes);
  if (std::optional<Value> integer = IntegerOf(value.text()->bytes)) return *integer;
  const std::optional<double> real = RealOf(value.text()->bytes);
  return real && std::isfinite(*real) ? IntegerFromReal(*real) : otherwise;
}

Value ToReal(const Value& value, const Bound& bound) {
  NeedDefined(value);
  const Value otherwise = bound.IsGiven(0) ? *bound[0] : Value(0.0);
  if (value.large() != nullptr) Fail("float of an integer of over 64 bits is not supported");
  if (value.is_number()) return *value.as_real();
  if (value.text() != nullptr) RefuseOtherDigits(value.text()->bytes);
  const std::optional<double> real =
      value.text() != nullptr ? RealOf(value.text()->bytes) : std::nullopt;
  return real ? Value(*real) : otherwise;
}

Value Rounded(const Value& value, const Bound& bound) {
  NeedDefined(value);
  const int64_t precision = bound.Integer(0, 0);
  const std::string method = bound.IsGiven(1) ? Printed(*bound[1]).bytes : "common";
  if (!value.is_number() || value.large() != nullptr || precision < 0 || precision > 15) {
    Fail("round of " + std::string(value.KindName()) + " with this precision is not supported");
  }
  if (method == "common") {
    if (value.real() == nullptr) return *value.number();
    if (!std::isfinite(*value.real())) return value;
    return std::strtod(fmt::format("{:.{}f}", *value.real(), precision).c_str(), nullptr);
  }
  if (method != "ceil" && method != "floor") Fail("round by the method " + method);
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = *value.as_real() * scale;
  if (!(std::fabs(scaled) < 9007199254740992.0)) Fail("round of a number past 2^53");
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale + 0.0;
}

Value ToJson(const Value& value, const Bound& bound) {
  JsonStyle style;
  style.ascii = bound.Flag(0, false);
  style.sorted = bound.Flag(3, false);
  if (bound.IsGiven(1) && !bound[1]->is_none()) {
    if (bound[1]->text() != nullptr) {
      style.indent = bound[1]->text()->bytes;
    } else {
      const int64_t width = std::max<int64_t>(bound.Integer(1, 0), 0);
      Make(static_cast<size_t>(width));
      style.indent = std::string(static_cast<size_t>(width), ' ');
    }
    style.item_separator = ",";
  }
  if (bound.IsGiven(2) && !bound[2]->is_none()) {
    const List separators = Elements(*bound[2]);
    if (separators.size() != 2 || separators[0].text() == nullptr ||
        separators[1].text() == nullptr) {
      Fail("separators of tojson that are not two texts");
    }
    style.item_separator = separators[0].text()->bytes;
    style.key_separator = separators[1].text()->bytes;
  }
  return AsJson(value, style);
}

Value Reversed(const Value& value) {
  if (value.text() != nullptr) {
    return GetSlice(value, None(), None(), int64_t{-1});
  }
  if (value.is_undefined()) Fail("reverse of what is undefined");
  List elements = Elements(value);
  std::reverse(elements.begin(), elements.end());
  // Python's reversed() refuses iterators, and Jinja makes a list of them.
  const Sequence* sequence = value.sequence();
  if (sequence != nullptr && sequence->kind == Sequence::Kind::kIterator) return elements;
  return MakeIterator(std::move(elements));
}

Value First(const Value& value) {
  const Sequence* sequence = value.sequence();
  if (sequence != nullptr && sequence->kind == Sequence::Kind::kIterator) {
    if (sequence->taken < sequence->elements.size()) return sequence->elements[sequence->taken++];
  }
  if (value.text() != nullptr && !value.text()->bytes.empty()) {
    return CodePointPart(*value.text(), 0, 1);
  }
  if (sequence != nullptr && !sequence->elements.empty() &&
      sequence->kind != Sequence::Kind::kIterator) {
    return sequence->elements[0];
  }
  const List elements = Elements(value);
  return elements.empty() ? Value(Undefined{"an element of nothing"}) : elements[0];
}

Value Last(const Value& value) {
  const Sequence* sequence = value.sequence();
  if (sequence != nullptr && sequence->kind == Sequence::Kind::kIterator) {
    Fail("last of " + std::string(value.KindName()));
  }
  if (value.text() != nullptr) {
    return value.IsTrue() ? GetItem(value, int64_t{-1}) : Value(Undefined{"last of nothing"});
  }
  if (sequence != nullptr && !sequence->elements.empty()) return sequence->elements.back();
  const List elements = Elements(value);
  return elements.empty() ? Value(Undefined{"an element of nothing"}) : elements.back();
}

Text SafeOf(Text text) {
  text.safe = true;
  return text;
}

std::optional<Value> CallTextFilter(std::string_view name, const Value& value,
                                    const Arguments& arguments) {
  const auto none = [&] { return Bound(name, {}, arguments); };
  if (name == "trim") {
    const Text* characters = Bound(name, {"chars"}, arguments).TextOf(0);
    return CallTextMethod("strip", Printed(value),
                          {characters == nullptr ? List{} : List{*characters}, {}});
  }
  if (name == "upper") return none(), Upper(Printed(value));
  if (name == "lower") return none(), Lower(Printed(value));
  if (name == "capitalize") return none(), Capitalized(Printed(value));
  if (name == "title") return none(), TitleOfWords(Printed(value));
  if (name == "string") return none(), Printed(value);
  if (name == "safe") return none(), SafeOf(Printed(value));
  if (name == "e" || name == "escape" || name == "forceescape") {
    none();
    const Text text = Printed(value);
    return text.safe && name != "forceescape" ? text : Escaped(text);
  }
  if (name == "replace") {
    const Bound bound(name, {"old", "new", "count"}, arguments);
    const int64_t count = bound.IsGiven(2) && bound[2]->is_none() ? -1 : bound.Integer(2, -1);
    return Replaced(Printed(value), Printed(bound.Need(0)), Printed(bound.Need(1)), count);
  }
  if (name == "indent") return Indented(value, Bound(name, {"width", "first", "blank"}, arguments));
  if (name == "center") {
    const Bound bound(name, {"width"}, arguments);
    return CallTextMethod("center", Printed(value), {{bound.Integer(0, 80)}, {}});
  }
  if (name == "format") {
    if (!arguments.named.empty()) {
      if (!arguments.values.empty()) Fail("format of values with and without names");
      Dict named;
      for (const auto& [key, given] : arguments.named) named.Set(key, given);
      return FormatPercent(Printed(value), std::move(named));
    }
    return FormatPercent(Printed(value), Value::Tuple(arguments.values));
  }
  return std::nullopt;
}

}  // namespace

Value CallFilter(std::string_view name, const Value& value, const Arguments& arguments) {
  if (std::optional<Value> text = CallTextFilter(name, value, arguments)) return std::move(*text);
  const auto none = [&] { return Bound(name, {}, arguments); };
  if (name == "length" || name == "count") return none(), Length(value);
  if (name == "default" || name == "d") {
    const Bound bound(name, {"default_value", "boolean"}, arguments);
    const bool is_used = value.is_undefined() || (bound.Flag(1, false) && !value.IsTrue());
    return !is_used ? value : bound.IsGiven(0) ? *bound[0] : Value::Of("");
  }
  if (name == "join") return Join(value, Bound(name, {"d", "attribute"}, arguments));
  if (name == "map") return Map(value, arguments);
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") {
    return Select(name, value, arguments);
  }
  if (name == "tojson") {
    return ToJson(value,
                  Bound(name, {"ensure_ascii", "indent", "separators", "sort_keys"}, arguments));
  }
  if (name == "first") return none(), First(value);
  if (name == "last") return none(), Last(value);
  if (name == "list") return none(), Elements(value);
  if (name == "reverse") return none(), Reversed(value);
  if (name == "items") {
    none();
    if (value.is_undefined()) return MakeIterator({});
    if (value.dict() == nullptr) Fail("items of " + std::string(value.KindName()));
    return MakeIterator(Elements(CallMethod("items", value, {})));
  }
  if (name == "sort") {
    return Sort(value, Bound(name, {"reverse", "case_sensitive", "attribute"}, arguments));
  }
  if (name == "dictsort") {
    return DictSort(value, Bound(name, {"case_sensitive", "by", "reverse"}, arguments));
  }
  if (name == "unique") {
    return Unique(value, Bound(name, {"case_sensitive", "attribute"}, arguments));
  }
  if (name == "min" || name == "max") {
    return Extreme(name, value, Bound(name, {"case_sensitive", "attribute"}, arguments));
  }
  if (name == "sum") return Sum(value, Bound(name, {"attribute", "start"}, arguments));
  if (name == "batch") return Batches(value, Bound(name, {"linecount", "fill_with"}, arguments));
  if (name == "slice") return Slices(value, Bound(name, {"slices", "fill_with"}, arguments));
  if (name == "int") return ToInteger(value, Bound(name, {"default", "base"}, arguments));
  if (name == "float") return ToReal(value, Bound(name, {"default"}, arguments));
  if (name == "round") return Rounded(value, Bound(name, {"precision", "method"}, arguments));
  if (name == "abs") {
    none();
    NeedDefined(value);
    if (!value.is_number()) Fail("abs of " + std::string(value.KindName()));
    return Compare(value, int64_t{0}) == -1 ? Minus(value) : Plus(value);
  }
  if (name == "attr") {
    const Text* attribute = Bound(name, {"name"}, arguments).TextOf(0);
    if (attribute == nullptr) Fail("attr without a name");
    if (value.dict() != nullptr && !HasMethod(value, attribute->bytes)) {
      return Undefined{attribute->bytes};
    }
    return GetAttribute(value, attribute->bytes);
  }
  const bool is_known =
      std::find(kUnknownFilters.begin(), kUnknownFilters.end(), name) != kUnknownFilters.end();
  Fail((is_known ? "the filter " + std::string(name) + " is not supported"
                 : "there is no filter " + std::string(name)));
}

}  // namespace zeroplan::jinja
