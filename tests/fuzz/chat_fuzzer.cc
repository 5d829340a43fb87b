// A chat template from anywhere, and conversations with texts of any kind. Reading and rendering
// throw Error or give well-formed text; what of it the model is to say lies within it, in order,
// and the tokenizer's marks fit its ids. Then the template alone, with variables of every kind and
// little to spend. The input is the template; from the first 0 byte on, if it has one, what the
// messages say.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "tests/fuzz/need.h"
#include "text/documents/chat_template.h"
#include "text/jinja/evaluate.h"
#include "text/jinja/parser.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {
namespace {

// Bytes as tokens, and two special ones.
Tokenizer MakeTokenizer() {
  std::string vocab;
  for (int i = 0; i < 256; ++i)
    vocab += fmt::format("{}\"<0x{:02X}>\": {}", i > 0 ? "," : "", i, i);
  return Tokenizer::FromText(
      "{\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"vocab\": {" + vocab +
          "}, \"merges\": []}, \"normalizer\": {\"type\": \"NFC\"}, \"added_tokens\": ["
          "{\"id\": 256, \"content\": \"<s>\", \"special\": true},"
          "{\"id\": 257, \"content\": \"</s>\", \"special\": true}]}",
      "tokenizer");
}

void Use(const ChatTemplate& chat, const Tokenizer& tokenizer, const std::string& said) {
  const jinja::Value text = jinja::Value::Of(said);
  const jinja::Value tool = jinja::Dict{{"name", text}, {"arguments", jinja::Dict{{said, text}}}};
  const std::vector<Conversation> conversations = {
      {{{"user", said, {}}, {"assistant", said + "x", {{"reasoning", text}}}}},
      {{{"system", "s", {}},
        {"user", "", {}},
        {"assistant", said, {{"name", text}}},
        {"assistant", " ", {}}}},
      {{{"user", said, {}},
        {"assistant", std::nullopt, {{"tool_calls", jinja::List{tool}}}},
        {"tool", said, {}},
        {"assistant", said, {}}},
       0,
       jinja::List{tool},
       {},
       {{"enable_thinking", false}}},
      {}};
  for (const Conversation& conversation : conversations) {
    for (const bool prompt : {false, true}) {
      ChatTemplate::Rendered rendered;
      if (!Accepts([&] { rendered = chat.Render(conversation, prompt, "here"); })) continue;
      Need(IsValidUtf8(rendered.text));
      size_t at = 0;
      for (const TextSpan& span : rendered.generated) {
        Need(at <= span.begin && span.begin <= span.end && span.end <= rendered.text.size());
        at = span.end;
      }
      if (rendered.text.size() > 100'000) continue;
      std::vector<uint8_t> marked;
      const auto ids = tokenizer.EncodeMarked(rendered.text, rendered.generated, &marked);
      Need(ids.size() == marked.size() && ids == tokenizer.Encode(rendered.text, false));
    }
  }
}

// Marked texts, numbers of each kind, mappings with keys of each kind, a function.
jinja::Dict Variables(const std::string& said) {
  using jinja::Dict;
  using jinja::List;
  using jinja::Value;
  const auto text = [&](int message) {
    return Value(jinja::Text{said, {{0, said.size(), message}}});
  };
  Dict odd = {{"text", text(0)}, {"real", 1.5}, {"large", Value::Integer("98765432109876543210")}};
  odd.SetKey(int64_t{1}, jinja::None());
  odd.SetKey(Value::Tuple({int64_t{1}, true}), List{int64_t{-7}, false});
  Dict call = {{"name", Value::Of("f")}, {"arguments", odd}};
  Dict user = {{"role", Value::Of("user")}, {"content", text(0)}};
  Dict assistant = {{"role", Value::Of("assistant")}, {"content", text(1)}};
  assistant.Set("tool_calls", List{Dict{{"function", call}}});
  return {{"messages", List{user, assistant, Dict{{"role", Value::Of("tool")}}}},
          {"tools", List{Dict{{"function", Dict{{"parameters", odd}}}}}},
          {"text", text(2)},
          {"n", int64_t{3}},
          {"raise_exception", jinja::Function{"raise_exception"}},
          {"strftime_now", jinja::Function{"strftime_now"}}};
}

void UseAlone(std::string_view source, const std::string& said) {
  try {
    const jinja::Rendering rendering =
        jinja::Render(jinja::Parse(source), Variables(said), {}, {200'000, size_t{16} << 20});
    const std::string& bytes = rendering.text.bytes;
    Need(IsValidUtf8(bytes));
    size_t at = 0;
    for (const jinja::Mark& mark : rendering.text.marks) {
      Need(at <= mark.begin && mark.begin <= mark.end && mark.end <= bytes.size());
      at = mark.end;
    }
  } catch (const jinja::TemplateError&) {
  }
}

const Tokenizer& FuzzedTokenizer() {
  static const Tokenizer tokenizer = MakeTokenizer();
  return tokenizer;
}

}  // namespace
}  // namespace zeroplan

// Tables over all code points are made at their first use. Under sanitizers beside other work that
// takes seconds, which are no input's.
extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  zeroplan::FuzzedTokenizer().Encode("\u00e9", false);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace zeroplan;
  const Tokenizer& tokenizer = FuzzedTokenizer();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t border = std::min(input.find('\0'), input.size());
  const std::string said = ReplaceInvalidUtf8(input.substr(std::min(border + 1, size)));
  Accepts([&] {
    const ChatTemplate chat =
        ChatTemplate::FromText(input.substr(0, border), "template",
                               {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, tokenizer);
    Use(chat, tokenizer, said);
  });
  UseAlone(input.substr(0, border), said);
  return 0;
}
