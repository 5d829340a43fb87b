#include "text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>

#include "text/jinja/expression_parser.h"
#include "text/jinja/lexer.h"

namespace zeroplan::jinja {
namespace {

constexpr int kMostBlocks = 100;

using StatementKind = Statement::Kind;

class Parser {
 public:
  explicit Parser(std::string_view source) : parts_(Cut(source)) {}

  Block Run() { return ReadBlock({}); }

 private:
  static bool IsTag(const Part& part, std::initializer_list<std::string_view> names) {
    return part.kind == Part::Kind::kBlock && part.tokens[0].kind == Token::Kind::kName &&
           std::find(names.begin(), names.end(), part.tokens[0].text) != names.end();
  }

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
      if (IsTag(part, ends)) break;
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
    ExpressionParser words(part.tokens, &names_);
    if (part.kind == Part::Kind::kOutput) {
      statement.kind = StatementKind::kOutput;
      statement.expression = words.Tuple();
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
      statement.kind = StatementKind::kMacro;
      statement.text = words.Identifier();
      words.ReadParameters(&statement);
      ReadMacroBody(&words, &statement, "endmacro");
    } else if (tag == "call") {
      ReadCall(&words, &statement);
    } else if (tag == "filter") {
      statement.kind = StatementKind::kFilter;
      statement.expression =
          words.FilterChain(words.Filter(Node(Expression::Kind::kBlockText, statement.line)));
      words.NeedBody();
      statement.body = ReadBody("endfilter");
    } else if (tag == "with") {
      ReadWith(&words, &statement);
    } else if (tag == "generation") {
      statement.kind = StatementKind::kGeneration;
      words.NeedBody();
      const int loops = std::exchange(loops_, 0);
      statement.body = ReadBody("endgeneration");
      loops_ = loops;
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
    ExpressionParser words(parts_[at_++].tokens, &names_);
    words.Next();
    words.NeedBody();
  }

  void ReadIf(ExpressionParser* words, Statement* statement) {
    statement->kind = StatementKind::kIf;
    Expression condition = words->PlainTuple();
    words->NeedBody();
    for (;;) {
      statement->branches.push_back({std::move(condition), ReadBlock({"elif", "else", "endif"})});
      const Part& next = parts_[at_];
      if (!IsTag(next, {"elif"})) break;
      ++at_;
      ExpressionParser more(next.tokens, &names_);
      more.Next();
      condition = more.PlainTuple();
      more.NeedBody();
    }
    if (IsTag(parts_[at_], {"else"})) {
      EndTag();
      statement->otherwise = ReadBlock({"endif"});
    }
    EndTag();
  }

  void ReadFor(ExpressionParser* words, Statement* statement) {
    statement->kind = StatementKind::kFor;
    statement->target = words->ReadTarget(false);
    words->NeedName("in");
    statement->expression = words->PlainTuple();
    if (words->TakeName("if")) {
      statement->has_condition = true;
      statement->condition = words->Full();
    }
    statement->is_recursive = words->TakeName("recursive");
    words->NeedBody();
    ++loops_;
    statement->body = ReadBlock({"else", "endfor"});
    --loops_;
    if (IsTag(parts_[at_], {"else"})) {
      EndTag();
      statement->otherwise = ReadBlock({"endfor"});
    }
    EndTag();
  }

  void ReadSet(ExpressionParser* words, Statement* statement) {
    statement->target = words->ReadTarget(true);
    if (words->TakeSign("=")) {
      statement->kind = StatementKind::kSet;
      statement->expression = words->Tuple();
      words->NeedEnd();
      return;
    }
    statement->kind = StatementKind::kSetBlock;
    statement->expression = words->FilterChain(Node(Expression::Kind::kBlockText, statement->line));
    words->NeedBody();
    if (statement->target.is_tuple) words->FailHere();
    statement->body = ReadBody("endset");
  }

  void ReadCall(ExpressionParser* words, Statement* statement) {
    statement->kind = StatementKind::kCall;
    statement->text = "caller";
    if (words->IsSign("(")) words->ReadParameters(statement);
    statement->expression = words->Full();
    if (statement->expression.kind != Expression::Kind::kCall) {
      throw TemplateError(statement->line, "call without a call");
    }
    ReadMacroBody(words, statement, "endcall");
  }

  void ReadMacroBody(ExpressionParser* words, Statement* statement, std::string_view end) {
    words->NeedBody();
    const int loops = std::exchange(loops_, 0);
    std::set<std::string, std::less<>> outer = std::exchange(names_, {});
    statement->body = ReadBody(end);
    statement->uses_varargs = names_.contains("varargs");
    statement->uses_kwargs = names_.contains("kwargs");
    statement->uses_caller = names_.contains("caller");
    names_.merge(outer);
    loops_ = loops;
  }

  void ReadWith(ExpressionParser* words, Statement* statement) {
    statement->kind = StatementKind::kWith;
    while (words->Peek().kind != Token::Kind::kEnd && !words->IsSign(":")) {
      if (!statement->parameters.empty()) words->NeedSign(",");
      std::string name = words->Identifier();
      words->NeedSign("=");
      statement->parameters.push_back({std::move(name), words->Full()});
    }
    words->NeedBody();
    statement->body = ReadBody("endwith");
  }

  std::vector<Part> parts_;
  std::set<std::string, std::less<>> names_;  // that expressions ask for
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
};

}  // namespace

Block Parse(std::string_view source) { return Parser(source).Run(); }

}  // namespace zeroplan::jinja
