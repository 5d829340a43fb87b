// Values of a Jinja template, as Python has them: what chat templates compute with. And what they
// may cost: steps, and bytes that are held at a time.
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

// What a rendering may take.
struct Limits {
  uint64_t steps = 10'000'000;
  size_t bytes = size_t{256} << 20;  // of values that live at a time
};

// Counts what is made and done on this thread while it lives.
class Meter {
 public:
  explicit Meter(const Limits& limits);
  ~Meter();
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;
  static Meter* Current();

  int line = 0;  // of the template, that runs

  void Step(uint64_t steps);
  // Throws if `bytes` more would be too many.
  void Need(size_t bytes) const;
  void Add(size_t bytes) { live_ += bytes; }
  void Remove(size_t bytes) { live_ -= bytes; }

 private:
  Limits limits_;
  uint64_t steps_ = 0;
  size_t live_ = 0;
  Meter* outer_;
};

// Throws TemplateError (lexer.h) for the line that runs.
[[noreturn]] void Fail(const std::string& what);
// Before `steps` steps are done.
void Step(uint64_t steps = 1);
// Before `bytes` bytes are made, or read.
void Make(size_t bytes);
void Read(size_t bytes);

// Bytes that the Meter counts while this lives.
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
  std::vector<Mark> marks;  // in order; they do not overlap
  bool safe = false;        // of the filters safe and escape: what is added to it is escaped

  void Append(const Text& other);
  void Append(std::string_view other) { bytes += other; }
  // Bytes [begin, end).
  Text Part(size_t begin, size_t end) const;
  // What it takes in memory.
  size_t Cost() const { return bytes.size() + marks.size() * sizeof(Mark); }
};

class Value;
using List = std::vector<Value>;
struct Member;
class Dict;

// What nobody set. `name` is for messages.
struct Undefined {
  std::string name;
};
struct None {};
// A function of the template's surroundings.
struct Function {
  std::string name;
};
// An integer that 64 bits do not hold, as Python writes it.
struct LargeInteger {
  std::string digits;
};
// What {% set name.key = ... %} changes.
struct Namespace {
  std::shared_ptr<Dict> members;
};
struct Sequence;  // lists and their kin
struct Method;    // value.name, where that is a function
// What the renderer knows: one of the template's macros, and what `loop` is.
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
  Value(const char*) = delete;  // it would be taken for true
  static Value Of(std::string_view text) { return Text{std::string(text), {}}; }
  static Value Tuple(List elements);
  // An integer of any size. REQUIRES: decimal digits, perhaps with a "-" before them.
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
  // Of a list or a tuple.
  const List* list() const;
  const Dict* dict() const;
  const Function* function() const { return Pointer<const Function>(); }
  const Method* method() const { return Pointer<const Method>(); }
  const Namespace* space() const { return std::get_if<Namespace>(&value_); }
  const Macro* macro() const { return Pointer<const Macro>(); }
  Loop* loop() const { return Pointer<Loop>(); }
  // The integer of a number, if 64 bits hold it; Python counts True and False as 1 and 0.
  std::optional<int64_t> number() const;
  // The same, and numbers with a fraction.
  std::optional<double> as_real() const;
  bool is_plain_integer() const {
    return std::holds_alternative<int64_t>(value_) || large() != nullptr;
  }
  bool is_number() const { return is_plain_integer() || flag() != nullptr || real() != nullptr; }
  bool is_callable() const;

  // How deep lists and mappings lie in one another. Past kMostDepth nobody may keep a value: it
  // would be taken apart recursively. That goes for a namespace within anything, too.
  int depth() const { return depth_; }
  static constexpr int kMostDepth = 100;

  // Python's bool(value).
  bool IsTrue() const;
  // "a text", "a list": for messages.
  std::string_view KindName() const;
  // Python's ==. And whether both are one object, as far as that can be known: large numbers and
  // texts that are equal may be.
  friend bool operator==(const Value& a, const Value& b);
  bool IsSameAs(const Value& other) const;

 private:
  // What a value holds, and what that is charged with.
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
    kKeys,    // of a mapping: keys()
    kValues,  // values()
    kItems,   // items()
    kRange,
    kIterator,  // can be read once: what the filters map, select, reverse and others give
  };
  Kind kind = Kind::kList;
  List elements;
  // Of an iterator: how many were taken, and what the next one behind them throws.
  static constexpr size_t kInUse = SIZE_MAX;  // nobody knows
  mutable size_t taken = 0;
  std::exception_ptr error;
  std::string printed;  // of a range, where that is known
};

struct Member {
  Member(std::string_view name, Value of_name) : key(Value::Of(name)), value(std::move(of_name)) {}
  Member(Value of_key, Value of_value, std::nullptr_t /*any key*/)
      : key(std::move(of_key)), value(std::move(of_value)) {}
  Value key;
  Value value;
};

// A mapping: in the order of insertion, as Python's. Keys are what Python takes for keys: texts,
// numbers (1, 1.0 and True are one), None, tuples of these.
class Dict {
 public:
  Dict() = default;
  Dict(std::initializer_list<Member> members);
  // A member of that key keeps its place. Throws TemplateError for what cannot be a key.
  void SetKey(Value key, Value value);
  void Set(std::string_view key, Value value);
  void push_back(Member member);
  // nullptr: the key is not there.
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
  // Places by key, once there are many members: of texts, and of others by their spelling.
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

// Text that grows, and is charged before it does.
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
  // What was appended from byte `begin` on is made of `text`, if that is marked.
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
