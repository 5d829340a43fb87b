// What Jinja and Python bring along: filters, tests, methods, operators.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace zeroplan::jinja {

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
