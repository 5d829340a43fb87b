#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/base/long_work.h"
#include "core/base/strings.h"
#include "text/jinja/lexer.h"

namespace zeroplan::jinja {
namespace {

thread_local Meter* current_meter = nullptr;

constexpr size_t kIndexedFrom = 9;  // members; fewer are looked through

}  // namespace

// --- What it may cost

Meter::Meter(const Limits& limits) : limits_(limits), outer_(current_meter) {
  current_meter = this;
}

Meter::~Meter() { current_meter = outer_; }

Meter* Meter::Current() { return current_meter; }

void Meter::Step(uint64_t steps) {
  constexpr uint64_t kUnheard = 1'000;  // between two looks at whether it is to stop
  if (steps_ / kUnheard != (steps_ + std::min(steps, kUnheard)) / kUnheard) ThrowIfInterrupted();
  steps_ = steps > limits_.steps ? limits_.steps + 1 : steps_ + steps;
  if (steps_ > limits_.steps) throw LimitReached(line, "the template does not come to an end");
}

void Meter::Need(size_t bytes) const {
  if (bytes > limits_.bytes || live_ > limits_.bytes - bytes) {
    throw LimitReached(
        line, fmt::format("the template's values take more than {} MiB", limits_.bytes >> 20));
  }
}

void Fail(const std::string& what) {
  throw TemplateError(current_meter == nullptr ? 0 : current_meter->line, what);
}

void Step(uint64_t steps) {
  if (current_meter != nullptr) current_meter->Step(steps);
}

void Read(size_t bytes) { Step(bytes / 256); }

void Make(size_t bytes) {
  if (current_meter == nullptr) return;
  current_meter->Need(bytes);
  Read(bytes);
}

Charge::Charge(size_t bytes) : meter_(current_meter) { Grow(bytes); }

Charge::~Charge() {
  if (meter_ != nullptr) meter_->Remove(bytes_);
}

void Charge::Grow(size_t bytes) {
  if (meter_ == nullptr) return;
  meter_->Need(bytes);
  meter_->Add(bytes);
  bytes_ += bytes;
}

// --- Texts

void Text::Append(const Text& other) {
  const size_t before = bytes.size();
  bytes += other.bytes;
  for (const zeroplan::jinja::Mark& mark : other.marks) {
    if (!marks.empty() && marks.back().message == mark.message &&
        marks.back().end == mark.begin + before) {
      marks.back().end = mark.end + before;  // so many pieces of one text do not have many marks
    } else {
      marks.push_back({mark.begin + before, mark.end + before, mark.message});
    }
  }
}

Text Text::Part(size_t begin, size_t end) const {
  Text part;
  part.bytes = bytes.substr(begin, end - begin);
  auto mark =
      std::lower_bound(marks.begin(), marks.end(), begin,
                       [](const zeroplan::jinja::Mark& m, size_t at) { return m.end < at; });
  for (; mark != marks.end() && mark->begin <= end; ++mark) {
    part.marks.push_back(
        {std::max(mark->begin, begin) - begin, std::min(mark->end, end) - begin, mark->message});
  }
  return part;
}

size_t CodePoints(std::string_view text) {
  Read(text.size());
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

Text CodePointPart(const Text& text, int64_t begin, int64_t end) {
  Read(text.bytes.size());
  const auto bytes_of = [](std::string_view bytes, int64_t count) {
    size_t at = 0;
    for (; count > 0 && at < bytes.size(); --count) at += Utf8Length(bytes[at]);
    return at;
  };
  const size_t from = bytes_of(text.bytes, begin);
  return text.Part(from, from + bytes_of(std::string_view(text.bytes).substr(from), end - begin));
}

// --- Values

Value::Value(Text text) {
  const size_t cost = text.Cost();
  Read(cost);
  value_ = std::make_shared<const KeptText>(std::move(text), cost);
}

Value::Value(Sequence sequence) : depth_(1) {
  for (const Value& element : sequence.elements) depth_ = std::max(depth_, element.depth_ + 1);
  const size_t cost = sequence.elements.size() * sizeof(Value);
  Read(cost);
  value_ = std::make_shared<const KeptSequence>(std::move(sequence), cost);
}

Value::Value(List list) : Value(Sequence{Sequence::Kind::kList, std::move(list), 0, {}}) {}

Value Value::Tuple(List elements) {
  return Sequence{Sequence::Kind::kTuple, std::move(elements), 0, {}};
}

Value::Value(Dict dict) : depth_(1) {
  for (const Member& member : dict) {
    depth_ = std::max({depth_, member.key.depth_ + 1, member.value.depth_ + 1});
  }
  const size_t cost = dict.size() * (sizeof(Member) + (dict.size() < kIndexedFrom ? 0 : 100));
  Read(cost);
  value_ = std::make_shared<const KeptDict>(std::move(dict), cost);
}

Value::Value(Method method)
    : value_(std::make_shared<const Method>(std::move(method))), depth_(kMostDepth) {}

Value Value::Integer(std::string_view digits) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error == std::errc() && end == digits.data() + digits.size()) return number;
  const bool negative = digits.starts_with('-');
  digits.remove_prefix(negative ? 1 : 0);
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  Value value;
  value.value_ = std::make_shared<const LargeInteger>(
      LargeInteger{(negative ? "-" : "") + std::string(digits)});
  return value;
}

Value OfWide(__int128 value) {
  if (value >= std::numeric_limits<int64_t>::min() &&
      value <= std::numeric_limits<int64_t>::max()) {
    return static_cast<int64_t>(value);
  }
  return Value::Integer(fmt::format("{}", value));
}

const List* Value::list() const {
  const Sequence* held = sequence();
  const bool is_list = held != nullptr && (held->kind == Sequence::Kind::kList ||
                                           held->kind == Sequence::Kind::kTuple);
  return is_list ? &held->elements : nullptr;
}

std::optional<int64_t> Value::number() const {
  if (const auto* number = std::get_if<int64_t>(&value_)) return *number;
  if (flag() != nullptr) return *flag() ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::as_real() const {
  if (real() != nullptr) return *real();
  if (const std::optional<int64_t> integer = number()) return static_cast<double>(*integer);
  if (large() != nullptr) return std::strtod(large()->digits.c_str(), nullptr);
  return std::nullopt;
}

bool Value::is_callable() const {
  return function() != nullptr || method() != nullptr || macro() != nullptr || loop() != nullptr ||
         is_undefined();
}

bool Value::IsTrue() const {
  if (is_undefined() || is_none()) return false;
  if (const std::optional<int64_t> value = number()) return *value != 0;
  if (real() != nullptr) return *real() != 0;
  if (text() != nullptr) return !text()->bytes.empty();
  if (sequence() != nullptr) {
    return sequence()->kind == Sequence::Kind::kIterator || !sequence()->elements.empty();
  }
  if (dict() != nullptr) return !dict()->empty();
  return true;
}

std::string_view Value::KindName() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "none";
  if (flag() != nullptr) return "true or false";
  if (is_number()) return "a number";
  if (text() != nullptr) return "a text";
  if (dict() != nullptr) return "a mapping";
  if (space() != nullptr) return "a namespace";
  if (sequence() == nullptr) return loop() != nullptr ? "a loop" : "a function";
  switch (sequence()->kind) {
    case Sequence::Kind::kList:
      return "a list";
    case Sequence::Kind::kTuple:
      return "a tuple";
    case Sequence::Kind::kRange:
      return "a range";
    case Sequence::Kind::kIterator:
      return "an iterator";
    default:
      return "the keys, values or items of a mapping";
  }
}

bool Value::IsSameAs(const Value& other) const {
  if (value_.index() != other.value_.index()) return false;
  const auto same = [&](const auto& held) {
    using Held = std::decay_t<decltype(held)>;
    const Held& others = std::get<Held>(other.value_);
    if constexpr (std::is_same_v<Held, None>) {
      return true;
    } else if constexpr (std::is_same_v<Held, Namespace>) {
      return held.members == others.members;
    } else {
      return held == others;
    }
  };
  return std::visit(same, value_);
}

namespace {

// The order of two numbers; 2 with NaN.
int CompareNumbers(const Value& a, const Value& b) {
  const auto sign = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2; };
  if (a.number() && b.number()) return sign(*a.number(), *b.number());
  if (a.real() != nullptr && b.real() != nullptr) return sign(*a.real(), *b.real());
  if (a.real() != nullptr || b.real() != nullptr) {
    // Python compares the exact values. Both are exact up to 2^53; above, what is whole is compared
    // as an integer.
    const double x = *a.as_real(), y = *b.as_real();
    if (x != y || std::isnan(x) || std::fabs(x) <= 9007199254740992.0) return sign(x, y);
    const auto whole = [](const Value& v) {
      return v.real() == nullptr ? IntegerText(v) : fmt::format("{:.0f}", *v.real());
    };
    return CompareNumbers(Value::Integer(whole(a)), Value::Integer(whole(b)));
  }
  const std::string x = IntegerText(a), y = IntegerText(b);
  const bool x_negative = x[0] == '-', y_negative = y[0] == '-';
  if (x_negative != y_negative) return x_negative ? -1 : 1;
  const int order = x.size() != y.size() ? sign(x.size(), y.size()) : sign(x.compare(y), 0);
  return x_negative ? -order : order;
}

bool AreEqual(const List& a, const List& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

}  // namespace

bool operator==(const Value& a, const Value& b) {
  Step();
  if (a.is_number() && b.is_number()) return CompareNumbers(a, b) == 0;
  if (a.text() != nullptr && b.text() != nullptr) {
    Read(std::min(a.text()->bytes.size(), b.text()->bytes.size()));
    return a.text()->bytes == b.text()->bytes;
  }
  if (a.IsSameAs(b)) return true;
  if (a.sequence() != nullptr && b.sequence() != nullptr) {
    using Kind = Sequence::Kind;
    const Kind kind = a.sequence()->kind;
    if (kind != b.sequence()->kind || kind == Kind::kIterator || kind == Kind::kValues) {
      return false;
    }
    if (kind != Kind::kList && kind != Kind::kTuple && kind != Kind::kRange) {
      Fail("== of " + std::string(a.KindName()) + " is not supported");
    }
    return AreEqual(a.sequence()->elements, b.sequence()->elements);
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    return a.dict()->size() == b.dict()->size() &&
           std::all_of(a.dict()->begin(), a.dict()->end(), [&](const Member& member) {
             const Value* other = b.dict()->FindKey(member.key);
             return other != nullptr && *other == member.value;
           });
  }
  if (a.function() != nullptr && b.function() != nullptr) {
    return a.function()->name == b.function()->name;
  }
  return a.is_undefined() && b.is_undefined();
}

int Compare(const Value& a, const Value& b) {
  Step();
  if (a.is_number() && b.is_number()) return CompareNumbers(a, b);
  if (a.text() != nullptr && b.text() != nullptr) {
    Read(std::min(a.text()->bytes.size(), b.text()->bytes.size()));
    // UTF-8 keeps the order of characters.
    const int order = a.text()->bytes.compare(b.text()->bytes);
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (a.list() != nullptr && b.list() != nullptr && a.sequence()->kind == b.sequence()->kind) {
    const List &x = *a.list(), &y = *b.list();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!(x[i] == y[i])) return Compare(x[i], y[i]);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) Fail("'" + value->undefined()->name + "' is undefined");
  }
  Fail(std::string(a.KindName()) + " and " + std::string(b.KindName()) + " have no order");
}

// --- Mappings

namespace {

// One text for the keys that Python takes for one.
void SpellKey(const Value& key, std::string* out) {
  Step();
  if (key.text() != nullptr) {
    *out += fmt::format("t{}:{}", key.text()->bytes.size(), key.text()->bytes);
  } else if (key.is_none() || key.is_undefined()) {
    *out += key.is_none() ? 'n' : 'u';
  } else if (key.real() != nullptr && std::trunc(*key.real()) != *key.real()) {
    *out += "r" + RealText(*key.real());
  } else if (key.real() != nullptr) {
    *out += fmt::format("i{:.0f};", *key.real() + 0.0);
  } else if (key.is_number()) {
    *out += "i" + IntegerText(key) + ";";
  } else if (key.sequence() != nullptr && key.sequence()->kind == Sequence::Kind::kTuple) {
    *out += '(';
    for (const Value& element : *key.list()) SpellKey(element, out);
    *out += ')';
  } else {
    Fail(std::string(key.KindName()) + " cannot be a key");
  }
}

std::string Spelled(const Value& key) {
  std::string spelled;
  if (key.text() == nullptr) SpellKey(key, &spelled);
  return spelled;
}

}  // namespace

Dict::Dict(std::initializer_list<Member> members) {
  for (const Member& member : members) push_back(member);
}

std::optional<size_t> Dict::PlaceOf(std::string_view key) const {
  if (members_.size() >= kIndexedFrom) {
    const auto found = texts_.find(key);
    return found == texts_.end() ? std::nullopt : std::optional(found->second);
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    const Text* text = members_[i].key.text();
    if (text != nullptr && text->bytes == key) return i;
  }
  return std::nullopt;
}

std::optional<size_t> Dict::PlaceOf(const Value& key, const std::string& spelled) const {
  if (key.text() != nullptr) return PlaceOf(std::string_view(key.text()->bytes));
  const auto found = others_.find(spelled);
  return found == others_.end() ? std::nullopt : std::optional(found->second);
}

void Dict::SetKey(Value key, Value value) {
  std::string spelled = Spelled(key);
  if (const std::optional<size_t> place = PlaceOf(key, spelled)) {
    members_[*place].value = std::move(value);
  } else {
    Add(std::move(key), std::move(value), std::move(spelled));
  }
}

void Dict::Set(std::string_view key, Value value) {
  if (const std::optional<size_t> place = PlaceOf(key)) {
    members_[*place].value = std::move(value);
  } else {
    Add(Value::Of(key), std::move(value), {});
  }
}

void Dict::push_back(Member member) { SetKey(std::move(member.key), std::move(member.value)); }

void Dict::Add(Value key, Value value, std::string spelled) {
  const size_t place = members_.size();
  if (key.text() == nullptr) others_[std::move(spelled)] = place;
  members_.emplace_back(std::move(key), std::move(value), nullptr);
  if (members_.size() < kIndexedFrom) return;
  for (size_t i = members_.size() == kIndexedFrom ? 0 : place; i <= place; ++i) {
    if (members_[i].key.text() != nullptr) texts_[members_[i].key.text()->bytes] = i;
  }
}

const Value* Dict::Find(std::string_view key) const {
  const std::optional<size_t> place = PlaceOf(key);
  return place ? &members_[*place].value : nullptr;
}

const Value* Dict::FindKey(const Value& key) const {
  const std::optional<size_t> place = PlaceOf(key, Spelled(key));
  return place ? &members_[*place].value : nullptr;
}

// --- Numbers as Python writes them

std::string RealText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string IntegerText(const Value& value) {
  return value.large() != nullptr ? value.large()->digits : std::to_string(*value.number());
}

}  // namespace zeroplan::jinja
