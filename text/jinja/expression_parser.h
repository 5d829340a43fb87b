// Expressions within a tag of a Jinja template.
#pragma once

#include <string_view>
#include <vector>

#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"

namespace zeroplan::jinja {

// Reads the words of one tag, in order. Throws TemplateError.
class ExpressionParser {
 public:
  explicit ExpressionParser(const std::vector<Token>& tokens) : tokens_(tokens) {}

  const Token& Peek(size_t ahead = 0) const;
  Token Next();
  bool IsName(std::string_view name) const { return Peek().Is(Token::Kind::kName, name); }
  bool IsSign(std::string_view sign) const { return Peek().Is(Token::Kind::kSign, sign); }
  bool TakeName(std::string_view name);
  bool TakeSign(std::string_view sign);
  void NeedName(std::string_view name);
  void NeedSign(std::string_view sign);
  // A name that is anything.
  std::string Identifier();
  void NeedEnd() const;
  [[noreturn]] void FailHere() const;

  // `a if b else c` and all below it.
  Expression Full();
  // Several, with commas between: a tuple.
  Expression FullOrTuple();
  // `or` and all below it: what a loop runs over.
  Expression Or();

 private:
  // Below the parentheses of one of these, so that hostile nesting does not exhaust the stack.
  class Deeper;

  Expression And();
  Expression Not();
  Expression Compare();
  Expression Sum();
  Expression Concat();
  Expression Product();
  Expression Unary(bool with_filters);
  Expression Primary();
  Expression ListOf(std::string_view close);
  Expression DictOf();
  Expression Postfix(Expression value);
  Expression Subscript(Expression value);
  Expression Filters(Expression value);
  Expression Test(Expression value);
  void Arguments(Expression* call);

  const std::vector<Token>& tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace zeroplan::jinja
