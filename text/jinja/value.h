// Values of a Jinja template, with Python's semantics, as chat templates compute with them; and the
// limits of their costs: steps, and bytes held at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace zeroplan::jinja {

// Limits of a rendering.
struct Limits {
  uint64_t steps = 10'000'000;
  size_t bytes = size_t{256} << 20;  // bytes of values that are live at a time
};

// Counts the steps and bytes on this thread during its lifetime.
class Meter {
 public:
  explicit Meter(const Limits& limits);
  ~Meter();
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;
  static Meter* Current();

  int line = 0;  // the template's line that is running

  void Step(uint64_t steps);
  // Throws if `bytes` more would exceed the limit.
  void Need(size_t bytes) const;
  void Add(size_t bytes) { live_ += bytes; }
  void Remove(size_t bytes) { live_ -= bytes; }

 private:
  Limits limits_;
  uint64_t steps_ = 0;
  size_t live_ = 0;
  Meter* outer_;
};

// Throws TemplateError (lexer.h) for the running line.
[[noreturn]] void Fail(const std::string& what);
// Counts `steps` steps before they are done.
void Step(uint64_t steps = 1);
// Counts `bytes` bytes before they are made, or read.
void Make(size_t bytes);
void Read(size_t bytes);

// Bytes that the Meter counts during this object's lifetime.
class Charge {
 public:
  explicit Charge(size_t bytes = 0);
  ~Charge();
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  void Grow(size_t bytes);

 private:
  Meter* meter_;
  size_t bytes_ = 0;
};

// Bytes [begin, end) of a text come from message `message`. The range may be empty: then it is the
// place where the message's text would be.
struct Mark {
  size_t begin = 0;
  size_t end = 0;
  int message = 0;
};

// UTF-8, with the origins of its parts. Every operation on a text keeps its marks.
struct Text {
  std::string bytes;
  std::vector<Mark> marks;  // in order; they do not overlap
  bool safe = false;        // set by the filters safe and escape: text added to it is escaped

  void Append(const Text& other);
  void Append(std::string_view other) { bytes += other; }
  // Bytes [begin, end).
  Text Part(size_t begin, size_t end) const;
  // Bytes that it occupies in memory.
  size_t Cost() const { return bytes.size() + marks.size() * sizeof(Mark); }
};

class Value;
using List = std::vector<Value>;
struct Member;
class Dict;

// A variable that is not set. `name` is for messages.
struct Undefined {
  std::string name;
};
struct None {};
// A function among the template's variables.
struct Function {
  std::string name;
};
// An integer that does not fit 64 bits, in Python's spelling.
struct LargeInteger {
  std::string digits;
};
// The target of {% set name.key = ... %}.
struct Namespace {
  std::shared_ptr<Dict> members;
};
struct Sequence;  // lists and their kin
struct Method;    // value.name, if that is a function
// Values known to the renderer only: one of the template's macros, and `loop`.
struct Macro;
struct Loop;

class Value {
 public:
  Value() : value_(None()) {}
  Value(Undefined undefined) : value_(std::make_shared<const Undefined>(std::move(undefined))) {}
  Value(None none) : value_(none) {}
  Value(bool flag) : value_(flag) {}
  Value(int64_t number) : value_(number) {}
  Value(double number) : value_(number) {}
  Value(Text text);
  Value(List list);
  Value(Dict dict);
  Value(Sequence sequence);
  Value(Method method);
  Value(Function function) : value_(std::make_shared<const Function>(std::move(function))) {}
  Value(Namespace space) : value_(std::move(space)), depth_(kMostDepth) {}
  Value(std::shared_ptr<const Macro> macro) : value_(std::move(macro)) {}
  Value(std::shared_ptr<Loop> loop) : value_(std::move(loop)), depth_(kMostDepth) {}
  Value(const char*) = delete;  // it would convert to true
  static Value Of(std::string_view text) { return Text{std::string(text), {}}; }
  static Value Tuple(List elements);
  // An integer of any size. REQUIRES: decimal digits, perhaps preceded by "-".
  static Value Integer(std::string_view digits);

  bool is_undefined() const { return undefined() != nullptr; }
  bool is_none() const { return std::holds_alternative<None>(value_); }
  // nullptr: the value is of another kind.
  const Undefined* undefined() const { return Pointer<const Undefined>(); }
  const bool* flag() const { return std::get_if<bool>(&value_); }
  const double* real() const { return std::get_if<double>(&value_); }
  const LargeInteger* large() const { return Pointer<const LargeInteger>(); }
  const Text* text() const;
  const Sequence* sequence() const;
  // The elements of a list or a tuple.
  const List* list() const;
  const Dict* dict() const;
  const Function* function() const { return Pointer<const Function>(); }
  const Method* method() const { return Pointer<const Method>(); }
  const Namespace* space() const { return std::get_if<Namespace>(&value_); }
  const Macro* macro() const { return Pointer<const Macro>(); }
  Loop* loop() const { return Pointer<Loop>(); }
  // The integer of a number, if it fits 64 bits; Python counts True and False as 1 and 0.
  std::optional<int64_t> number() const;
  // The same, including numbers with a fraction.
  std::optional<double> as_real() const;
  bool is_plain_integer() const {
    return std::holds_alternative<int64_t>(value_) || large() != nullptr;
  }
  bool is_number() const { return is_plain_integer() || flag() != nullptr || real() != nullptr; }
  bool is_callable() const;

  // The nesting depth of lists and mappings. Values beyond kMostDepth must not be stored, because
  // they would be destroyed recursively. The same holds for a namespace within any value.
  int depth() const { return depth_; }
  static constexpr int kMostDepth = 100;

  // Python's bool(value).
  bool IsTrue() const;
  // "a text", "a list": for messages.
  std::string_view KindName() const;
  // Python's ==. IsSameAs: whether both are one object, as far as that can be known: equal large
  // numbers and equal texts may be.
  friend bool operator==(const Value& a, const Value& b);
  bool IsSameAs(const Value& other) const;

 private:
  // A value's contents, and the memory charged for them.
  template <typename T>
  struct Kept {
    Kept(T held, size_t cost) : charge(cost + sizeof(Kept)), value(std::move(held)) {}
    Charge charge;
    T value;
  };
  struct KeptText;
  struct KeptSequence;
  struct KeptDict;

  template <typename T>
  T* Pointer() const {
    const auto* held = std::get_if<std::shared_ptr<T>>(&value_);
    return held == nullptr ? nullptr : held->get();
  }
  std::variant<None, bool, int64_t, double, std::shared_ptr<const Undefined>,
               std::shared_ptr<const LargeInteger>, std::shared_ptr<const KeptText>,
               std::shared_ptr<const KeptSequence>, std::shared_ptr<const KeptDict>,
               std::shared_ptr<const Function>, std::shared_ptr<const Method>, Namespace,
               std::shared_ptr<const Macro>, std::shared_ptr<Loop>>
      value_;
  int depth_ = 0;
};

struct Sequence {
  enum class Kind {
    kList,
    kTuple,
    kKeys,    // a mapping's keys()
    kValues,  // values()
    kItems,   // items()
    kRange,
    kIterator,  // can be read once: the result of the filters map, select, reverse and others
  };
  Kind kind = Kind::kList;
  List elements;
  // An iterator's number of elements read, and the exception of the next one behind them.
  static constexpr size_t kInUse = SIZE_MAX;  // unknown
  mutable size_t taken = 0;
  std::exception_ptr error;
  std::string printed;  // a range's printed form, if known
};

struct Member {
  Member(std::string_view name, Value of_name) : key(Value::Of(name)), value(std::move(of_name)) {}
  Member(Value of_key, Value of_value, std::nullptr_t /*any key*/)
      : key(std::move(of_key)), value(std::move(of_value)) {}
  Value key;
  Value value;
};

// A mapping in insertion order, like Python's. Keys are those that Python allows: texts, numbers
// (1, 1.0 and True are equal), None, tuples of these.
class Dict {
 public:
  Dict() = default;
  Dict(std::initializer_list<Member> members);
  // Keeps the place of an existing key. Throws TemplateError for a value that cannot be a key.
  void SetKey(Value key, Value value);
  void Set(std::string_view key, Value value);
  void push_back(Member member);
  // nullptr: the key is missing.
  const Value* Find(std::string_view key) const;
  const Value* FindKey(const Value& key) const;

  bool empty() const { return members_.empty(); }
  size_t size() const { return members_.size(); }
  std::vector<Member>::const_iterator begin() const { return members_.begin(); }
  std::vector<Member>::const_iterator end() const { return members_.end(); }

 private:
  std::optional<size_t> PlaceOf(std::string_view key) const;
  std::optional<size_t> PlaceOf(const Value& key, const std::string& spelled) const;
  void Add(Value key, Value value, std::string spelled);

  std::vector<Member> members_;
  // Indices by key, once there are many members: by text, and for other keys by their spelling.
  std::map<std::string, size_t, std::less<>> texts_, others_;
};

struct Method {
  Value object;
  std::string name;
};

struct Value::KeptText : Kept<Text> {
  using Kept::Kept;
};
struct Value::KeptSequence : Kept<Sequence> {
  using Kept::Kept;
};
struct Value::KeptDict : Kept<Dict> {
  using Kept::Kept;
};

inline const Text* Value::text() const {
  const KeptText* kept = Pointer<const KeptText>();
  return kept == nullptr ? nullptr : &kept->value;
}
inline const Sequence* Value::sequence() const {
  const KeptSequence* kept = Pointer<const KeptSequence>();
  return kept == nullptr ? nullptr : &kept->value;
}
inline const Dict* Value::dict() const {
  const KeptDict* kept = Pointer<const KeptDict>();
  return kept == nullptr ? nullptr : &kept->value;
}

inline const Value* Find(const Dict& dict, std::string_view key) { return dict.Find(key); }
inline void Set(Dict* dict, std::string_view key, Value value) { dict->Set(key, std::move(value)); }

// A growing text, whose memory is charged before it grows.
class Output {
 public:
  void Append(std::string_view bytes) {
    Grow(bytes.size());
    text_.bytes += bytes;
  }
  void Append(const Text& text) {
    Grow(text.Cost());
    text_.Append(text);
  }
  // Marks the bytes appended from byte `begin` on as made of `text`, if that is marked.
  void Mark(size_t begin, const Text& text) {
    if (!text.marks.empty()) {
      text_.marks.push_back({begin, text_.bytes.size(), text.marks[0].message});
    }
  }
  size_t size() const { return text_.bytes.size(); }
  Text Take() { return std::move(text_); }

 private:
  void Grow(size_t bytes) {
    Make(bytes);
    charge_.Grow(bytes);
  }
  Charge charge_;
  Text text_;
};

// -1, 0 or 1 as a < b, a == b, a > b in Python; 2: neither, as for NaN. Throws for values without
// an order.
int Compare(const Value& a, const Value& b);

size_t CodePoints(std::string_view text);
// Characters [begin, end). REQUIRES: 0 <= begin <= end.
Text CodePointPart(const Text& text, int64_t begin, int64_t end);

// Python's repr of a number with a fraction, and of an integer's decimal text of any size.
std::string RealText(double value);
// The text of an integer, or of a LargeInteger.
std::string IntegerText(const Value& value);
Value OfWide(__int128 value);

}  // namespace zeroplan::jinja
