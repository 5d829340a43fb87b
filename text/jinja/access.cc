// Members, elements, slices and methods of values, but for those of texts.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/base/strings.h"
#include "text/jinja/evaluate.h"

namespace zeroplan::jinja {

using std::string_view_literals::operator""sv;

Bound::Bound(std::string_view function, std::initializer_list<std::string_view> parameters,
             const Arguments& arguments)
    : function_(function), values_(parameters.size()) {
  if (arguments.values.size() > parameters.size()) {
    Fail(fmt::format("{} arguments of {}: it takes {}", arguments.values.size(), function,
                     parameters.size()));
  }
  for (size_t i = 0; i < arguments.values.size(); ++i) values_[i] = &arguments.values[i];
  for (const auto& [name, value] : arguments.named) {
    const auto known = std::find(parameters.begin(), parameters.end(), name);
    if (known == parameters.end()) Fail(fmt::format("{} takes no {}", function, name));
    const auto place = static_cast<size_t>(known - parameters.begin());
    if (values_[place] != nullptr) Fail(fmt::format("{} gets {} twice", function, name));
    values_[place] = &value;
  }
}

const Value& Bound::Need(size_t parameter) const {
  if (values_[parameter] == nullptr) Fail("an argument of " + function_ + " is missing");
  return *values_[parameter];
}

bool Bound::Flag(size_t parameter, bool otherwise) const {
  return IsGiven(parameter) ? values_[parameter]->IsTrue() : otherwise;
}

int64_t Bound::Integer(size_t parameter, int64_t otherwise) const {
  if (!IsGiven(parameter)) return otherwise;
  const std::optional<int64_t> number = values_[parameter]->number();
  if (!number) {
    NeedDefined(*values_[parameter]);
    Fail(fmt::format("{} of {}: no number", function_, values_[parameter]->KindName()));
  }
  return *number;
}

const Text* Bound::TextOf(size_t parameter) const {
  if (!IsGiven(parameter) || values_[parameter]->is_none()) return nullptr;
  if (values_[parameter]->text() == nullptr) {
    NeedDefined(*values_[parameter]);
    Fail(fmt::format("{} of {}: no text", function_, values_[parameter]->KindName()));
  }
  return values_[parameter]->text();
}

void FailUndefined(const Undefined& undefined) { Fail("'" + undefined.name + "' is undefined"); }

void NeedDefined(const Value& value) {
  if (value.is_undefined()) FailUndefined(*value.undefined());
}

namespace {

// Names of Python's methods. Of those that change the object the sandbox makes nothing at all.
constexpr std::array kTextMethods = {
    "capitalize"sv,   "casefold"sv,     "center"sv,    "count"sv,     "encode"sv,
    "endswith"sv,     "expandtabs"sv,   "find"sv,      "format"sv,    "format_map"sv,
    "index"sv,        "isalnum"sv,      "isalpha"sv,   "isascii"sv,   "isdecimal"sv,
    "isdigit"sv,      "isidentifier"sv, "islower"sv,   "isnumeric"sv, "isprintable"sv,
    "isspace"sv,      "istitle"sv,      "isupper"sv,   "join"sv,      "ljust"sv,
    "lower"sv,        "lstrip"sv,       "maketrans"sv, "partition"sv, "removeprefix"sv,
    "removesuffix"sv, "replace"sv,      "rfind"sv,     "rindex"sv,    "rjust"sv,
    "rpartition"sv,   "rsplit"sv,       "rstrip"sv,    "split"sv,     "splitlines"sv,
    "startswith"sv,   "strip"sv,        "swapcase"sv,  "title"sv,     "translate"sv,
    "upper"sv,        "zfill"sv};
constexpr std::array kDictMethods = {"copy"sv,  "fromkeys"sv, "get"sv,
                                     "items"sv, "keys"sv,     "values"sv};
constexpr std::array kDictChanges = {"clear"sv, "pop"sv, "popitem"sv, "setdefault"sv, "update"sv};
constexpr std::array kListMethods = {"copy"sv, "count"sv, "index"sv};
constexpr std::array kListChanges = {"append"sv, "clear"sv,  "extend"sv,  "insert"sv,
                                     "pop"sv,    "remove"sv, "reverse"sv, "sort"sv};
// Of what else has attributes, these are not known here.
constexpr std::array kOtherAttributes = {"as_integer_ratio"sv,
                                         "bit_count"sv,
                                         "bit_length"sv,
                                         "conjugate"sv,
                                         "count"sv,
                                         "denominator"sv,
                                         "from_bytes"sv,
                                         "fromhex"sv,
                                         "fromkeys"sv,
                                         "hex"sv,
                                         "imag"sv,
                                         "index"sv,
                                         "is_integer"sv,
                                         "isdisjoint"sv,
                                         "mapping"sv,
                                         "numerator"sv,
                                         "real"sv,
                                         "start"sv,
                                         "step"sv,
                                         "stop"sv,
                                         "to_bytes"sv,
                                         "name"sv,
                                         "arguments"sv,
                                         "caller"sv,
                                         "catch_kwargs"sv,
                                         "catch_varargs"sv,
                                         "send"sv,
                                         "close"sv,
                                         "throw"sv,
                                         "gi_frame"sv,
                                         "explicit_caller"sv,
                                         "gi_code"sv,
                                         "gi_running"sv,
                                         "gi_yieldfrom"sv};

template <size_t kCount>
bool IsAmong(std::string_view name, const std::array<std::string_view, kCount>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Python finds these before members of that name, and the sandbox hides them.
bool IsChange(const Value& value, std::string_view name) {
  if (value.dict() != nullptr) return IsAmong(name, kDictChanges);
  return value.list() != nullptr && value.sequence()->kind == Sequence::Kind::kList &&
         IsAmong(name, kListChanges);
}

}  // namespace

bool HasMethod(const Value& object, std::string_view name) {
  if (object.text() != nullptr) return IsAmong(name, kTextMethods);
  if (object.dict() != nullptr) return IsAmong(name, kDictMethods);
  if (object.list() == nullptr) return false;
  return IsAmong(name, kListMethods) &&
         (name != "copy" || object.sequence()->kind == Sequence::Kind::kList);
}

Value CallMethod(std::string_view name, const Value& object, const Arguments& arguments) {
  if (object.text() != nullptr) return CallTextMethod(name, *object.text(), arguments);
  if (object.dict() != nullptr) {
    const Dict& dict = *object.dict();
    if (!arguments.named.empty()) Fail(std::string(name) + "() takes no named arguments");
    if (name == "get") {
      const Bound bound(name, {"key", "default"}, arguments);
      const Value* member = dict.FindKey(bound.Need(0));
      return member != nullptr ? *member : bound.IsGiven(1) ? *bound[1] : Value(None());
    }
    if (name == "items" || name == "keys" || name == "values") {
      const Bound none(name, {}, arguments);
      Make(dict.size() * (name == "items" ? 4 : 1) * sizeof(Value));
      List list;
      for (const auto& [key, member] : dict) {
        if (name == "keys") list.push_back(key);
        if (name == "values") list.push_back(member);
        if (name == "items") list.push_back(Value::Tuple({key, member}));
      }
      const auto kind = name == "keys"     ? Sequence::Kind::kKeys
                        : name == "values" ? Sequence::Kind::kValues
                                           : Sequence::Kind::kItems;
      return Sequence{kind, std::move(list), 0, {}};
    }
    if (name == "copy") {
      const Bound none(name, {}, arguments);
      return object;
    }
  }
  if (object.list() != nullptr) {
    const List& list = *object.list();
    if (!arguments.named.empty()) Fail(std::string(name) + "() takes no named arguments");
    if (name == "copy") {
      const Bound none(name, {}, arguments);
      return object;
    }
    if (name == "count" || (name == "index" && arguments.values.size() == 1)) {
      const Value& wanted = Bound(name, {"value"}, arguments).Need(0);
      if (name == "count") {
        return static_cast<int64_t>(std::count(list.begin(), list.end(), wanted));
      }
      const auto found = std::find(list.begin(), list.end(), wanted);
      if (found == list.end()) Fail("index of what is not in the list");
      return static_cast<int64_t>(found - list.begin());
    }
  }
  Fail(fmt::format("{}.{}() is not supported with these arguments", object.KindName(), name));
}

namespace {

Value MemberOf(const Value& value, std::string_view name) {
  const Value* member = value.dict() != nullptr ? value.dict()->Find(name) : nullptr;
  return member != nullptr ? *member : Value(Undefined{std::string(name)});
}

// Python's attribute of that name, if it has one.
std::optional<Value> Attribute(const Value& value, std::string_view name) {
  if (value.space() != nullptr) {
    const Value* member = value.space()->members->Find(name);
    return member != nullptr ? std::optional(*member) : std::nullopt;
  }
  if (name.starts_with("__") && name.ends_with("__")) {
    // Whether Python has it or not, the sandbox makes nothing of it; but for a member of that name.
    if (value.dict() == nullptr || value.dict()->Find(name) == nullptr) {
      return Undefined{std::string(name)};
    }
    Fail("members that are named as attributes of Python's own are not supported");
  }
  if (HasMethod(value, name)) return Method{value, std::string(name)};
  if (IsChange(value, name)) return Undefined{std::string(name)};
  if (value.dict() == nullptr && value.text() == nullptr && value.list() == nullptr &&
      !value.is_none() && IsAmong(name, kOtherAttributes)) {
    Fail(fmt::format("{} of {} is not supported", name, value.KindName()));
  }
  return std::nullopt;
}

}  // namespace

Value GetAttribute(const Value& value, std::string_view name) {
  NeedDefined(value);
  std::optional<Value> attribute = Attribute(value, name);
  return attribute ? std::move(*attribute) : MemberOf(value, name);
}

Value GetItem(const Value& value, const Value& key) {
  NeedDefined(value);
  const std::string name = key.text() != nullptr ? key.text()->bytes : "an element";
  if (value.dict() != nullptr && (key.sequence() == nullptr || key.list() != nullptr) &&
      key.dict() == nullptr) {
    const bool can_be_key = key.list() == nullptr || key.sequence()->kind == Sequence::Kind::kTuple;
    const Value* member = can_be_key ? value.dict()->FindKey(key) : nullptr;
    if (member != nullptr) return *member;
  }
  if (key.text() != nullptr) {
    std::optional<Value> attribute = Attribute(value, name);
    return attribute ? std::move(*attribute) : Value(Undefined{name});
  }
  const Sequence* sequence = value.sequence();
  const bool has_places = value.text() != nullptr || value.list() != nullptr ||
                          (sequence != nullptr && sequence->kind == Sequence::Kind::kRange);
  const std::optional<int64_t> number = key.number();
  if (!has_places || !number) return Undefined{name};
  const int64_t length = Length(value);
  const int64_t at = *number < 0 ? *number + length : *number;
  if (at < 0 || at >= length) return Undefined{"an element behind the last one"};
  if (sequence != nullptr) return sequence->elements[static_cast<size_t>(at)];
  Text part = CodePointPart(*value.text(), at, at + 1);
  part.safe = value.text()->safe;
  return part;
}

Value GetSlice(const Value& value, const Value& begin, const Value& end, const Value& step) {
  NeedDefined(value);
  const Sequence* sequence = value.sequence();
  const bool is_range = sequence != nullptr && sequence->kind == Sequence::Kind::kRange;
  if (value.list() == nullptr && value.text() == nullptr && !is_range) {
    Fail("a slice of " + std::string(value.KindName()));
  }
  for (const Value* bound : {&begin, &end, &step}) {
    NeedDefined(*bound);
    if (!bound->is_none() && !bound->number()) {
      Fail("a slice by " + std::string(bound->KindName()));
    }
  }
  const int64_t length = Length(value);
  const int64_t by = step.number().value_or(1);
  if (by == 0) Fail("a slice in steps of 0");
  const auto clip = [&](const Value& bound, int64_t otherwise) {
    if (bound.is_none()) return otherwise;
    const int64_t at = *bound.number() < 0 ? *bound.number() + length : *bound.number();
    return std::clamp<int64_t>(at, by < 0 ? -1 : 0, by < 0 ? length - 1 : length);
  };
  const int64_t from = clip(begin, by < 0 ? length - 1 : 0);
  const int64_t to = clip(end, by < 0 ? -1 : length);
  const auto next = [&](int64_t i) {
    return by > 0 ? (to - i > by ? i + by : to) : (i - to > -by && by != INT64_MIN ? i + by : to);
  };
  if (value.text() != nullptr) {
    const Text& text = *value.text();
    Text part;
    if (by == 1) {
      part = CodePointPart(text, from, std::max(from, to));
    } else {
      Make(text.bytes.size() * 9);
      std::vector<size_t> starts;
      for (size_t at = 0; at < text.bytes.size(); at += Utf8Length(text.bytes[at])) {
        starts.push_back(at);
      }
      for (int64_t i = from; by > 0 ? i < to : i > to; i = next(i)) {
        Step();
        const size_t at = starts[static_cast<size_t>(i)];
        part.Append(text.Part(at, at + Utf8Length(text.bytes[at])));
      }
    }
    part.safe = text.safe;
    return part;
  }
  Make(static_cast<size_t>(std::max<int64_t>(0, by > 0 ? to - from : from - to)) * sizeof(Value));
  List list;
  for (int64_t i = from; by > 0 ? i < to : i > to; i = next(i)) {
    list.push_back(sequence->elements[static_cast<size_t>(i)]);
  }
  return Sequence{sequence->kind, std::move(list), 0, {}};
}

int64_t Length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.text() != nullptr) return static_cast<int64_t>(CodePoints(value.text()->bytes));
  if (value.sequence() != nullptr && value.sequence()->kind != Sequence::Kind::kIterator) {
    return static_cast<int64_t>(value.sequence()->elements.size());
  }
  if (value.dict() != nullptr) return static_cast<int64_t>(value.dict()->size());
  Fail("the length of " + std::string(value.KindName()));
}

List Pull(const Value& value, std::exception_ptr* error) {
  List list;
  if (const Sequence* sequence = value.sequence()) {
    size_t from = 0;
    if (sequence->kind == Sequence::Kind::kIterator) {
      if (sequence->taken == Sequence::kInUse) {
        Fail("an iterator is used again before it is at its end: not supported");
      }
      from = std::min(sequence->taken, sequence->elements.size());
      sequence->taken = sequence->elements.size();
      *error = sequence->error;
    }
    Make((sequence->elements.size() - from) * sizeof(Value));
    list.assign(sequence->elements.begin() + static_cast<ptrdiff_t>(from),
                sequence->elements.end());
    return list;
  }
  if (value.dict() != nullptr) {
    Make(value.dict()->size() * sizeof(Value));
    for (const auto& [key, member] : *value.dict()) list.push_back(key);
    return list;
  }
  if (value.text() != nullptr) {
    const Text& text = *value.text();
    Make(CodePoints(text.bytes) * (sizeof(Value) + sizeof(Text) + 48));
    for (size_t at = 0; at < text.bytes.size();) {
      const size_t begin = at;
      at += Utf8Length(text.bytes[at]);
      list.push_back(text.Part(begin, at));
    }
    return list;
  }
  if (value.is_undefined()) return list;
  Fail(std::string(value.KindName()) + " cannot be looped over");
}

List Elements(const Value& value) {
  std::exception_ptr error;
  List list = Pull(value, &error);
  if (error) std::rethrow_exception(error);
  return list;
}

Value MakeIterator(List elements, std::exception_ptr error) {
  return Sequence{Sequence::Kind::kIterator, std::move(elements), 0, std::move(error)};
}

bool Contains(const Value& value, const Value& part) {
  if (value.text() != nullptr && part.text() != nullptr) {
    return FindBytes(value.text()->bytes, part.text()->bytes, 0).has_value();
  }
  if (value.dict() != nullptr) {
    return value.dict()->FindKey(part) != nullptr;
  }
  if (const Sequence* sequence = value.sequence()) {
    if (sequence->kind != Sequence::Kind::kIterator) {
      return std::find(sequence->elements.begin(), sequence->elements.end(), part) !=
             sequence->elements.end();
    }
    const List elements = Elements(value);
    const bool found = std::find(elements.begin(), elements.end(), part) != elements.end();
    if (found) sequence->taken = Sequence::kInUse;
    return found;
  }
  if (value.is_undefined()) return false;
  NeedDefined(part);
  Fail(fmt::format("in of {} and {}", part.KindName(), value.KindName()));
}

Value CallRange(const Arguments& arguments) {
  if (!arguments.named.empty() || arguments.values.empty()) Fail("arguments of range");
  const Bound bound("range", {"begin", "end", "step"}, arguments);
  const bool from_zero = !bound.IsGiven(1);
  const int64_t begin = from_zero ? 0 : bound.Integer(0, 0);
  const int64_t end = bound.Integer(from_zero ? 0 : 1, 0);
  const int64_t step = bound.Integer(2, 1);
  if (step == 0) Fail("range in steps of 0");
  const __int128 width = step > 0 ? __int128{end} - begin : __int128{begin} - end;
  const __int128 size = step > 0 ? __int128{step} : -__int128{step};
  const __int128 count = width <= 0 ? 0 : (width + size - 1) / size;
  if (count > 100'000) Fail("range has more than 100000 numbers, which transformers refuses");
  Make(static_cast<size_t>(count) * sizeof(Value));
  List list;
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) list.push_back(begin + i * step);
  std::string printed = fmt::format("range({}, {}", begin, end);
  printed += step == 1 ? ")" : fmt::format(", {})", step);
  return Sequence{Sequence::Kind::kRange, std::move(list), 0, {}, std::move(printed)};
}

}  // namespace zeroplan::jinja
