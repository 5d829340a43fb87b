// From the text of a Jinja template to its tree.
#pragma once

#include <string_view>

#include "text/jinja/syntax.h"

namespace zeroplan::jinja {

// Throws TemplateError (lexer.h): what is no Jinja, and of Jinja what chat templates do without
// (include, import, extends, call, filter, raw, recursive loops, floating point numbers).
Block Parse(std::string_view source);

}  // namespace zeroplan::jinja
