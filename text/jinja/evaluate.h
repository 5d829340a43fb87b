// Renders a Jinja template.
#pragma once

#include <ctime>
#include <exception>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"
#include "text/jinja/value.h"

namespace zeroplan::jinja {

// What the template itself refuses: its raise_exception(what).
class Refusal : public TemplateError {
 public:
  using TemplateError::TemplateError;
};

struct Rendering {
  Text text;
  // Bytes [first, second) come from {% generation %} blocks.
  std::vector<std::pair<size_t, size_t>> generations;
};

// `block` with `variables` as its surroundings. Functions among them: raise_exception, strftime_now
// (which tells `now`); those that Jinja has anyway (range, dict, namespace) are there without.
//
// What is computed is what Jinja 3.1 computes in the environment that transformers sets up, with
// Python's values. What it would compute in a way that is not known here is a TemplateError once it
// is reached; so is what takes more than `limits`.
Rendering Render(const Block& block, const Dict& variables, const std::tm& now = {},
                 const Limits& limits = {});

// What Jinja and Python bring along. All of it throws TemplateError for what is not known, and for
// values of other kinds than it is known for.

// The arguments of a call.
struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;
};

// The arguments by the names of a function's parameters.
class Bound {
 public:
  Bound(std::string_view function, std::initializer_list<std::string_view> parameters,
        const Arguments& arguments);
  // nullptr: it is not given.
  const Value* operator[](size_t parameter) const { return values_[parameter]; }
  bool IsGiven(size_t parameter) const { return values_[parameter] != nullptr; }
  const Value& Need(size_t parameter) const;
  bool Flag(size_t parameter, bool otherwise) const;
  int64_t Integer(size_t parameter, int64_t otherwise) const;
  // nullptr where it is not given, or none.
  const Text* TextOf(size_t parameter) const;

 private:
  std::string function_;
  std::vector<const Value*> values_;
};

[[noreturn]] void FailUndefined(const Undefined& undefined);
// An error if `value` is undefined.
void NeedDefined(const Value& value);

// What `loop` is in a loop's body.
struct Loop {
  const Statement* statement = nullptr;
  uint64_t scope = 0;
  List elements;
  std::exception_ptr error;  // behind the last element
  size_t at = 0;
  int64_t depth = 1;
  std::optional<Value> changed;
};

// functions.cc
Value LoopAttribute(const Loop& loop, std::string_view name);
// loop.cycle(...), and loop.changed(...).
Value CallLoopMethod(std::string_view name, Loop* loop, const Arguments& arguments);
// Throws for what nobody may keep.
void CheckDepth(const Value& value);
Value CallFunction(const std::string& name, const Arguments& arguments, const std::tm& now);
void SetMember(const Namespace& space, const std::string& name, Value value);

// filters.cc, tests.cc
Value CallFilter(std::string_view name, const Value& value, const Arguments& arguments);
bool CallTest(std::string_view name, const Value& value, const Arguments& arguments);

// access.cc
Value CallMethod(std::string_view name, const Value& object, const Arguments& arguments);
// Whether Python's objects of this kind have the method, and the sandbox allows its call.
bool HasMethod(const Value& object, std::string_view name);
// value.name, and value[key].
Value GetAttribute(const Value& value, std::string_view name);
Value GetItem(const Value& value, const Value& key);
// value[begin:end:step], each none where it is left out.
Value GetSlice(const Value& value, const Value& begin, const Value& end, const Value& step);
int64_t Length(const Value& value);
// What a loop over it gives. An iterator is used up.
List Elements(const Value& value);
// The same as far as it goes: what is thrown behind the last element is *error.
List Pull(const Value& value, std::exception_ptr* error);
Value MakeIterator(List elements, std::exception_ptr error = nullptr);
bool Contains(const Value& value, const Value& part);
Value CallRange(const Arguments& arguments);

// operators.cc
Value Operate(Operator operation, const Value& a, const Value& b);
Value Minus(const Value& value);
Value Plus(const Value& value);

// casing.cc: Python's str.upper() and others, and of isalpha() and its kin the one of that name.
Text Upper(const Text& text);
Text Lower(const Text& text);
Text Capitalized(const Text& text);
Text Titled(const Text& text);
// Jinja's filter title: words begin where the text does, and behind white space and -({[<.
Text TitleOfWords(const Text& text);
std::optional<bool> IsOfKind(std::string_view name, std::string_view text);
bool IsPrintable(char32_t code_point);

// text_methods.cc: text.name(arguments).
Value CallTextMethod(std::string_view name, const Text& text, const Arguments& arguments);
List SplitLines(const Text& text, bool keeps_ends);
std::optional<size_t> FindBytes(std::string_view text, std::string_view part, size_t from);
Text Replaced(const Text& text, const Text& from, const Text& to, int64_t most);
// With & < > ' " as HTML has them.
Text Escaped(const Text& text);
bool NeedsEscape(std::string_view text);

// printing.cc
// The text that {{ value }} prints: Python's str(value); and repr(value).
Text Printed(const Value& value);
Text Represented(const Value& value);
// Python's json.dumps. What is made of a marked text is marked.
struct JsonStyle {
  bool ascii = false, sorted = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ", key_separator = ": ";
};
Text AsJson(const Value& value, const JsonStyle& style);
// text % arguments, and text.format(arguments).
Text FormatPercent(const Text& format, const Value& arguments);
Text FormatBraces(const Text& format, const Arguments& arguments);

}  // namespace zeroplan::jinja
