// Parses the expressions of a Jinja template: the contents of {{ }}, and the text after the names
// of tags. For parser.cc.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"
#include "text/jinja/value.h"

namespace zeroplan::jinja {

inline constexpr int kMostDepth = 100;      // limit of nested parentheses and the like
inline constexpr int kMostTreeDepth = 500;  // also limits "1 + 1 + 1 + ..."

inline Expression Node(Expression::Kind kind, int line, std::string text = {}) {
  Expression node;
  node.kind = kind;
  node.line = line;
  node.text = std::move(text);
  return node;
}

// Updates the depth of `node` for a child of that depth.
inline void Deepen(Expression* node, int depth) {
  node->depth = std::max(node->depth, depth + 1);
  if (node->depth > kMostTreeDepth) {
    throw TemplateError(node->line, "an expression is nested too deep");
  }
}

inline void AddChild(Expression* node, Expression child) {
  Deepen(node, child.depth);
  node->children.push_back(std::move(child));
}

template <typename... Children>
Expression Over(Expression::Kind kind, int line, std::string text, Children... children) {
  Expression node = Node(kind, line, std::move(text));
  (AddChild(&node, std::move(children)), ...);
  return node;
}

inline Expression Constant(int line, Value value) {
  Expression node = Node(Expression::Kind::kConstant, line);
  node.constant = std::move(value);
  return node;
}

inline bool IsConstantName(std::string_view name) {
  return name == "true" || name == "True" || name == "false" || name == "False" || name == "none" ||
         name == "None";
}

// Parses the tokens of one tag, in order. Throws TemplateError.
class ExpressionParser {
  using Kind = Expression::Kind;

 public:
  // `names`: receives the names that occur.
  ExpressionParser(const std::vector<Token>& tokens, std::set<std::string, std::less<>>* names)
      : tokens_(tokens), names_(names) {}

  const Token& Peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }

  Token Next() {
    const Token& token = Peek();
    if (token.kind != Token::Kind::kEnd) ++at_;
    return token;
  }

  bool IsName(std::string_view name) const { return Peek().Is(Token::Kind::kName, name); }
  bool IsSign(std::string_view sign) const { return Peek().Is(Token::Kind::kSign, sign); }
  bool TakeName(std::string_view name) { return IsName(name) && ++at_ > 0; }
  bool TakeSign(std::string_view sign) { return IsSign(sign) && ++at_ > 0; }
  void NeedName(std::string_view name) {
    if (!TakeName(name)) FailHere();
  }
  void NeedSign(std::string_view sign) {
    if (!TakeSign(sign)) FailHere();
  }
  // Any name.
  std::string Identifier() {
    if (Peek().kind != Token::Kind::kName) FailHere();
    return Next().text;
  }

  void NeedEnd() const {
    if (Peek().kind != Token::Kind::kEnd) FailHere();
  }
  // The end of a tag with a body, with an optional colon.
  void NeedBody() {
    TakeSign(":");
    NeedEnd();
  }

  [[noreturn]] void FailHere() const {
    throw TemplateError(Peek().line, "unexpected " + Peek().text);
  }

  // `a if b else c` and all below it.
  Expression Full() {
    const Deeper deeper(this);
    Expression value = Or();
    while (IsName("if")) {
      const int line = Next().line;
      Expression condition = Or();
      value = Over(Kind::kChoice, line, "", std::move(condition), std::move(value));
      if (TakeName("else")) AddChild(&value, Full());
    }
    return value;
  }

  // One expression, or several with commas between: a tuple.
  Expression Tuple() {
    return Several([this] { return Full(); });
  }
  // The same without `a if b else c`: the iterable of a loop, and the condition of `if`.
  Expression PlainTuple() {
    return Several([this] { return Or(); });
  }

  Target ReadTarget(bool may_have_attribute) {
    const int line = Peek().line;
    Target first = TargetPart(may_have_attribute);
    if (!IsSign(",")) return first;
    Target target;
    target.is_tuple = true;
    target.parts.push_back(std::move(first));
    while (TakeSign(",")) {
      // Jinja parses `in` as a name here.
      if (IsSign(")") || Peek().kind == Token::Kind::kEnd) break;
      target.parts.push_back(TargetPart(may_have_attribute));
    }
    if (target.parts.size() > 100) throw TemplateError(line, "too many names");
    return target;
  }

  // Parses | name(arguments) | ..., applied to `value`.
  Expression Filter(Expression value) {
    const int line = Peek().line;
    value = Over(Kind::kFilter, line, Identifier(), std::move(value));
    if (IsSign(".")) FailHere();
    if (IsSign("(")) Arguments(&value);
    return value;
  }
  Expression FilterChain(Expression value) {
    while (TakeSign("|")) value = Filter(std::move(value));
    return value;
  }

  // name, name=default, ... in parentheses.
  void ReadParameters(Statement* macro) {
    NeedSign("(");
    while (!TakeSign(")")) {
      NamedExpression parameter = {Identifier(), {}};
      if (IsConstantName(parameter.name)) FailHere();
      if (TakeSign("=")) {
        parameter.value = Full();
      } else if (macro->parameters.size() > macro->required_parameters) {
        FailHere();
      } else {
        ++macro->required_parameters;
      }
      macro->parameters.push_back(std::move(parameter));
      if (!IsSign(")")) NeedSign(",");
    }
  }

 private:
  // Counts the nesting depth during its lifetime, so that hostile nesting does not exhaust the
  // stack.
  class Deeper {
   public:
    explicit Deeper(ExpressionParser* parser) : depth_(&parser->depth_) {
      if (++*depth_ > kMostDepth) {
        --*depth_;
        throw TemplateError(parser->Peek().line, "an expression is nested too deep");
      }
    }
    ~Deeper() { --*depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    int* depth_;
  };

  template <typename Part>
  Expression Several(Part part) {
    Expression first = part();
    if (!IsSign(",")) return first;
    const int line = first.line;
    Expression tuple = Over(Kind::kTuple, line, "", std::move(first));
    while (TakeSign(",")) {
      if (Peek().kind == Token::Kind::kEnd || IsSign(")") || IsSign(":")) break;
      AddChild(&tuple, part());
    }
    return tuple;
  }

  Target TargetPart(bool may_have_attribute) {
    const Deeper deeper(this);
    if (TakeSign("(")) {
      Target inner = ReadTarget(may_have_attribute);
      NeedSign(")");
      return inner;
    }
    Target target;
    target.name = Identifier();
    if (IsConstantName(target.name)) FailHere();
    if (may_have_attribute && TakeSign(".")) target.attribute = Identifier();
    return target;
  }

  Expression Or() {
    return Chain({"or"}, [this] { return And(); });
  }
  Expression And() {
    return Chain({"and"}, [this] { return Not(); });
  }
  Expression Not() {
    if (!IsName("not")) return Comparison();
    const Deeper deeper(this);
    const int line = Next().line;
    return Over(Kind::kNot, line, "", Not());
  }

  static std::optional<Operator> OperatorOf(std::string_view sign) {
    static constexpr std::array<std::pair<std::string_view, Operator>, 14> kSigns = {
        {{"+", Operator::kAdd},
         {"-", Operator::kSubtract},
         {"*", Operator::kMultiply},
         {"/", Operator::kDivide},
         {"//", Operator::kFloorDivide},
         {"%", Operator::kRemainder},
         {"**", Operator::kPower},
         {"~", Operator::kConcat},
         {"==", Operator::kEqual},
         {"!=", Operator::kUnequal},
         {"<", Operator::kLess},
         {"<=", Operator::kLessEqual},
         {">", Operator::kGreater},
         {">=", Operator::kGreaterEqual}}};
    for (const auto& [spelling, operation] : kSigns) {
      if (spelling == sign) return operation;
    }
    return std::nullopt;
  }

  Expression Comparison() {
    Expression value = Sum();
    for (;;) {
      const Token& token = Peek();
      std::optional<Operator> operation;
      if (token.kind == Token::Kind::kSign) {
        operation = OperatorOf(token.text);
        if (operation && *operation < Operator::kEqual) operation.reset();
      } else if (IsName("in")) {
        operation = Operator::kIn;
      } else if (IsName("not") && Peek(1).Is(Token::Kind::kName, "in")) {
        operation = Operator::kNotIn;
      }
      if (!operation) return value;
      const int line = token.line;
      at_ += *operation == Operator::kNotIn ? 2 : 1;
      if (value.kind != Kind::kCompare || value.text == "(") {
        value = Over(Kind::kCompare, line, "", std::move(value));
      }
      AddChild(&value, Sum());
      value.operators.push_back(*operation);
    }
  }

  // Operators of one precedence, left-associative.
  template <typename Part>
  Expression Chain(std::initializer_list<std::string_view> operators, Part part) {
    Expression value = part();
    while (std::any_of(operators.begin(), operators.end(),
                       [this](std::string_view word) { return IsSign(word) || IsName(word); })) {
      const Token token = Next();
      const std::optional<Operator> operation = OperatorOf(token.text);
      const Kind kind = token.text == "or"    ? Kind::kOr
                        : token.text == "and" ? Kind::kAnd
                                              : Kind::kOperator;
      value = Over(kind, token.line, "", std::move(value), part());
      if (operation) value.operators.push_back(*operation);
    }
    return value;
  }
  Expression Sum() {
    return Chain({"+", "-"}, [this] { return Concat(); });
  }
  Expression Concat() {
    return Chain({"~"}, [this] { return Product(); });
  }
  Expression Product() {
    return Chain({"*", "/", "//", "%"}, [this] { return Power(); });
  }
  Expression Power() {
    return Chain({"**"}, [this] { return Unary(true); });
  }

  Expression Unary(bool with_filters) {
    const Deeper deeper(this);
    const int line = Peek().line;
    Expression value;
    if (TakeSign("-")) {
      value = Over(Kind::kMinus, line, "", Unary(false));
    } else if (TakeSign("+")) {
      value = Over(Kind::kPlus, line, "", Unary(false));
    } else {
      value = Primary();
    }
    value = Postfix(std::move(value));
    return with_filters ? Filters(std::move(value)) : value;
  }

  Expression Primary() {
    const Token token = Next();
    switch (token.kind) {
      case Token::Kind::kName:
        if (token.text == "none" || token.text == "None") return Constant(token.line, None());
        if (IsConstantName(token.text)) {
          return Constant(token.line, token.text == "true" || token.text == "True");
        }
        names_->insert(token.text);
        return Node(Kind::kName, token.line, token.text);
      case Token::Kind::kText: {
        std::string text = token.text;
        while (Peek().kind == Token::Kind::kText) text += Next().text;
        return Constant(token.line, Value::Of(text));
      }
      case Token::Kind::kInteger:
        return Constant(token.line, Value::Integer(token.text));
      case Token::Kind::kReal:
        return Constant(token.line, std::strtod(token.text.c_str(), nullptr));
      case Token::Kind::kSign:
        if (token.text == "[") return ListOf();
        if (token.text == "{") return DictOf();
        if (token.text == "(") return Parenthesis();
        break;
      case Token::Kind::kEnd:
        break;
    }
    throw TemplateError(token.line, "unexpected " + token.text);
  }

  Expression Parenthesis() {
    if (TakeSign(")")) return Node(Kind::kTuple, Peek().line);
    Expression value = Tuple();
    NeedSign(")");
    // (a < b) < c compares with the result of the first comparison.
    if (value.kind == Kind::kCompare) value.text = "(";
    return value;
  }

  Expression ListOf() {
    Expression list = Node(Kind::kList, Peek().line);
    while (!TakeSign("]")) {
      AddChild(&list, Full());
      if (!IsSign("]")) NeedSign(",");
    }
    return list;
  }

  Expression DictOf() {
    Expression dict = Node(Kind::kDict, Peek().line);
    while (!TakeSign("}")) {
      AddChild(&dict, Full());
      NeedSign(":");
      AddChild(&dict, Full());
      if (!IsSign("}")) NeedSign(",");
    }
    return dict;
  }

  Expression Postfix(Expression value) {
    for (;;) {
      const int line = Peek().line;
      if (TakeSign(".")) {
        if (Peek().kind == Token::Kind::kInteger) {
          value = Over(Kind::kItem, line, "", std::move(value),
                       Constant(line, Value::Integer(Next().text)));
        } else {
          value = Over(Kind::kAttribute, line, Identifier(), std::move(value));
        }
      } else if (TakeSign("[")) {
        value = Subscript(std::move(value));
      } else if (IsSign("(")) {
        value = Over(Kind::kCall, line, "", std::move(value));
        Arguments(&value);
      } else {
        return value;
      }
    }
  }

  Expression Subscript(Expression value) {
    const int line = Peek().line;
    if (IsSign("]")) FailHere();
    std::vector<Expression> parts(1, Constant(line, None()));
    bool is_slice = false, given = false;
    while (!TakeSign("]")) {
      if (TakeSign(":")) {
        is_slice = true;
        given = false;
        parts.push_back(Constant(line, None()));
      } else {
        if (given) FailHere();
        given = true;
        parts.back() = Full();
        if (!IsSign(":") && !IsSign("]")) FailHere();
      }
    }
    if (!is_slice) {
      return Over(Kind::kItem, line, "", std::move(value), std::move(parts[0]));
    }
    if (parts.size() > 3) throw TemplateError(line, "a slice has more than three parts");
    parts.resize(3, Constant(line, None()));
    return Over(Kind::kSlice, line, "", std::move(value), std::move(parts[0]), std::move(parts[1]),
                std::move(parts[2]));
  }

  Expression Filters(Expression value) {
    for (;;) {
      const int line = Peek().line;
      if (TakeSign("|")) {
        value = Filter(std::move(value));
      } else if (IsName("is")) {
        value = Test(std::move(value));
      } else if (IsSign("(")) {
        value = Over(Kind::kCall, line, "", std::move(value));
        Arguments(&value);
      } else {
        return value;
      }
    }
  }

  Expression Test(Expression value) {
    const int line = Next().line;
    const bool negated = TakeName("not");
    Expression test = Over(Kind::kTest, line, Identifier(), std::move(value));
    const Token& next = Peek();
    if (IsSign("(")) {
      Arguments(&test);
    } else if (next.kind == Token::Kind::kText || next.kind == Token::Kind::kInteger ||
               next.kind == Token::Kind::kReal || IsSign("[") || IsSign("{") ||
               (next.kind == Token::Kind::kName && next.text != "else" && next.text != "or" &&
                next.text != "and")) {
      if (next.text == "is") throw TemplateError(line, "tests with is cannot be chained");
      // Jinja parses these words as the test's argument, and then nothing matches.
      if (next.text == "if" || next.text == "not" || next.text == "in") FailHere();
      AddChild(&test, Postfix(Primary()));
    }
    return negated ? Over(Kind::kNot, line, "", std::move(test)) : test;
  }

  void Arguments(Expression* call) {
    NeedSign("(");
    bool positional_over = false, named_over = false;
    while (!TakeSign(")")) {
      const bool stars = IsSign("*"), double_stars = IsSign("**");
      if (named_over) FailHere();
      if (stars || double_stars) {
        if (stars && positional_over && !call->named.empty() &&
            std::any_of(call->named.begin(), call->named.end(),
                        [](const NamedExpression& n) { return n.name == "*"; })) {
          FailHere();
        }
        std::string sign = Next().text;
        AddNamed(call, std::move(sign), Full());
        positional_over = true;
        named_over = double_stars;
      } else if (Peek().kind == Token::Kind::kName && Peek(1).Is(Token::Kind::kSign, "=")) {
        std::string name = Next().text;
        Next();
        AddNamed(call, std::move(name), Full());
        positional_over = true;
      } else if (positional_over) {
        FailHere();
      } else {
        AddChild(call, Full());
      }
      if (!IsSign(")")) NeedSign(",");
    }
  }

  static void AddNamed(Expression* call, std::string name, Expression value) {
    Deepen(call, value.depth);
    call->named.push_back({std::move(name), std::move(value)});
  }

  const std::vector<Token>& tokens_;
  std::set<std::string, std::less<>>* names_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace zeroplan::jinja
