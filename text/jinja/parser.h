// Parses the text of a Jinja template to its tree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace zeroplan::jinja {

// A Jinja template as a tree.
struct NamedExpression;

enum class Operator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kRemainder,
  kPower,
  kConcat,  // ~
  kEqual,
  kUnequal,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expression {
  enum class Kind {
    kName,       // text
    kConstant,   // constant
    kBlockText,  // the output of the block that {% filter %} or {% set name | filter %} opens
    kList,       // children
    kTuple,      // children
    kDict,       // children: key, value, key, ...
    kAttribute,  // children[0].text
    kItem,       // children[0][children[1]]
    kSlice,      // children[0][1:2:3]; an absent one is none
    kCall,       // children[0](others..., named...)
    kFilter,     // children[0] | text(others..., named...)
    kTest,       // children[0] is text(others..., named...)
    kNot,        // children[0]
    kMinus,
    kPlus,
    kAnd,  // children[0], children[1]
    kOr,
    kChoice,    // children[1] if children[0] else children[2], which may be missing
    kOperator,  // children[0] operators[0] children[1]
    kCompare,   // children[0] operators[0] children[1] operators[1] children[2] ...
  };

  Kind kind = Kind::kConstant;
  int line = 1;
  int depth = 1;  // depth of its tree
  std::string text;
  Value constant;
  std::vector<Operator> operators;
  std::vector<Expression> children;
  std::vector<NamedExpression> named;  // *arguments and **arguments have these signs as names
};

struct NamedExpression {
  std::string name;
  Expression value;
};

// The target of an assignment: name, name.attribute, or several, among which the value's parts are
// distributed.
struct Target {
  std::string name, attribute;
  bool is_tuple = false;
  std::vector<Target> parts;
};

struct Statement;
using Block = std::vector<Statement>;

struct Branch;

struct Statement {
  enum class Kind {
    kText,        // text
    kOutput,      // expression
    kIf,          // branches, then otherwise
    kFor,         // target in expression if condition: body; otherwise, if there were no elements
    kSet,         // target = expression
    kSetBlock,    // target = expression, which uses the output of body
    kMacro,       // text(parameters): body
    kCall,        // expression is a call; body, with parameters, is its `caller`
    kFilter,      // expression, which uses the output of body
    kWith,        // parameters: names and their values; body
    kGeneration,  // body is the model's text
    kBreak,
    kContinue,
  };

  Kind kind = Kind::kText;
  int line = 1;
  std::string text;
  Target target;
  Expression expression;
  bool has_condition = false;
  Expression condition;
  bool is_recursive = false;
  std::vector<NamedExpression> parameters;  // a macro's, with their defaults
  size_t required_parameters = 0;           // number of the first parameters without a default
  // Whether a macro reads variables that its parameters do not include.
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
  std::vector<Branch> branches;
  Block body, otherwise;
};

struct Branch {
  Expression condition;
  Block body;
};

// Throws TemplateError (lexer.h) for invalid Jinja, and for Jinja that chat templates do not need
// (include, import, extends, block, autoescape).
Block Parse(std::string_view source);

}  // namespace zeroplan::jinja
