#include "text/jinja/value.h"

#include <algorithm>

namespace zeroplan::jinja {

void Text::Append(const Text& other) {
  const size_t before = bytes.size();
  bytes += other.bytes;
  for (const Mark& mark : other.marks) {
    marks.push_back({mark.begin + before, mark.end + before, mark.message});
  }
}

Text Text::Part(size_t begin, size_t end) const {
  Text part;
  part.bytes = bytes.substr(begin, end - begin);
  for (const Mark& mark : marks) {
    const size_t from = std::max(mark.begin, begin);
    const size_t to = std::min(mark.end, end);
    if (from <= to) part.marks.push_back({from - begin, to - begin, mark.message});
  }
  return part;
}

Value::Value(List list) : depth_(1) {
  for (const Value& element : list) depth_ = std::max(depth_, element.depth_ + 1);
  value_ = std::make_shared<const List>(std::move(list));
}

Value::Value(Dict dict) : depth_(1) {
  for (const Member& member : dict) depth_ = std::max(depth_, member.value.depth_ + 1);
  value_ = std::make_shared<const Dict>(std::move(dict));
}

std::optional<int64_t> Value::number() const {
  if (const auto* number = std::get_if<int64_t>(&value_)) return *number;
  if (flag() != nullptr) return *flag() ? 1 : 0;
  return std::nullopt;
}

bool Value::IsTrue() const {
  if (is_undefined() || is_none()) return false;
  if (const std::optional<int64_t> value = number()) return *value != 0;
  if (text() != nullptr) return !text()->bytes.empty();
  if (list() != nullptr) return !list()->empty();
  if (dict() != nullptr) return !dict()->empty();
  return true;
}

std::string_view Value::KindName() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "none";
  if (flag() != nullptr) return "true or false";
  if (is_plain_number()) return "a number";
  if (text() != nullptr) return "a text";
  if (list() != nullptr) return "a list";
  if (dict() != nullptr) return "a mapping";
  if (space() != nullptr) return "a namespace";
  return "a function";
}

bool operator==(const Value& a, const Value& b) {
  if (a.number() && b.number()) return *a.number() == *b.number();
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->bytes == b.text()->bytes;
  if (a.list() != nullptr && b.list() != nullptr) return *a.list() == *b.list();
  if (a.dict() != nullptr && b.dict() != nullptr) {
    return a.dict()->size() == b.dict()->size() &&
           std::all_of(a.dict()->begin(), a.dict()->end(), [&](const Member& member) {
             const Value* other = Find(*b.dict(), member.key);
             return other != nullptr && *other == member.value;
           });
  }
  if (a.space() != nullptr && b.space() != nullptr) {
    return a.space()->members == b.space()->members;
  }
  if (a.function() != nullptr && b.function() != nullptr) {
    return a.function()->name == b.function()->name;
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

const Value* Find(const Dict& dict, std::string_view key) {
  for (const Member& member : dict) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

void Set(Dict* dict, std::string_view key, Value value) {
  for (Member& member : *dict) {
    if (member.key == key) {
      member.value = std::move(value);
      return;
    }
  }
  dict->push_back({std::string(key), std::move(value)});
}

}  // namespace zeroplan::jinja
