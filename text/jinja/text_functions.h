// What Python does with texts, as far as chat templates ask for it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace zeroplan::jinja {

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
