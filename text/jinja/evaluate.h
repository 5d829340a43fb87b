// Renders a Jinja template.
#pragma once

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

// `block` with `variables` as its surroundings. Functions among them: raise_exception,
// strftime_now (with the variable of that name's text as its answer), namespace, range, dict.
//
// What is computed is what Jinja 3.1 computes. What it would compute in a way that is not known
// here (filters, methods, values that are printed as Python writes them) is a TemplateError once it
// is reached; so is a template that takes more than ten million steps or 256 MiB.
Rendering Render(const Block& block, const Dict& variables);

// What Jinja and Python bring along: filters, tests, methods, operators (builtins.cc).

// The arguments of a call.
struct Arguments {
  std::vector<Value> values;
  std::vector<Member> named;
};

// All throw TemplateError, with `line` as its line, for what is not known and for arguments of
// other kinds than these are known for.
Value CallFilter(std::string_view name, const Value& value, const Arguments& arguments, int line);
bool CallTest(std::string_view name, const Value& value, const Arguments& arguments, int line);
Value CallMethod(std::string_view name, const Value& value, const Arguments& arguments, int line);
Value Operate(std::string_view operation, const Value& a, const Value& b, int line);
// value.name, and value[key].
Value GetAttribute(const Value& value, std::string_view name, int line);
Value GetItem(const Value& value, const Value& key, int line);
// value[begin:end:step], each none where it is left out.
Value GetSlice(const Value& value, const Value& begin, const Value& end, const Value& step,
               int line);
// What a loop runs over.
List Elements(const Value& value, int line);
// The text that {{ value }} prints.
Text Printed(const Value& value, int line);

}  // namespace zeroplan::jinja
