#include "text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>

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
