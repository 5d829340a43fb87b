// A chat template from anywhere, and conversations with texts of any kind. Reading and rendering
// throw Error or give well-formed text; what of it the model is to say lies within it, in order,
// and the tokenizer's marks fit its ids. The input is the template; from the first 0 byte on, if it
// has one, what the messages say.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "tests/fuzz/need.h"
#include "text/documents/chat_template.h"
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
  const std::vector<std::vector<ChatMessage>> conversations = {
      {{"user", said, {}}, {"assistant", said + "x", {}}},
      {{"system", "s", {}},
       {"user", "", {}},
       {"assistant", said, {{"name", said}}},
       {"assistant", " ", {}}},
      {}};
  for (const std::vector<ChatMessage>& messages : conversations) {
    for (const bool prompt : {false, true}) {
      ChatTemplate::Rendered rendered;
      if (!Accepts([&] { rendered = chat.Render(messages, prompt, "here"); })) continue;
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
  return 0;
}
