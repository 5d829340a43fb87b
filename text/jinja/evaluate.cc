#include "text/jinja/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>

namespace zeroplan::jinja {

namespace {

// The depth of blocks and expressions in one another, macros included. A stack of 8 MB suffices for
// it with sanitizers too, whose frames are several times as large.
constexpr int kMostNested = 300;

}  // namespace

// Names of a part of the template, while it runs.
struct Scope {
  const Scope* parent = nullptr;
  uint64_t serial = 0;
  Dict names;
};

// `scope`, where it was defined: what it sees.
struct Macro {
  const Statement* statement = nullptr;
  uint64_t scope = 0;
};

namespace {

using EKind = Expression::Kind;
using SKind = Statement::Kind;

// How a block ended.
enum class Flow { kOn, kBreak, kContinue };

class Renderer {
 public:
  Renderer(const Dict& variables, const std::tm& now, const Limits& limits)
      : meter_(limits), variables_(variables), now_(now) {}

  Rendering Run(const Block& block) {
    const Inside root(this, nullptr);
    Output out;
    RunBlock(block, &out);
    return {out.Take(), std::move(generations_)};
  }

 private:
  // A new scope, within `parent`.
  class Inside {
   public:
    Inside(Renderer* renderer, const Scope* parent)
        : renderer_(renderer), outer_(renderer->scope_) {
      renderer->scopes_.push_back({parent, ++renderer->serial_, {}});
      renderer->scope_ = &renderer->scopes_.back();
    }
    ~Inside() {
      renderer_->scopes_.pop_back();
      renderer_->scope_ = outer_;
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Renderer* renderer_;
    Scope* outer_;
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

  // Where what was defined in the scope `serial` sees its names.
  const Scope* ScopeOf(uint64_t serial) const {
    const auto found =
        std::lower_bound(scopes_.begin(), scopes_.end(), serial,
                         [](const Scope& scope, uint64_t wanted) { return scope.serial < wanted; });
    if (found == scopes_.end() || found->serial != serial) {
      Fail("a macro or a loop is called outside of the block that it is of: not supported");
    }
    return &*found;
  }

  const Value* Lookup(std::string_view name) const {
    for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
      if (const Value* value = scope->names.Find(name)) return value;
    }
    return variables_.Find(name);
  }

  // --- Statements

  Flow RunBlock(const Block& block, Output* out) {
    const Deeper deeper(this, block.empty() ? 0 : block[0].line);
    for (const Statement& statement : block) {
      meter_.line = statement.line;
      meter_.Step(1);
      const Flow flow = RunStatement(statement, out);
      if (flow != Flow::kOn) return flow;
    }
    return Flow::kOn;
  }

  // What `block` prints, in a scope of its own.
  Text TextOf(const Block& block, const Scope* parent) {
    const Inside inside(this, parent);
    return TextHere(block);
  }

  Text TextHere(const Block& block) {
    const bool records = std::exchange(records_, false);
    Output out;
    RunBlock(block, &out);
    records_ = records;
    return out.Take();
  }

  Flow RunStatement(const Statement& statement, Output* out) {
    switch (statement.kind) {
      case SKind::kText:
        out->Append(statement.text);
        return Flow::kOn;
      case SKind::kOutput:
        Print(statement.expression, out);
        return Flow::kOn;
      case SKind::kIf:
        for (const Branch& branch : statement.branches) {
          if (Evaluate(branch.condition).IsTrue()) return RunBlock(branch.body, out);
        }
        return RunBlock(statement.otherwise, out);
      case SKind::kFor:
        RunFor(statement, out);
        return Flow::kOn;
      case SKind::kSet:
        Assign(statement.target, Evaluate(statement.expression));
        return Flow::kOn;
      case SKind::kSetBlock:
        Assign(statement.target, OfBlock(statement));
        return Flow::kOn;
      case SKind::kMacro:
        SetName(statement.text, std::make_shared<const Macro>(Macro{&statement, scope_->serial}));
        return Flow::kOn;
      case SKind::kCall:
        RunCall(statement, out);
        return Flow::kOn;
      case SKind::kFilter: {
        const Value made = OfBlock(statement);
        if (made.text() == nullptr) Fail("a filter of a block gives what is no text");
        out->Append(*made.text());
        return Flow::kOn;
      }
      case SKind::kWith:
        return RunWith(statement, out);
      case SKind::kGeneration:
        RunGeneration(statement, out);
        return Flow::kOn;
      case SKind::kBreak:
        return Flow::kBreak;
      case SKind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kOn;
  }

  void Print(const Expression& expression, Output* out) {
    const Value value = Evaluate(expression);
    if (value.text() != nullptr) {
      out->Append(*value.text());
    } else {
      out->Append(Printed(value));
    }
  }

  // The filters of {% filter %} or {% set name | filter %}, of what the block prints.
  Value OfBlock(const Statement& statement) {
    std::optional<Value> outer = std::move(block_text_);
    block_text_ = TextOf(statement.body, scope_);
    Value value = Evaluate(statement.expression);
    block_text_ = std::move(outer);
    return value;
  }

  Flow RunWith(const Statement& statement, Output* out) {
    List values;
    for (const NamedExpression& parameter : statement.parameters) {
      values.push_back(Evaluate(parameter.value));
    }
    const Inside inside(this, scope_);
    for (size_t i = 0; i < values.size(); ++i) {
      SetName(statement.parameters[i].name, std::move(values[i]));
    }
    return RunBlock(statement.body, out);
  }

  void RunCall(const Statement& statement, Output* out) {
    const Expression& call = statement.expression;
    Value caller = std::make_shared<const Macro>(Macro{&statement, scope_->serial});
    const Deeper deeper(this, statement.line);
    out->Append(Printed(Call(call, &caller)));
  }

  void RunGeneration(const Statement& statement, Output* out) {
    const size_t begin = out->size();
    const Inside inside(this, scope_);
    RunBlock(statement.body, out);
    if (!records_) Fail("generation within a macro or a set");
    generations_.emplace_back(begin, out->size());
  }

  void SetName(const std::string& name, Value value) { scope_->names.Set(name, std::move(value)); }

  void Assign(const Target& target, Value value) {
    if (target.is_tuple) {
      List parts = Elements(value);
      if (parts.size() != target.parts.size()) {
        Fail(fmt::format("{} values for {} names", parts.size(), target.parts.size()));
      }
      for (size_t i = 0; i < parts.size(); ++i) Assign(target.parts[i], std::move(parts[i]));
      return;
    }
    if (target.attribute.empty()) {
      SetName(target.name, std::move(value));
      return;
    }
    const Value* space = Lookup(target.name);
    if (space == nullptr || space->space() == nullptr) Fail(target.name + " is no namespace");
    SetMember(*space->space(), target.attribute, std::move(value));
  }

  void RunFor(const Statement& statement, Output* out) {
    RunLoop(statement, Evaluate(statement.expression), 1, out);
  }

  void RunLoop(const Statement& statement, const Value& over, int64_t depth, Output* out) {
    const auto loop = std::make_shared<Loop>();
    loop->statement = &statement;
    loop->scope = scope_->serial;
    loop->depth = depth;
    loop->elements = Pull(over, &loop->error);
    const Charge charge(loop->elements.size() * sizeof(Value));
    // Jinja takes one after the other: what else takes of an iterator meanwhile is not known.
    const Sequence* iterator = over.sequence();
    if (iterator != nullptr) iterator->taken = Sequence::kInUse;
    if (statement.has_condition) TakeIf(statement, loop.get());
    const Scope* outer = scope_;
    for (; loop->at < loop->elements.size(); ++loop->at) {
      const Inside inside(this, outer);
      SetName("loop", loop);
      Assign(statement.target, loop->elements[loop->at]);
      if (RunBlock(statement.body, out) == Flow::kBreak) return;
    }
    if (iterator != nullptr) iterator->taken = iterator->elements.size();
    if (loop->error) std::rethrow_exception(loop->error);
    if (loop->elements.empty()) {
      const Inside inside(this, outer);
      RunBlock(statement.otherwise, out);
    }
  }

  // The elements that the loop's condition takes.
  void TakeIf(const Statement& statement, Loop* loop) {
    List taken;
    const Scope* outer = scope_;
    try {
      for (Value& element : loop->elements) {
        const Inside inside(this, outer);
        meter_.Step(1);
        Assign(statement.target, element);
        if (Evaluate(statement.condition).IsTrue()) taken.push_back(std::move(element));
      }
    } catch (const TemplateError&) {
      loop->error = std::current_exception();
    }
    loop->elements = std::move(taken);
  }

  // --- Expressions

  Value Evaluate(const Expression& e) {
    const Deeper deeper(this, e.line);
    meter_.Step(1);
    Value value = Compute(e);
    CheckDepth(value);
    return value;
  }

  // A child of `e`; then `e` goes on.
  Value Child(const Expression& e, size_t i) {
    Value value = Evaluate(e.children[i]);
    meter_.line = e.line;
    return value;
  }

  Value Compute(const Expression& e) {
    switch (e.kind) {
      case EKind::kName:
        return Named(e.text);
      case EKind::kConstant:
        return e.constant;
      case EKind::kBlockText:
        return *block_text_;
      case EKind::kList:
      case EKind::kTuple: {
        List list;
        for (const Expression& element : e.children) list.push_back(Evaluate(element));
        return e.kind == EKind::kList ? Value(std::move(list)) : Value::Tuple(std::move(list));
      }
      case EKind::kDict: {
        Dict dict;
        for (size_t i = 0; i < e.children.size(); i += 2) {
          Value key = Child(e, i);
          dict.SetKey(std::move(key), Child(e, i + 1));
        }
        return dict;
      }
      case EKind::kAttribute:
        return AttributeOf(Child(e, 0), e.text);
      case EKind::kItem: {
        const Value value = Child(e, 0), key = Child(e, 1);
        return key.text() != nullptr && value.loop() != nullptr
                   ? AttributeOf(value, key.text()->bytes)
                   : GetItem(value, key);
      }
      case EKind::kSlice: {
        const Value value = Child(e, 0), begin = Child(e, 1), end = Child(e, 2);
        return GetSlice(value, begin, end, Child(e, 3));
      }
      case EKind::kCall:
        return Call(e, nullptr);
      case EKind::kFilter: {
        const Value value = Child(e, 0);
        const Arguments arguments = ReadArguments(e);
        meter_.line = e.line;
        return CallFilter(e.text, value, arguments);
      }
      case EKind::kTest: {
        const Value value = Child(e, 0);
        const Arguments arguments = ReadArguments(e);
        meter_.line = e.line;
        return CallTest(e.text, value, arguments);
      }
      case EKind::kNot:
        return !Child(e, 0).IsTrue();
      case EKind::kMinus:
        return Minus(Child(e, 0));
      case EKind::kPlus:
        return Plus(Child(e, 0));
      case EKind::kAnd: {
        Value first = Child(e, 0);
        return first.IsTrue() ? Child(e, 1) : first;
      }
      case EKind::kOr: {
        Value first = Child(e, 0);
        return first.IsTrue() ? first : Child(e, 1);
      }
      case EKind::kChoice:
        if (Child(e, 0).IsTrue()) return Child(e, 1);
        return e.children.size() > 2 ? Child(e, 2) : Value(Undefined{"what follows no else"});
      case EKind::kOperator: {
        const Value a = Child(e, 0);
        return Operate(e.operators[0], a, Child(e, 1));
      }
      case EKind::kCompare:
        return CompareChain(e);
    }
    return None();
  }

  Value CompareChain(const Expression& e) {
    Value left = Child(e, 0);
    for (size_t i = 0; i < e.operators.size(); ++i) {
      Value right = Child(e, i + 1);
      if (!Operate(e.operators[i], left, right).IsTrue()) return false;
      left = std::move(right);
    }
    return true;
  }

  Value Named(const std::string& name) const {
    if (const Value* value = Lookup(name)) return *value;
    static constexpr std::array<std::string_view, 6> kGlobals = {"range",  "dict",   "namespace",
                                                                 "lipsum", "cycler", "joiner"};
    if (std::find(kGlobals.begin(), kGlobals.end(), name) != kGlobals.end()) {
      return Function{name};
    }
    if (name == "self") Fail("the variable self is not supported");
    return Undefined{name};
  }

  // All but the first of the children.
  Arguments ReadArguments(const Expression& e) {
    Arguments arguments;
    for (size_t i = 1; i < e.children.size(); ++i) {
      arguments.values.push_back(Evaluate(e.children[i]));
    }
    const auto add = [&](std::string name, Value value) {
      for (const auto& [other, ignored] : arguments.named) {
        if (other == name) Fail("the argument " + name + " is given twice");
      }
      arguments.named.emplace_back(std::move(name), std::move(value));
    };
    for (const NamedExpression& named : e.named) {
      Value value = Evaluate(named.value);
      meter_.line = e.line;
      if (named.name == "*") {
        for (Value& element : Elements(value)) arguments.values.push_back(std::move(element));
      } else if (named.name == "**") {
        if (value.dict() == nullptr) Fail("** of " + std::string(value.KindName()));
        for (const Member& member : *value.dict()) {
          if (member.key.text() == nullptr) Fail("** of a mapping with keys that are no texts");
          if (arguments.named.size() > 100) Fail("too many arguments");
          add(member.key.text()->bytes, member.value);
        }
      } else {
        add(named.name, std::move(value));
      }
    }
    return arguments;
  }

  // `caller`: of {% call %}, else nullptr.
  Value Call(const Expression& e, const Value* caller) {
    const Expression& callee = e.children[0];
    Value function;
    std::string_view method;
    if (callee.kind == EKind::kAttribute) {
      Value object = Child(callee, 0);
      meter_.line = e.line;
      const bool is_method = object.loop() != nullptr
                                 ? callee.text == "cycle" || callee.text == "changed"
                                 : HasMethod(object, callee.text);
      if (is_method) method = callee.text;
      function = is_method ? std::move(object) : AttributeOf(object, callee.text);
    } else {
      function = Child(e, 0);
    }
    Arguments arguments = ReadArguments(e);
    meter_.line = e.line;
    if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
    if (!method.empty()) {
      return function.loop() != nullptr ? CallLoopMethod(method, function.loop(), arguments)
                                        : CallMethod(method, function, arguments);
    }
    return CallValue(function, arguments, callee);
  }

  Value CallValue(const Value& function, const Arguments& arguments, const Expression& callee) {
    if (function.macro() != nullptr) return CallMacro(*function.macro(), arguments);
    if (function.loop() != nullptr) return CallLoop(*function.loop(), arguments);
    if (function.function() != nullptr) {
      return CallFunction(function.function()->name, arguments, now_);
    }
    if (function.method() != nullptr) {
      return CallMethod(function.method()->name, function.method()->object, arguments);
    }
    NeedDefined(function);
    Fail(callee.kind == EKind::kName ? callee.text + " is no function"
                                     : "a call of " + std::string(function.KindName()));
  }

  Value CallMacro(const Macro& called, const Arguments& arguments) {
    const Statement& macro = *called.statement;
    const Scope* outer = ScopeOf(called.scope);
    const auto& parameters = macro.parameters;
    Dict others;
    for (const auto& argument : arguments.named) {
      const std::string& name = argument.first;
      const auto known = std::find_if(parameters.begin(), parameters.end(),
                                      [&](const auto& p) { return p.name == name; });
      if (known != parameters.end() &&
          static_cast<size_t>(known - parameters.begin()) >= arguments.values.size()) {
        continue;
      }
      if (name == "caller" && known == parameters.end() && macro.uses_caller) continue;
      if (!macro.uses_kwargs) Fail(macro.text + " takes no such argument: " + name);
      others.Set(name, argument.second);
    }
    if (arguments.values.size() > parameters.size() && !macro.uses_varargs) {
      Fail("too many arguments for " + macro.text);
    }
    const auto given = [&](std::string_view name) -> const Value* {
      for (const auto& [known, value] : arguments.named) {
        if (known == name) return &value;
      }
      return nullptr;
    };
    const Inside inside(this, outer);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const NamedExpression& parameter = parameters[i];
      const Value* named = given(parameter.name);
      SetName(parameter.name, i < arguments.values.size()     ? arguments.values[i]
                              : named != nullptr              ? *named
                              : i < macro.required_parameters ? Value(Undefined{parameter.name})
                                                              : Evaluate(parameter.value));
    }
    if (macro.uses_caller && scope_->names.Find("caller") == nullptr) {
      const Value* caller = given("caller");
      SetName("caller", caller != nullptr ? *caller : Value(Undefined{"caller"}));
    }
    if (macro.uses_kwargs) SetName("kwargs", std::move(others));
    if (macro.uses_varargs) {
      List rest;
      for (size_t i = parameters.size(); i < arguments.values.size(); ++i) {
        rest.push_back(arguments.values[i]);
      }
      SetName("varargs", Value::Tuple(std::move(rest)));
    }
    return TextHere(macro.body);
  }

  // loop(children), within a recursive one.
  Value CallLoop(const Loop& loop, const Arguments& arguments) {
    if (!loop.statement->is_recursive || arguments.values.size() != 1 || !arguments.named.empty()) {
      Fail("only a recursive loop can be called, with what to loop over");
    }
    const Inside inside(this, ScopeOf(loop.scope));
    const bool records = std::exchange(records_, false);
    Output out;
    RunLoop(*loop.statement, arguments.values[0], loop.depth + 1, &out);
    records_ = records;
    return out.Take();
  }

  static Value AttributeOf(const Value& value, std::string_view name) {
    return value.loop() != nullptr ? LoopAttribute(*value.loop(), name) : GetAttribute(value, name);
  }

  Meter meter_;  // first: values are taken from it when they go
  const Dict& variables_;
  const std::tm& now_;
  std::deque<Scope> scopes_;  // serial numbers rise
  Scope* scope_ = nullptr;
  uint64_t serial_ = 0;
  std::vector<std::pair<size_t, size_t>> generations_;
  std::optional<Value> block_text_;
  bool records_ = true;  // what is printed is the output itself
  int depth_ = 0;
};

}  // namespace

Rendering Render(const Block& block, const Dict& variables, const std::tm& now,
                 const Limits& limits) {
  return Renderer(variables, now, limits).Run(block);
}

}  // namespace zeroplan::jinja
