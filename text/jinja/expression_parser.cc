#include "text/jinja/expression_parser.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace zeroplan::jinja {
namespace {

constexpr int kMostDepth = 100;      // of parentheses and the like
constexpr int kMostTreeDepth = 500;  // of "1 + 1 + 1 + ...", too

using Kind = Expression::Kind;

Expression Node(Kind kind, int line, std::string text = {}) {
  Expression node;
  node.kind = kind;
  node.line = line;
  node.text = std::move(text);
  return node;
}

// `node` has a part of that depth.
void Deepen(Expression* node, int depth) {
  node->depth = std::max(node->depth, depth + 1);
  if (node->depth > kMostTreeDepth) {
    throw TemplateError(node->line, "an expression is nested too deep");
  }
}

void AddChild(Expression* node, Expression child) {
  Deepen(node, child.depth);
  node->children.push_back(std::move(child));
}

template <typename... Children>
Expression Over(Kind kind, int line, std::string text, Children... children) {
  Expression node = Node(kind, line, std::move(text));
  (AddChild(&node, std::move(children)), ...);
  return node;
}

}  // namespace

class ExpressionParser::Deeper {
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

const Token& ExpressionParser::Peek(size_t ahead) const {
  return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
}

Token ExpressionParser::Next() {
  const Token& token = Peek();
  if (token.kind != Token::Kind::kEnd) ++at_;
  return token;
}

bool ExpressionParser::TakeName(std::string_view name) {
  const bool is = IsName(name);
  if (is) ++at_;
  return is;
}

bool ExpressionParser::TakeSign(std::string_view sign) {
  const bool is = IsSign(sign);
  if (is) ++at_;
  return is;
}

void ExpressionParser::NeedName(std::string_view name) {
  if (!TakeName(name)) FailHere();
}

void ExpressionParser::NeedSign(std::string_view sign) {
  if (!TakeSign(sign)) FailHere();
}

std::string ExpressionParser::Identifier() {
  if (Peek().kind != Token::Kind::kName) FailHere();
  return Next().text;
}

void ExpressionParser::NeedEnd() const {
  if (Peek().kind != Token::Kind::kEnd) FailHere();
}

void ExpressionParser::FailHere() const {
  throw TemplateError(Peek().line, "unexpected " + Peek().text);
}

Expression ExpressionParser::Full() {
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

Expression ExpressionParser::FullOrTuple() {
  Expression first = Full();
  if (!IsSign(",")) return first;
  Expression tuple = Over(Kind::kList, first.line, "", std::move(first));
  while (TakeSign(",")) {
    if (Peek().kind == Token::Kind::kEnd || IsSign(")")) break;
    AddChild(&tuple, Full());
  }
  return tuple;
}

Expression ExpressionParser::Or() {
  Expression value = And();
  while (IsName("or")) {
    const int line = Next().line;
    value = Over(Kind::kOr, line, "", std::move(value), And());
  }
  return value;
}

Expression ExpressionParser::And() {
  Expression value = Not();
  while (IsName("and")) {
    const int line = Next().line;
    value = Over(Kind::kAnd, line, "", std::move(value), Not());
  }
  return value;
}

Expression ExpressionParser::Not() {
  if (!IsName("not")) return Compare();
  const Deeper deeper(this);
  const int line = Next().line;
  return Over(Kind::kNot, line, "", Not());
}

Expression ExpressionParser::Compare() {
  static constexpr std::array<std::string_view, 6> kOperators = {"==", "!=", "<", "<=", ">", ">="};
  Expression value = Sum();
  for (bool compared = false;; compared = true) {
    const Token& token = Peek();
    std::string operation;
    if (token.kind == Token::Kind::kSign &&
        std::find(kOperators.begin(), kOperators.end(), token.text) != kOperators.end()) {
      operation = token.text;
    } else if (IsName("in")) {
      operation = "in";
    } else if (IsName("not") && Peek(1).Is(Token::Kind::kName, "in")) {
      operation = "not in";
    } else {
      return value;
    }
    if (compared) throw TemplateError(token.line, "chained comparisons are not supported");
    const int line = token.line;
    at_ += operation == "not in" ? 2 : 1;
    value = Over(Kind::kOperator, line, operation, std::move(value), Sum());
  }
}

Expression ExpressionParser::Sum() {
  Expression value = Concat();
  while (IsSign("+") || IsSign("-")) {
    const Token sign = Next();
    value = Over(Kind::kOperator, sign.line, sign.text, std::move(value), Concat());
  }
  return value;
}

Expression ExpressionParser::Concat() {
  Expression value = Product();
  while (IsSign("~")) {
    const Token sign = Next();
    value = Over(Kind::kOperator, sign.line, "~", std::move(value), Product());
  }
  return value;
}

Expression ExpressionParser::Product() {
  Expression value = Unary(true);
  while (IsSign("*") || IsSign("/") || IsSign("//") || IsSign("%")) {
    const Token sign = Next();
    value = Over(Kind::kOperator, sign.line, sign.text, std::move(value), Unary(true));
  }
  if (IsSign("**")) throw TemplateError(Peek().line, "** is not supported");
  return value;
}

Expression ExpressionParser::Unary(bool with_filters) {
  const Deeper deeper(this);
  const int line = Peek().line;
  Expression value;
  if (TakeSign("-")) {
    value = Over(Kind::kMinus, line, "", Unary(false));
  } else if (TakeSign("+")) {
    throw TemplateError(line, "a + before a value is not supported");
  } else {
    value = Primary();
  }
  value = Postfix(std::move(value));
  return with_filters ? Filters(std::move(value)) : value;
}

Expression ExpressionParser::Primary() {
  const Token token = Next();
  switch (token.kind) {
    case Token::Kind::kName:
      if (token.text == "true" || token.text == "True") return Node(Kind::kTrue, token.line);
      if (token.text == "false" || token.text == "False") return Node(Kind::kFalse, token.line);
      if (token.text == "none" || token.text == "None") return Node(Kind::kNone, token.line);
      return Node(Kind::kName, token.line, token.text);
    case Token::Kind::kText: {
      Expression text = Node(Kind::kText, token.line, token.text);
      while (Peek().kind == Token::Kind::kText) text.text += Next().text;
      return text;
    }
    case Token::Kind::kNumber: {
      Expression number = Node(Kind::kNumber, token.line);
      std::from_chars(token.text.data(), token.text.data() + token.text.size(), number.number);
      return number;
    }
    case Token::Kind::kSign:
      if (token.text == "[") return ListOf("]");
      if (token.text == "{") return DictOf();
      if (token.text == "(") {
        if (IsSign(")")) return ListOf(")");
        Expression value = FullOrTuple();
        NeedSign(")");
        return value;
      }
      break;
    case Token::Kind::kEnd:
      break;
  }
  throw TemplateError(token.line, "unexpected " + token.text);
}

Expression ExpressionParser::ListOf(std::string_view close) {
  Expression list = Node(Kind::kList, Peek().line);
  while (!TakeSign(close)) {
    AddChild(&list, Full());
    if (!IsSign(close)) NeedSign(",");
  }
  return list;
}

Expression ExpressionParser::DictOf() {
  Expression dict = Node(Kind::kDict, Peek().line);
  while (!TakeSign("}")) {
    AddChild(&dict, Full());
    NeedSign(":");
    AddChild(&dict, Full());
    if (!IsSign("}")) NeedSign(",");
  }
  return dict;
}

Expression ExpressionParser::Postfix(Expression value) {
  for (;;) {
    const int line = Peek().line;
    if (TakeSign(".")) {
      if (Peek().kind != Token::Kind::kName) FailHere();
      value = Over(Kind::kAttribute, line, Next().text, std::move(value));
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

Expression ExpressionParser::Subscript(Expression value) {
  const int line = Peek().line;
  std::vector<Expression> parts(1, Node(Kind::kNone, line));
  bool is_slice = false;
  while (!TakeSign("]")) {
    if (TakeSign(":")) {
      is_slice = true;
      parts.push_back(Node(Kind::kNone, line));
    } else {
      parts.back() = Full();
      if (!IsSign(":") && !IsSign("]")) FailHere();
    }
  }
  if (!is_slice) {
    if (parts[0].kind == Kind::kNone) throw TemplateError(line, "an index is missing");
    return Over(Kind::kItem, line, "", std::move(value), std::move(parts[0]));
  }
  if (parts.size() > 3) throw TemplateError(line, "a slice has more than three parts");
  parts.resize(3, Node(Kind::kNone, line));
  return Over(Kind::kSlice, line, "", std::move(value), std::move(parts[0]), std::move(parts[1]),
              std::move(parts[2]));
}

Expression ExpressionParser::Filters(Expression value) {
  for (;;) {
    const int line = Peek().line;
    if (TakeSign("|")) {
      std::string name = Identifier();
      if (IsSign(".")) FailHere();
      value = Over(Kind::kFilter, line, std::move(name), std::move(value));
      if (IsSign("(")) Arguments(&value);
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

Expression ExpressionParser::Test(Expression value) {
  const int line = Next().line;
  const bool negated = TakeName("not");
  Expression test = Over(Kind::kTest, line, Identifier(), std::move(value));
  if (IsSign("(")) {
    Arguments(&test);
  } else if (const Token& next = Peek();
             next.kind == Token::Kind::kText || next.kind == Token::Kind::kNumber ||
             next.Is(Token::Kind::kSign, "[") || next.Is(Token::Kind::kSign, "{") ||
             (next.kind == Token::Kind::kName && next.text != "else" && next.text != "or" &&
              next.text != "and" && next.text != "if")) {
    if (next.text == "is") throw TemplateError(line, "chained tests are not supported");
    AddChild(&test, Postfix(Primary()));
  }
  return negated ? Over(Kind::kNot, line, "", std::move(test)) : test;
}

void ExpressionParser::Arguments(Expression* call) {
  NeedSign("(");
  while (!TakeSign(")")) {
    if (IsSign("*") || IsSign("**")) throw TemplateError(Peek().line, "*arguments");
    if (Peek().kind == Token::Kind::kName && Peek(1).Is(Token::Kind::kSign, "=")) {
      std::string name = Next().text;
      Next();
      Expression value = Full();
      Deepen(call, value.depth);
      call->named.push_back({std::move(name), std::move(value)});
    } else if (!call->named.empty()) {
      FailHere();
    } else {
      AddChild(call, Full());
    }
    if (!IsSign(")")) NeedSign(",");
  }
}

}  // namespace zeroplan::jinja
