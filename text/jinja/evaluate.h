// Renders a Jinja template.
#pragma once

#include <string>
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

}  // namespace zeroplan::jinja
