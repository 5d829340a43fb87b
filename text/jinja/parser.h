// From the text of a Jinja template to its tree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan::jinja {

// A Jinja template as a tree.
struct NamedExpression;

struct Expression {
  enum class Kind {
    kName,    // text
    kText,    // text
    kNumber,  // number
    kTrue,    // and the two others
    kFalse,
    kNone,
    kList,       // children; a tuple too
    kDict,       // children: key, value, key, ...
    kAttribute,  // children[0].text
    kItem,       // children[0][children[1]]
    kSlice,      // children[0][1:2:3]; an absent one is kNone
    kCall,       // children[0](others..., named...)
    kFilter,     // children[0] | text(others..., named...)
    kTest,       // children[0] is text(others...)
    kNot,        // children[0]
    kMinus,      // children[0]
    kAnd,        // children[0], children[1]
    kOr,
    kChoice,    // children[1] if children[0] else children[2], which may be missing
    kOperator,  // children[0] text children[1]: + - * // % ~ == != < <= > >= in, "not in"
  };

  Kind kind = Kind::kNone;
  int line = 1;
  int depth = 1;  // of the tree that it is
  std::string text;
  int64_t number = 0;
  std::vector<Expression> children;
  std::vector<NamedExpression> named;
};

struct NamedExpression {
  std::string name;
  Expression value;
};

struct Statement;
using Block = std::vector<Statement>;

struct Branch;

struct Statement {
  enum class Kind {
    kText,        // text
    kOutput,      // expression
    kIf,          // branches, then otherwise
    kFor,         // names in expression if condition: body; otherwise, if there was nothing
    kSet,         // names[0], or names[0].names[1], = expression
    kSetBlock,    // names[0] = what body prints
    kMacro,       // names[0](parameters): body
    kGeneration,  // body is what the model says
    kBreak,
    kContinue,
  };

  Kind kind = Kind::kText;
  int line = 1;
  std::string text;
  std::vector<std::string> names;
  Expression expression;
  bool has_condition = false;
  Expression condition;
  std::vector<NamedExpression> parameters;  // of a macro, with their defaults
  size_t required_parameters = 0;           // how many of the first have none
  std::vector<Branch> branches;
  Block body, otherwise;
};

struct Branch {
  Expression condition;
  Block body;
};

// Throws TemplateError (lexer.h): what is no Jinja, and of Jinja what chat templates do without
// (include, import, extends, call, filter, raw, recursive loops, floating point numbers).
Block Parse(std::string_view source);

}  // namespace zeroplan::jinja
