#include <algorithm>
#include <optional>

#include "core/base/strings.h"
#include "text/jinja/evaluate.h"
#include "text/jinja/lexer.h"
#include "text/jinja/value.h"

namespace zeroplan::jinja {
namespace {

constexpr int64_t kMostNumber = int64_t{1} << 53;

[[noreturn]] void FailKinds(std::string_view operation, const Value& a, const Value& b, int line) {
  for (const Value* value : {&a, &b}) {
    if (value->undefined() != nullptr) {
      throw TemplateError(line, "'" + value->undefined()->name + "' is undefined");
    }
  }
  throw TemplateError(line, std::string(operation) + " of " + std::string(a.KindName()) + " and " +
                                std::string(b.KindName()));
}

// The one argument, or `otherwise` if there is none.
const Value& Only(const Arguments& arguments, const Value& otherwise, std::string_view name,
                  int line) {
  if (arguments.values.size() > 1 || !arguments.named.empty()) {
    throw TemplateError(line, "these arguments of " + std::string(name) + " are not supported");
  }
  return arguments.values.empty() ? otherwise : arguments.values[0];
}

void NeedNone(const Arguments& arguments, std::string_view name, int line) {
  if (!arguments.values.empty() || !arguments.named.empty()) {
    throw TemplateError(line, "arguments of " + std::string(name) + " are not supported");
  }
}

int64_t Length(const Value& value, int line) {
  if (value.is_undefined()) return 0;
  if (value.text() != nullptr) return static_cast<int64_t>(CodePoints(value.text()->bytes));
  if (value.list() != nullptr) return static_cast<int64_t>(value.list()->size());
  if (value.dict() != nullptr) return static_cast<int64_t>(value.dict()->size());
  throw TemplateError(line, "the length of " + std::string(value.KindName()));
}

Value Arithmetic(std::string_view operation, const Value& a, const Value& b, int line) {
  const std::optional<int64_t> x = a.number(), y = b.number();
  if (!x || !y) FailKinds(operation, a, b, line);
  if (std::max(std::abs(*x), std::abs(*y)) >= kMostNumber) {
    throw TemplateError(line, "numbers are too large");
  }
  if (operation == "+") return *x + *y;
  if (operation == "-") return *x - *y;
  if (operation == "*") {
    if (std::max(std::abs(*x), std::abs(*y)) >= int64_t{1} << 26) {
      throw TemplateError(line, "numbers are too large");
    }
    return *x * *y;
  }
  if (operation == "/") throw TemplateError(line, "/ is not supported");
  if (*y == 0) throw TemplateError(line, "a division by zero");
  // As Python rounds: down.
  const int64_t quotient = *x / *y - ((*x % *y != 0 && (*x < 0) != (*y < 0)) ? 1 : 0);
  return operation == "//" ? quotient : *x - quotient * *y;
}

bool Contains(const Value& value, const Value& part, int line) {
  if (value.is_undefined()) return false;
  if (value.text() != nullptr && part.text() != nullptr) {
    return value.text()->bytes.find(part.text()->bytes) != std::string::npos;
  }
  if (value.list() != nullptr) {
    return std::find(value.list()->begin(), value.list()->end(), part) != value.list()->end();
  }
  if (value.dict() != nullptr && part.text() != nullptr) {
    return Find(*value.dict(), part.text()->bytes) != nullptr;
  }
  FailKinds("in", part, value, line);
}

bool Compare(std::string_view operation, const Value& a, const Value& b, int line) {
  int order = 0;
  if (a.number() && b.number()) {
    order = *a.number() < *b.number() ? -1 : *a.number() > *b.number() ? 1 : 0;
  } else if (a.text() != nullptr && b.text() != nullptr) {
    order = a.text()->bytes.compare(b.text()->bytes);  // UTF-8 keeps the order of characters
  } else {
    FailKinds(operation, a, b, line);
  }
  if (operation == "<") return order < 0;
  if (operation == "<=") return order <= 0;
  return operation == ">" ? order > 0 : order >= 0;
}

// The elements of `value` whose attribute passes the test, or does not.
List Select(bool wanted, const Value& value, const Arguments& arguments, int line) {
  const auto& values = arguments.values;
  if (values.empty() || values[0].text() == nullptr || !arguments.named.empty()) {
    throw TemplateError(line, "these arguments of selectattr are not supported");
  }
  List taken;
  for (const Value& element : Elements(value, line)) {
    const Value attribute = GetAttribute(element, values[0].text()->bytes, line);
    bool passes = attribute.IsTrue();
    if (values.size() > 1) {
      if (values[1].text() == nullptr) throw TemplateError(line, "a test that is no name");
      passes = CallTest(values[1].text()->bytes, attribute,
                        {{values.begin() + 2, values.end()}, {}}, line);
    }
    if (passes == wanted) taken.push_back(element);
  }
  return taken;
}

Value Join(const Value& value, const Value& separator, int line) {
  Text text;
  bool first = true;
  for (const Value& element : Elements(value, line)) {
    if (!first) text.Append(Printed(separator, line));
    text.Append(Printed(element, line));
    first = false;
  }
  return text;
}

Value Map(const Value& value, const Arguments& arguments, int line) {
  List mapped;
  const Value* attribute = Find(arguments.named, "attribute");
  if (attribute != nullptr && attribute->text() != nullptr && arguments.values.empty() &&
      arguments.named.size() == 1) {
    for (const Value& element : Elements(value, line)) {
      mapped.push_back(GetAttribute(element, attribute->text()->bytes, line));
    }
    return mapped;
  }
  if (!arguments.named.empty() || arguments.values.empty() ||
      arguments.values[0].text() == nullptr) {
    throw TemplateError(line, "these arguments of map are not supported");
  }
  const Arguments others = {{arguments.values.begin() + 1, arguments.values.end()}, {}};
  for (const Value& element : Elements(value, line)) {
    mapped.push_back(CallFilter(arguments.values[0].text()->bytes, element, others, line));
  }
  return mapped;
}

}  // namespace

Value CallFilter(std::string_view name, const Value& value, const Arguments& arguments, int line) {
  const Value empty = Value::Of("");
  if (name == "trim") {
    return CallTextMethod("strip", Printed(value, line), arguments.values, line);
  }
  if (name == "length" || name == "count") {
    NeedNone(arguments, name, line);
    return Length(value, line);
  }
  if (name == "default" || name == "d") {
    if (!arguments.named.empty() || arguments.values.size() > 2) {
      throw TemplateError(line, "these arguments of default are not supported");
    }
    const bool also_false = arguments.values.size() == 2 && arguments.values[1].IsTrue();
    if (!value.is_undefined() && !(also_false && !value.IsTrue())) return value;
    return arguments.values.empty() ? empty : arguments.values[0];
  }
  if (name == "join") return Join(value, Only(arguments, empty, name, line), line);
  if (name == "map") return Map(value, arguments, line);
  if (name == "selectattr" || name == "rejectattr") {
    return Select(name == "selectattr", value, arguments, line);
  }
  if (name == "tojson") {
    NeedNone(arguments, name, line);
    return AsJson(value, line);
  }
  if (name == "string" || name == "safe") {
    NeedNone(arguments, name, line);
    return Printed(value, line);
  }
  if (name == "upper" || name == "lower" || name == "capitalize" || name == "replace") {
    return CallTextMethod(name, Printed(value, line), arguments.values, line);
  }
  if (name == "first" || name == "last" || name == "list" || name == "reverse") {
    NeedNone(arguments, name, line);
    if (name == "reverse" && value.list() == nullptr) {
      throw TemplateError(line, "reverse of " + std::string(value.KindName()));
    }
    List elements = Elements(value, line);
    if (name == "list") return elements;
    if (name == "reverse") return List(elements.rbegin(), elements.rend());
    if (elements.empty()) return Undefined{"an element of an empty list"};
    return name == "first" ? elements.front() : elements.back();
  }
  if (name == "items") return CallMethod("items", value, arguments, line);
  throw TemplateError(line, "the filter " + std::string(name) + " is not supported");
}

bool CallTest(std::string_view name, const Value& value, const Arguments& arguments, int line) {
  if (name == "equalto" || name == "eq" || name == "in" || name == "ne") {
    if (arguments.values.size() != 1) throw TemplateError(line, "a test lacks its value");
    const Value& other = arguments.values[0];
    if (name == "in") return Contains(other, value, line);
    return (value == other) == (name != "ne");
  }
  NeedNone(arguments, name, line);
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.text() != nullptr;
  if (name == "mapping") return value.dict() != nullptr;
  if (name == "boolean") return value.flag() != nullptr;
  if (name == "true" || name == "false") {
    return value.flag() != nullptr && *value.flag() == (name == "true");
  }
  if (name == "number") return value.number().has_value();
  if (name == "integer") return value.is_plain_number();
  if (name == "iterable" || name == "sequence") {
    return value.text() != nullptr || value.list() != nullptr || value.dict() != nullptr ||
           value.is_undefined();
  }
  if ((name == "odd" || name == "even") && value.number()) {
    return (*value.number() % 2 != 0) == (name == "odd");
  }
  throw TemplateError(line, "the test " + std::string(name) + " is not supported here");
}

Value CallMethod(std::string_view name, const Value& value, const Arguments& arguments, int line) {
  if (value.undefined() != nullptr) {
    throw TemplateError(line, "'" + value.undefined()->name + "' is undefined");
  }
  if (value.text() != nullptr && arguments.named.empty()) {
    return CallTextMethod(name, *value.text(), arguments.values, line);
  }
  if (value.dict() != nullptr && arguments.named.empty()) {
    if (name == "get" && !arguments.values.empty() && arguments.values.size() <= 2 &&
        arguments.values[0].text() != nullptr) {
      const Value* member = Find(*value.dict(), arguments.values[0].text()->bytes);
      if (member != nullptr) return *member;
      return arguments.values.size() == 2 ? arguments.values[1] : Value(None());
    }
    if (name == "items" || name == "keys" || name == "values") {
      NeedNone(arguments, name, line);
      List list;
      for (const auto& [key, member] : *value.dict()) {
        if (name == "keys") list.push_back(Value::Of(key));
        if (name == "values") list.push_back(member);
        if (name == "items") list.push_back(List{Value::Of(key), member});
      }
      return list;
    }
  }
  throw TemplateError(line, std::string(value.KindName()) + "." + std::string(name) +
                                "() is not supported with these arguments");
}

Value Operate(std::string_view operation, const Value& a, const Value& b, int line) {
  if (operation == "==") return a == b;
  if (operation == "!=") return !(a == b);
  if (operation == "in") return Contains(b, a, line);
  if (operation == "not in") return !Contains(b, a, line);
  if (operation == "~" || (operation == "+" && a.text() != nullptr && b.text() != nullptr)) {
    Text text = Printed(a, line);
    text.Append(Printed(b, line));
    return text;
  }
  if (operation == "+" && a.list() != nullptr && b.list() != nullptr) {
    List list = *a.list();
    list.insert(list.end(), b.list()->begin(), b.list()->end());
    return list;
  }
  if (operation[0] == '<' || operation[0] == '>') return Compare(operation, a, b, line);
  return Arithmetic(operation, a, b, line);
}

Value GetAttribute(const Value& value, std::string_view name, int line) {
  if (value.undefined() != nullptr) {
    throw TemplateError(line, "'" + value.undefined()->name + "' is undefined");
  }
  const Dict* members = value.space() != nullptr ? value.space()->members.get() : value.dict();
  if (members != nullptr) {
    if (const Value* member = Find(*members, name)) return *member;
  }
  return Undefined{std::string(name)};
}

Value GetItem(const Value& value, const Value& key, int line) {
  if (key.text() != nullptr) return GetAttribute(value, key.text()->bytes, line);
  if (value.undefined() != nullptr) FailKinds("[]", value, key, line);
  const std::optional<int64_t> number = key.number();
  if (!number) throw TemplateError(line, "an index that is neither a number nor a text");
  if (value.list() == nullptr && value.text() == nullptr) {
    if (value.dict() != nullptr) return Undefined{"an element"};
    throw TemplateError(line, "an element of " + std::string(value.KindName()));
  }
  const int64_t length = Length(value, line);
  const int64_t at = *number < 0 ? *number + length : *number;
  if (at < 0 || at >= length) return Undefined{"an element behind the last one"};
  if (value.list() != nullptr) return (*value.list())[static_cast<size_t>(at)];
  return CodePointPart(*value.text(), at, at + 1);
}

Value GetSlice(const Value& value, const Value& begin, const Value& end, const Value& step,
               int line) {
  if (value.list() == nullptr && value.text() == nullptr) {
    throw TemplateError(line, "a slice of " + std::string(value.KindName()));
  }
  for (const Value* bound : {&begin, &end, &step}) {
    if (!bound->is_none() && !bound->number()) throw TemplateError(line, "a slice by no number");
  }
  const int64_t length = Length(value, line);
  const int64_t by = step.number().value_or(1);
  const auto clip = [&](const Value& bound, int64_t otherwise) {
    if (bound.is_none()) return otherwise;
    const int64_t at = *bound.number() < 0 ? *bound.number() + length : *bound.number();
    return std::clamp<int64_t>(at, by < 0 ? -1 : 0, by < 0 ? length - 1 : length);
  };
  const int64_t from = clip(begin, by < 0 ? length - 1 : 0);
  const int64_t to = clip(end, by < 0 ? -1 : length);
  if (value.text() != nullptr) {
    if (by != 1) throw TemplateError(line, "a slice of a text in steps is not supported");
    return CodePointPart(*value.text(), from, std::max(from, to));
  }
  if (by != 1 && by != -1) throw TemplateError(line, "a slice in steps is not supported");
  List list;
  for (int64_t i = from; by > 0 ? i < to : i > to; i += by) {
    list.push_back((*value.list())[static_cast<size_t>(i)]);
  }
  return list;
}

List Elements(const Value& value, int line) {
  if (value.list() != nullptr) return *value.list();
  List list;
  if (value.dict() != nullptr) {
    for (const Member& member : *value.dict()) list.push_back(Value::Of(member.key));
    return list;
  }
  if (value.text() != nullptr) {
    const Text& text = *value.text();
    for (size_t at = 0; at < text.bytes.size();) {
      const size_t begin = at;
      NextCodePoint(text.bytes, &at);
      list.push_back(text.Part(begin, at));
    }
    return list;
  }
  if (value.is_undefined()) return list;
  throw TemplateError(line, "a loop over " + std::string(value.KindName()));
}

Text Printed(const Value& value, int line) {
  if (value.text() != nullptr) return *value.text();
  if (value.is_undefined()) return {};
  if (value.is_none()) return {"None", {}};
  if (value.flag() != nullptr) return {*value.flag() ? "True" : "False", {}};
  if (value.number()) return {std::to_string(*value.number()), {}};
  throw TemplateError(line, std::string(value.KindName()) + " is printed");
}

}  // namespace zeroplan::jinja
