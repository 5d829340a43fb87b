// Functions that templates find around them.
#include <array>
#include <string>

#include "text/jinja/evaluate.h"

namespace zeroplan::jinja {

void CheckDepth(const Value& value) {
  if (value.depth() > Value::kMostDepth) {
    Fail("values are nested too deep, or have a namespace or a loop in them");
  }
}

Value CallLoopMethod(std::string_view name, Loop* loop, const Arguments& arguments) {
  if (!arguments.named.empty()) Fail("arguments of loop." + std::string(name));
  if (name == "cycle") {
    if (arguments.values.empty()) Fail("loop.cycle without values");
    return arguments.values[loop->at % arguments.values.size()];
  }
  Value now = Value::Tuple(arguments.values);
  CheckDepth(now);
  if (loop->changed && *loop->changed == now) return false;
  loop->changed = std::move(now);
  return true;
}

Value LoopAttribute(const Loop& loop, std::string_view name) {
  const auto at = static_cast<int64_t>(loop.at);
  const auto count = static_cast<int64_t>(loop.elements.size());
  if (name == "index") return at + 1;
  if (name == "index0") return at;
  if (name == "first") return at == 0;
  if (name == "depth") return loop.depth;
  if (name == "depth0") return loop.depth - 1;
  if (name == "previtem") {
    return at > 0 ? loop.elements[loop.at - 1] : Value(Undefined{"loop.previtem"});
  }
  const bool is_last = at + 1 >= count;
  if (loop.error && (is_last || name == "length" || name.starts_with("rev"))) {
    std::rethrow_exception(loop.error);
  }
  if (name == "last") return is_last;
  if (name == "length") return count;
  if (name == "revindex") return count - at;
  if (name == "revindex0") return count - at - 1;
  if (name == "nextitem") {
    return is_last ? Value(Undefined{"loop.nextitem"}) : loop.elements[loop.at + 1];
  }
  if (name == "cycle" || name == "changed") Fail("loop." + std::string(name) + " without a call");
  return Undefined{std::string(name)};
}

void SetMember(const Namespace& space, const std::string& name, Value value) {
  if (value.depth() >= Value::kMostDepth) Fail("a namespace keeps what is nested too deep");
  if (name.starts_with('_')) Fail("a namespace keeps no " + name + ": transformers refuses it");
  space.members->Set(name, std::move(value));
}

namespace {

// What dict(value) has: the members of a mapping, or pairs.
Dict MembersOf(const Value& value) {
  if (value.dict() != nullptr) return *value.dict();
  Dict members;
  for (const Value& pair : Elements(value)) {
    List parts = Elements(pair);
    if (parts.size() != 2) Fail("dict of what are no pairs");
    members.SetKey(parts[0], parts[1]);
  }
  return members;
}

Value MakeDict(const std::string& name, const Arguments& arguments) {
  if (arguments.values.size() > 1) Fail(name + " of several values");
  Dict members = arguments.values.empty() ? Dict() : MembersOf(arguments.values[0]);
  for (const auto& [key, value] : arguments.named) members.Set(key, value);
  if (name == "dict") return members;
  const Namespace space = {std::make_shared<Dict>()};
  for (const Member& member : members) {
    if (member.key.text() == nullptr) Fail("a namespace with a key that is no text");
    SetMember(space, member.key.text()->bytes, member.value);
  }
  return space;
}

// strftime_now(format): C's strftime, with what Python takes upon itself.
Value TimeAs(const Value& format, const std::tm& now) {
  if (format.text() == nullptr) Fail("strftime_now of " + std::string(format.KindName()));
  std::string given;
  const std::string& bytes = format.text()->bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char next = bytes[i] == '%' && i + 1 < bytes.size() ? bytes[i + 1] : '\0';
    if (next != '\0') ++i;
    if (bytes[i] == '\0' || (next >= '0' && next <= '9')) Fail("a format of a date");
    if (next == 'f') given += "000000";
    if (next == 'f' || next == 'z' || next == 'Z') continue;  // without a time zone: nothing
    if (next != '\0' || bytes[i] == '%') given += '%';
    given += bytes[i];
  }
  std::array<char, 1024> text{};
  const size_t size = strftime(text.data(), text.size(), (given + ".").c_str(), &now);
  if (size == 0) Fail("a format of a date that is too long");
  return Value::Of(std::string_view(text.data(), size - 1));
}

}  // namespace

Value CallFunction(const std::string& name, const Arguments& arguments, const std::tm& now) {
  if (name == "raise_exception") {
    const Text message = Printed(Bound(name, {"message"}, arguments).Need(0));
    throw Refusal(Meter::Current() == nullptr ? 0 : Meter::Current()->line, message.bytes);
  }
  if (name == "range") return CallRange(arguments);
  if (name == "strftime_now") return TimeAs(Bound(name, {"format"}, arguments).Need(0), now);
  if (name == "dict" || name == "namespace") return MakeDict(name, arguments);
  Fail("the function " + name + " is not supported");
}

}  // namespace zeroplan::jinja
