#include "text/jinja/evaluate.h"

#include <algorithm>

namespace zeroplan::jinja {
namespace {

constexpr uint64_t kMostSteps = 10'000'000;
constexpr size_t kMostBytes = size_t{256} << 20;
// The depth of blocks and expressions in one another, macros included. A stack of 8 MB suffices for
// it with sanitizers too, whose frames are several times as large.
constexpr int kMostNested = 300;

using EKind = Expression::Kind;
using SKind = Statement::Kind;

// How a block ended.
enum class Flow { kOn, kBreak, kContinue };

class Renderer {
 public:
  explicit Renderer(const Dict& variables) : scopes_(1, variables) {}

  Rendering Run(const Block& block) {
    scopes_.emplace_back();  // what the template sets
    Text text;
    RunBlock(block, &text);
    return {std::move(text), std::move(generations_)};
  }

 private:
  // Names of an inner part of the template, while it runs.
  class Scope {
   public:
    explicit Scope(Renderer* renderer) : scopes_(&renderer->scopes_) { scopes_->emplace_back(); }
    ~Scope() { scopes_->pop_back(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::vector<Dict>* scopes_;
  };

  // Within the blocks or expressions of another.
  class Deeper {
   public:
    Deeper(Renderer* renderer, int line) : depth_(&renderer->depth_) {
      if (++*depth_ > kMostNested) {
        --*depth_;
        throw TemplateError(line, "the template is nested too deep, or calls itself without end");
      }
    }
    ~Deeper() { --*depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    int* depth_;
  };

  void Step(int line, uint64_t steps = 1) {
    steps_ += steps;
    if (steps_ > kMostSteps) throw TemplateError(line, "the template does not come to an end");
  }

  // What a value costs that was made.
  void Charge(const Value& value, int line) {
    if (value.text() != nullptr) Step(line, value.text()->bytes.size() / 256);
    if (value.list() != nullptr) Step(line, value.list()->size() / 16);
    if (value.depth() > Value::kMostDepth) {
      throw TemplateError(line, "values are nested too deep, or have a namespace in them");
    }
  }

  const Value* Lookup(std::string_view name) const {
    for (size_t i = scopes_.size(); i-- > 0;) {
      if (i >= 2 && i < hidden_below_) continue;  // not of a macro
      if (const Value* value = Find(scopes_[i], name)) return value;
    }
    return nullptr;
  }

  // --- Statements

  Flow RunBlock(const Block& block, Text* out) {
    const Deeper deeper(this, block.empty() ? 0 : block[0].line);
    for (const Statement& statement : block) {
      const Flow flow = RunStatement(statement, out);
      if (out->bytes.size() > kMostBytes) {
        throw TemplateError(statement.line, "more than 256 MiB are printed");
      }
      if (flow != Flow::kOn) return flow;
    }
    return Flow::kOn;
  }

  Flow RunStatement(const Statement& statement, Text* out) {
    Step(statement.line);
    switch (statement.kind) {
      case SKind::kText:
        out->Append(statement.text);
        return Flow::kOn;
      case SKind::kOutput:
        out->Append(Printed(Evaluate(statement.expression), statement.line));
        return Flow::kOn;
      case SKind::kIf:
        for (const Branch& branch : statement.branches) {
          if (Evaluate(branch.condition).IsTrue()) return RunBlock(branch.body, out);
        }
        return RunBlock(statement.otherwise, out);
      case SKind::kFor:
        return RunFor(statement, out);
      case SKind::kSet:
        RunSet(statement);
        return Flow::kOn;
      case SKind::kSetBlock: {
        Text text;
        {
          const Scope scope(this);
          const bool keeps = std::exchange(records_, false);
          RunBlock(statement.body, &text);
          records_ = keeps;
        }
        Set(&scopes_.back(), statement.names[0], std::move(text));
        return Flow::kOn;
      }
      case SKind::kMacro:
        Set(&scopes_.back(), statement.names[0], Function{statement.names[0]});
        macros_.emplace_back(statement.names[0], &statement);
        return Flow::kOn;
      case SKind::kGeneration: {
        const size_t begin = out->bytes.size();
        const Scope scope(this);
        const Flow flow = RunBlock(statement.body, out);
        if (!records_) throw TemplateError(statement.line, "generation within a macro or a set");
        generations_.emplace_back(begin, out->bytes.size());
        return flow;
      }
      case SKind::kBreak:
        return Flow::kBreak;
      case SKind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kOn;
  }

  void RunSet(const Statement& statement) {
    Value value = Evaluate(statement.expression);
    if (statement.names.size() == 1) {
      Set(&scopes_.back(), statement.names[0], std::move(value));
      return;
    }
    const Value* target = Lookup(statement.names[0]);
    if (target == nullptr || target->space() == nullptr) {
      throw TemplateError(statement.line, statement.names[0] + " is no namespace");
    }
    if (value.depth() >= Value::kMostDepth) {
      throw TemplateError(statement.line, "a namespace keeps what is nested too deep");
    }
    Set(target->space()->members.get(), statement.names[1], std::move(value));
  }

  void Assign(const Statement& loop, const Value& element) {
    if (loop.names.size() == 1) {
      Set(&scopes_.back(), loop.names[0], element);
      return;
    }
    const List* parts = element.list();
    if (parts == nullptr || parts->size() != loop.names.size()) {
      throw TemplateError(loop.line, "the loop has other names than its elements have parts");
    }
    for (size_t i = 0; i < parts->size(); ++i) {
      Set(&scopes_.back(), loop.names[i], (*parts)[i]);
    }
  }

  Flow RunFor(const Statement& loop, Text* out) {
    List elements = Elements(Evaluate(loop.expression), loop.line);
    if (loop.has_condition) {
      List taken;
      for (Value& element : elements) {
        const Scope scope(this);
        Step(loop.line);
        Assign(loop, element);
        if (Evaluate(loop.condition).IsTrue()) taken.push_back(std::move(element));
      }
      elements = std::move(taken);
    }
    if (elements.empty()) {
      const Scope scope(this);
      return RunBlock(loop.otherwise, out);
    }
    const auto count = static_cast<int64_t>(elements.size());
    for (int64_t i = 0; i < count; ++i) {
      const Scope scope(this);
      const auto at = static_cast<size_t>(i);
      Dict about = {{"index", i + 1},
                    {"index0", i},
                    {"first", i == 0},
                    {"last", i + 1 == count},
                    {"length", count},
                    {"revindex", count - i},
                    {"revindex0", count - i - 1}};
      about.push_back({"previtem", i > 0 ? elements[at - 1] : Value(Undefined{"loop.previtem"})});
      about.push_back(
          {"nextitem", i + 1 < count ? elements[at + 1] : Value(Undefined{"loop.nextitem"})});
      Set(&scopes_.back(), "loop", std::move(about));
      Assign(loop, elements[at]);
      if (RunBlock(loop.body, out) == Flow::kBreak) break;
    }
    return Flow::kOn;
  }

  // --- Expressions

  Value Evaluate(const Expression& e) {
    const Deeper deeper(this, e.line);
    Step(e.line);
    Value value = Compute(e);
    Charge(value, e.line);
    return value;
  }

  Value Compute(const Expression& e) {
    const auto child = [&](size_t i) { return Evaluate(e.children[i]); };
    switch (e.kind) {
      case EKind::kName: {
        const Value* value = Lookup(e.text);
        if (value != nullptr) return *value;
        if (e.text == "namespace" || e.text == "range" || e.text == "dict") return Function{e.text};
        return Undefined{e.text};
      }
      case EKind::kText:
        return Value::Of(e.text);
      case EKind::kNumber:
        return e.number;
      case EKind::kTrue:
      case EKind::kFalse:
        return e.kind == EKind::kTrue;
      case EKind::kNone:
        return None();
      case EKind::kList: {
        List list;
        for (const Expression& element : e.children) list.push_back(Evaluate(element));
        return list;
      }
      case EKind::kDict: {
        Dict dict;
        for (size_t i = 0; i < e.children.size(); i += 2) {
          const Value key = child(i);
          if (key.text() == nullptr) throw TemplateError(e.line, "a key that is no text");
          Set(&dict, key.text()->bytes, child(i + 1));
        }
        return dict;
      }
      case EKind::kAttribute:
        return GetAttribute(child(0), e.text, e.line);
      case EKind::kItem:
        return GetItem(child(0), child(1), e.line);
      case EKind::kSlice:
        return GetSlice(child(0), child(1), child(2), child(3), e.line);
      case EKind::kCall:
        return Call(e);
      case EKind::kFilter:
        return CallFilter(e.text, child(0), ReadArguments(e), e.line);
      case EKind::kTest:
        return CallTest(e.text, child(0), ReadArguments(e), e.line);
      case EKind::kNot:
        return !child(0).IsTrue();
      case EKind::kMinus: {
        const Value value = child(0);
        if (!value.is_plain_number()) throw TemplateError(e.line, "- before what is no number");
        return -*value.number();
      }
      case EKind::kAnd: {
        Value first = child(0);
        return first.IsTrue() ? child(1) : first;
      }
      case EKind::kOr: {
        Value first = child(0);
        return first.IsTrue() ? first : child(1);
      }
      case EKind::kChoice:
        if (child(0).IsTrue()) return child(1);
        return e.children.size() > 2 ? child(2) : Value(Undefined{"what follows no else"});
      case EKind::kOperator: {
        const Value a = child(0);
        return Operate(e.text, a, child(1), e.line);
      }
    }
    return None();
  }

  // All but the first of the children.
  Arguments ReadArguments(const Expression& e) {
    Arguments arguments;
    for (size_t i = 1; i < e.children.size(); ++i) {
      arguments.values.push_back(Evaluate(e.children[i]));
    }
    for (const NamedExpression& named : e.named) {
      arguments.named.push_back({named.name, Evaluate(named.value)});
    }
    return arguments;
  }

  Value Call(const Expression& e) {
    const Expression& callee = e.children[0];
    if (callee.kind == EKind::kAttribute) {
      const Value value = Evaluate(callee.children[0]);
      return CallMethod(callee.text, value, ReadArguments(e), e.line);
    }
    const Value function = Evaluate(callee);
    if (function.function() == nullptr) {
      throw TemplateError(e.line, callee.kind == EKind::kName ? callee.text + " is no function"
                                                              : "a call of what is no function");
    }
    const std::string& name = function.function()->name;
    const Arguments arguments = ReadArguments(e);
    for (size_t i = macros_.size(); i-- > 0;) {
      if (macros_[i].first == name) return CallMacro(*macros_[i].second, arguments, e.line);
    }
    return CallGlobal(name, arguments, e.line);
  }

  Value CallMacro(const Statement& macro, const Arguments& arguments, int line) {
    if (arguments.values.size() > macro.parameters.size()) {
      throw TemplateError(line, "too many arguments for " + macro.names[0]);
    }
    for (const Member& named : arguments.named) {
      const auto known = std::find_if(macro.parameters.begin(), macro.parameters.end(),
                                      [&](const auto& p) { return p.name == named.key; });
      if (known == macro.parameters.end() ||
          static_cast<size_t>(known - macro.parameters.begin()) < arguments.values.size()) {
        throw TemplateError(line, macro.names[0] + " takes no such argument: " + named.key);
      }
    }
    const size_t hidden = std::exchange(hidden_below_, scopes_.size());
    const bool keeps = std::exchange(records_, false);
    Text text;
    {
      const Scope scope(this);
      for (size_t i = 0; i < macro.parameters.size(); ++i) {
        const NamedExpression& parameter = macro.parameters[i];
        const Value* named = Find(arguments.named, parameter.name);
        Value value = i < arguments.values.size()     ? arguments.values[i]
                      : named != nullptr              ? *named
                      : i < macro.required_parameters ? Value(Undefined{parameter.name})
                                                      : Evaluate(parameter.value);
        Set(&scopes_.back(), parameter.name, std::move(value));
      }
      RunBlock(macro.body, &text);
    }
    records_ = keeps;
    hidden_below_ = hidden;
    return text;
  }

  Value CallGlobal(const std::string& name, const Arguments& arguments, int line) {
    const auto& values = arguments.values;
    if (name == "raise_exception" && values.size() == 1 && values[0].text() != nullptr) {
      throw Refusal(line, values[0].text()->bytes);
    }
    if (name == "namespace" && values.empty()) {
      for (const Member& member : arguments.named) {
        if (member.value.depth() >= Value::kMostDepth) {
          throw TemplateError(line, "a namespace keeps what is nested too deep");
        }
      }
      return Namespace{std::make_shared<Dict>(arguments.named)};
    }
    if (name == "dict" && values.empty()) return Dict(arguments.named);
    if (name == "range" && !values.empty() && values.size() <= 2 && arguments.named.empty()) {
      if (!values[0].number() || !values.back().number()) {
        throw TemplateError(line, "range of what is no number");
      }
      List list;
      for (int64_t i = values.size() == 1 ? 0 : *values[0].number(); i < *values.back().number();
           ++i) {
        Step(line);
        list.push_back(i);
      }
      return list;
    }
    if (name == "strftime_now" && values.size() == 1 && values[0].text() != nullptr) {
      const Value* now = Lookup("strftime_now " + values[0].text()->bytes);
      if (now != nullptr) return *now;
    }
    throw TemplateError(line, "these arguments of " + name + " are not supported");
  }

  std::vector<Dict> scopes_;  // surroundings, what the template sets, then inner ones
  std::vector<std::pair<std::string, const Statement*>> macros_;
  std::vector<std::pair<size_t, size_t>> generations_;
  size_t hidden_below_ = 0;  // scopes from 2 on that the macro that runs does not see
  bool records_ = true;      // what is printed is the output itself
  uint64_t steps_ = 0;
  int depth_ = 0;
};

}  // namespace

Rendering Render(const Block& block, const Dict& variables) {
  return Renderer(variables).Run(block);
}

}  // namespace zeroplan::jinja
