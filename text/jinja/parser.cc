#include "text/jinja/parser.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>

#include "text/jinja/lexer.h"

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

// Reads the words of one tag, in order. Throws TemplateError.
class ExpressionParser {
 public:
  explicit ExpressionParser(const std::vector<Token>& tokens) : tokens_(tokens) {}

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
  // A name that is anything.
  std::string Identifier() {
    if (Peek().kind != Token::Kind::kName) FailHere();
    return Next().text;
  }

  void NeedEnd() const {
    if (Peek().kind != Token::Kind::kEnd) FailHere();
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

  // Several, with commas between: a tuple.
  Expression FullOrTuple() {
    Expression first = Full();
    if (!IsSign(",")) return first;
    const int line = first.line;
    Expression tuple = Over(Kind::kList, line, "", std::move(first));
    while (TakeSign(",")) {
      if (Peek().kind == Token::Kind::kEnd || IsSign(")")) break;
      AddChild(&tuple, Full());
    }
    return tuple;
  }

  // `or` and all below it: what a loop runs over.
  Expression Or() {
    return Chain({"or"}, [this] { return And(); });
  }

 private:
  // Below the parentheses of one of these, so that hostile nesting does not exhaust the stack.
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

  Expression Not() {
    if (!IsName("not")) return Compare();
    const Deeper deeper(this);
    const int line = Next().line;
    return Over(Kind::kNot, line, "", Not());
  }

  Expression Compare() {
    static constexpr std::array<std::string_view, 6> kOperators = {"==", "!=", "<",
                                                                   "<=", ">",  ">="};
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

  // Operators of one rank, from left to right.
  template <typename Part>
  Expression Chain(std::initializer_list<std::string_view> operators, Part part) {
    Expression value = part();
    while (std::any_of(operators.begin(), operators.end(),
                       [this](std::string_view word) { return IsSign(word) || IsName(word); })) {
      const Token token = Next();
      const Kind kind = token.text == "or"    ? Kind::kOr
                        : token.text == "and" ? Kind::kAnd
                                              : Kind::kOperator;
      value = Over(kind, token.line, token.text, std::move(value), part());
    }
    return value;
  }
  Expression And() {
    return Chain({"and"}, [this] { return Not(); });
  }
  Expression Sum() {
    return Chain({"+", "-"}, [this] { return Concat(); });
  }
  Expression Concat() {
    return Chain({"~"}, [this] { return Product(); });
  }
  Expression Product() {
    Expression value = Chain({"*", "/", "//", "%"}, [this] { return Unary(true); });
    if (IsSign("**")) throw TemplateError(Peek().line, "** is not supported");
    return value;
  }

  Expression Unary(bool with_filters) {
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

  Expression Primary() {
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

  Expression ListOf(std::string_view close) {
    Expression list = Node(Kind::kList, Peek().line);
    while (!TakeSign(close)) {
      AddChild(&list, Full());
      if (!IsSign(close)) NeedSign(",");
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

  Expression Subscript(Expression value) {
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

  Expression Filters(Expression value) {
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

  Expression Test(Expression value) {
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

  void Arguments(Expression* call) {
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

  const std::vector<Token>& tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

constexpr int kMostBlocks = 100;

using StatementKind = Statement::Kind;

class Parser {
 public:
  explicit Parser(std::string_view source) : parts_(Cut(source)) {}

  Block Run() { return ReadBlock({}); }

 private:
  const std::string& TagName(const Part& part) const { return part.tokens[0].text; }

  // All up to one of the tags `ends`, which is next then; with none, up to the end.
  Block ReadBlock(std::initializer_list<std::string_view> ends) {
    if (++depth_ > kMostBlocks) throw TemplateError(LineHere(), "blocks are nested too deep");
    Block block;
    for (;;) {
      if (at_ == parts_.size()) {
        if (ends.size() == 0) break;
        throw TemplateError(parts_.empty() ? 1 : parts_.back().line,
                            "the end comes before " + std::string(*ends.begin()));
      }
      const Part& part = parts_[at_];
      if (part.kind == Part::Kind::kBlock &&
          std::find(ends.begin(), ends.end(), TagName(part)) != ends.end()) {
        break;
      }
      ++at_;
      block.push_back(ReadStatement(part));
    }
    --depth_;
    return block;
  }

  int LineHere() const { return at_ < parts_.size() ? parts_[at_].line : 1; }

  Statement ReadStatement(const Part& part) {
    Statement statement;
    statement.line = part.line;
    if (part.kind == Part::Kind::kText) {
      statement.text = part.text;
      return statement;
    }
    ExpressionParser words(part.tokens);
    if (part.kind == Part::Kind::kOutput) {
      statement.kind = StatementKind::kOutput;
      statement.expression = words.FullOrTuple();
      words.NeedEnd();
      return statement;
    }
    const std::string tag = words.Identifier();
    if (tag == "if") {
      ReadIf(&words, &statement);
    } else if (tag == "for") {
      ReadFor(&words, &statement);
    } else if (tag == "set") {
      ReadSet(&words, &statement);
    } else if (tag == "macro") {
      ReadMacro(&words, &statement);
    } else if (tag == "generation") {
      statement.kind = StatementKind::kGeneration;
      words.NeedEnd();
      statement.body = ReadBody("endgeneration");
    } else if (tag == "break" || tag == "continue") {
      statement.kind = tag == "break" ? StatementKind::kBreak : StatementKind::kContinue;
      if (loops_ == 0) throw TemplateError(part.line, tag + " outside of a loop");
      words.NeedEnd();
    } else {
      throw TemplateError(part.line, "the tag " + tag + " is not supported here");
    }
    return statement;
  }

  // Up to the tag `end`, and that.
  Block ReadBody(std::string_view end) {
    Block body = ReadBlock({end});
    EndTag();
    return body;
  }

  void EndTag() {
    ExpressionParser words(parts_[at_++].tokens);
    words.Next();
    words.NeedEnd();
  }

  void ReadIf(ExpressionParser* words, Statement* statement) {
    statement->kind = StatementKind::kIf;
    Expression condition = words->FullOrTuple();
    words->NeedEnd();
    for (;;) {
      statement->branches.push_back({std::move(condition), ReadBlock({"elif", "else", "endif"})});
      const Part& next = parts_[at_];
      if (TagName(next) != "elif") break;
      ++at_;
      ExpressionParser more(next.tokens);
      more.Next();
      condition = more.FullOrTuple();
      more.NeedEnd();
    }
    if (TagName(parts_[at_]) == "else") {
      EndTag();
      statement->otherwise = ReadBlock({"endif"});
    }
    EndTag();
  }

  void ReadFor(ExpressionParser* words, Statement* statement) {
    statement->kind = StatementKind::kFor;
    statement->names.push_back(words->Identifier());
    while (words->TakeSign(",")) statement->names.push_back(words->Identifier());
    words->NeedName("in");
    statement->expression = words->Or();
    if (words->TakeName("if")) {
      statement->has_condition = true;
      statement->condition = words->Full();
    }
    words->NeedEnd();
    ++loops_;
    statement->body = ReadBlock({"else", "endfor"});
    --loops_;
    if (TagName(parts_[at_]) == "else") {
      EndTag();
      statement->otherwise = ReadBlock({"endfor"});
    }
    EndTag();
  }

  void ReadSet(ExpressionParser* words, Statement* statement) {
    statement->names.push_back(words->Identifier());
    if (words->TakeSign(".")) statement->names.push_back(words->Identifier());
    if (words->TakeSign("=")) {
      statement->kind = StatementKind::kSet;
      statement->expression = words->FullOrTuple();
      words->NeedEnd();
      return;
    }
    words->NeedEnd();
    if (statement->names.size() > 1) words->FailHere();
    statement->kind = StatementKind::kSetBlock;
    statement->body = ReadBody("endset");
  }

  void ReadMacro(ExpressionParser* words, Statement* statement) {
    statement->kind = StatementKind::kMacro;
    if (depth_ > 1) throw TemplateError(statement->line, "a macro within a block");
    statement->names.push_back(words->Identifier());
    words->NeedSign("(");
    while (!words->TakeSign(")")) {
      NamedExpression parameter = {words->Identifier(), {}};
      if (words->TakeSign("=")) {
        parameter.value = words->Full();
      } else if (statement->parameters.size() > statement->required_parameters) {
        words->FailHere();
      } else {
        ++statement->required_parameters;
      }
      statement->parameters.push_back(std::move(parameter));
      if (!words->IsSign(")")) words->NeedSign(",");
    }
    words->NeedEnd();
    const int loops = std::exchange(loops_, 0);
    statement->body = ReadBody("endmacro");
    loops_ = loops;
  }

  std::vector<Part> parts_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
};

}  // namespace

Block Parse(std::string_view source) { return Parser(source).Run(); }

}  // namespace zeroplan::jinja
