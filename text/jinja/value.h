// Values of a Jinja template, as Python has them: what chat templates compute with.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace zeroplan::jinja {

// Bytes [begin, end) of a text are what message `message` says, or were made of it. It may be
// empty: then it says where that would stand.
struct Mark {
  size_t begin = 0;
  size_t end = 0;
  int message = 0;
};

// UTF-8, and what of it came from where. Whatever is done to a text takes its marks along.
struct Text {
  std::string bytes;
  std::vector<Mark> marks;  // by begin

  void Append(const Text& other);
  void Append(std::string_view other) { bytes += other; }
  // Bytes [begin, end).
  Text Part(size_t begin, size_t end) const;
};

class Value;
using List = std::vector<Value>;
// In the order of insertion, as Python's.
struct Member;
using Dict = std::vector<Member>;

// What nobody set. `name` is for messages.
struct Undefined {
  std::string name;
};
struct None {};
// A function of the template's surroundings, or one of its own macros.
struct Function {
  std::string name;
};
// What {% set name.key = ... %} changes.
struct Namespace {
  std::shared_ptr<Dict> members;
};

class Value {
 public:
  Value() : value_(None()) {}
  Value(Undefined undefined) : value_(std::move(undefined)) {}
  Value(None none) : value_(none) {}
  Value(bool flag) : value_(flag) {}
  Value(int64_t number) : value_(number) {}
  Value(Text text) : value_(std::make_shared<const Text>(std::move(text))) {}
  Value(List list);
  Value(Dict dict);
  Value(Function function) : value_(std::move(function)) {}
  Value(Namespace space) : value_(std::move(space)), depth_(kNamespaceDepth) {}
  Value(const char*) = delete;  // it would be taken for true
  static Value Of(std::string_view text) { return Text{std::string(text), {}}; }

  bool is_undefined() const { return std::holds_alternative<Undefined>(value_); }
  bool is_none() const { return std::holds_alternative<None>(value_); }
  // nullptr: the value is of another kind.
  const Undefined* undefined() const { return std::get_if<Undefined>(&value_); }
  const bool* flag() const { return std::get_if<bool>(&value_); }
  const Text* text() const { return Pointer<Text>(); }
  const List* list() const { return Pointer<List>(); }
  const Dict* dict() const { return Pointer<Dict>(); }
  const Function* function() const { return std::get_if<Function>(&value_); }
  const Namespace* space() const { return std::get_if<Namespace>(&value_); }
  // The integer of a number; Python counts True and False as 1 and 0.
  std::optional<int64_t> number() const;
  bool is_plain_number() const { return std::holds_alternative<int64_t>(value_); }

  // How deep lists and mappings lie in one another. Past kMostDepth nobody may keep a value: it
  // would be taken apart recursively. That goes for a namespace within anything, too.
  int depth() const { return depth_; }
  static constexpr int kMostDepth = 100;

  // Python's bool(value).
  bool IsTrue() const;
  // "a text", "a list": for messages.
  std::string_view KindName() const;
  // Python's ==.
  friend bool operator==(const Value& a, const Value& b);

 private:
  static constexpr int kNamespaceDepth = kMostDepth;

  template <typename T>
  const T* Pointer() const {
    const auto* held = std::get_if<std::shared_ptr<const T>>(&value_);
    return held == nullptr ? nullptr : held->get();
  }

  std::variant<Undefined, None, bool, int64_t, std::shared_ptr<const Text>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, Function, Namespace>
      value_;
  int depth_ = 0;
};

struct Member {
  std::string key;
  Value value;
};

// nullptr: the key is not there.
const Value* Find(const Dict& dict, std::string_view key);
void Set(Dict* dict, std::string_view key, Value value);

// What Python does with texts, as far as chat templates ask for it:
// text.name(arguments): strip, lstrip, rstrip, split, startswith, endswith, upper, lower,
// capitalize, replace, removeprefix, removesuffix, find, count. Throws TemplateError for others,
// for arguments of other kinds, and where letters change that are not ASCII.
Value CallTextMethod(std::string_view name, const Text& text, const std::vector<Value>& arguments,
                     int line);

// Python's json.dumps(value, ensure_ascii=False). What is made of a marked text is marked.
Text AsJson(const Value& value, int line);

size_t CodePoints(std::string_view text);
// Characters [begin, end). REQUIRES: 0 <= begin <= end.
Text CodePointPart(const Text& text, int64_t begin, int64_t end);

}  // namespace zeroplan::jinja
