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

// Thrown when the template refuses its input: its raise_exception(what).
class Refusal : public TemplateError {
 public:
  using TemplateError::TemplateError;
};

struct Rendering {
  Text text;
  // Bytes [first, second) come from {% generation %} blocks.
  std::vector<std::pair<size_t, size_t>> generations;
};

// Renders `block` with `variables`. They may include the functions raise_exception and strftime_now
// (which returns `now`); functions that Jinja always has (range, dict, namespace) need not be
// included.
//
// Computes what Jinja 3.1 computes in the environment that transformers sets up, with Python's
// values. A computation that is not implemented here throws TemplateError when it is reached; so
// does one that exceeds `limits`.
Rendering Render(const Block& block, const Dict& variables, const std::tm& now = {},
                 const Limits& limits = {});

// Functions of Jinja and Python. All throw TemplateError for unknown names, and for values of kinds
// that they do not support.

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
  // nullptr: not given.
  const Value* operator[](size_t parameter) const { return values_[parameter]; }
  bool IsGiven(size_t parameter) const { return values_[parameter] != nullptr; }
  const Value& Need(size_t parameter) const;
  bool Flag(size_t parameter, bool otherwise) const;
  int64_t Integer(size_t parameter, int64_t otherwise) const;
  // nullptr if it is not given, or none.
  const Text* TextOf(size_t parameter) const;

 private:
  std::string function_;
  std::vector<const Value*> values_;
};

[[noreturn]] void FailUndefined(const Undefined& undefined);
// Throws if `value` is undefined.
void NeedDefined(const Value& value);

// The value of `loop` in a loop's body.
struct Loop {
  const Statement* statement = nullptr;
  uint64_t scope = 0;
  List elements;
  std::exception_ptr error;  // thrown after the last element
  size_t at = 0;
  int64_t depth = 1;
  std::optional<Value> changed;
};

// functions.cc
Value LoopAttribute(const Loop& loop, std::string_view name);
// loop.cycle(...), and loop.changed(...).
Value CallLoopMethod(std::string_view name, Loop* loop, const Arguments& arguments);
// Throws for values that are nested too deep to store.
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
// value[begin:end:step]; a part that is left out is none.
Value GetSlice(const Value& value, const Value& begin, const Value& end, const Value& step);
int64_t Length(const Value& value);
// The elements of a loop over the value. Exhausts an iterator.
List Elements(const Value& value);
// The same up to an exception, which becomes *error.
List Pull(const Value& value, std::exception_ptr* error);
Value MakeIterator(List elements, std::exception_ptr error = nullptr);
bool Contains(const Value& value, const Value& part);
Value CallRange(const Arguments& arguments);

// operators.cc
Value Operate(Operator operation, const Value& a, const Value& b);
Value Minus(const Value& value);
Value Plus(const Value& value);

// casing.cc: Python's str.upper() and others; IsOfKind calls the method isalpha() or its kin of
// that name.
Text Upper(const Text& text);
Text Lower(const Text& text);
Text Capitalized(const Text& text);
Text Titled(const Text& text);
// Jinja's filter title: words begin at the text's begin, and after white space and -({[<.
Text TitleOfWords(const Text& text);
std::optional<bool> IsOfKind(std::string_view name, std::string_view text);
bool IsPrintable(char32_t code_point);

// text_methods.cc: text.name(arguments).
Value CallTextMethod(std::string_view name, const Text& text, const Arguments& arguments);
List SplitLines(const Text& text, bool keeps_ends);
std::optional<size_t> FindBytes(std::string_view text, std::string_view part, size_t from);
Text Replaced(const Text& text, const Text& from, const Text& to, int64_t most);
// Escapes & < > ' " as in HTML.
Text Escaped(const Text& text);
bool NeedsEscape(std::string_view text);

// printing.cc: the text that {{ value }} prints, Python's str(value); and repr(value).
Text Printed(const Value& value);
Text Represented(const Value& value);
// Python's json.dumps. The result of a marked text is marked.
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
