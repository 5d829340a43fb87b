// What lies beside a model's tokenizer.json, one file behind the other with a 0 byte between them:
// tokenizer_config.json, generation_config.json and chat_template.jinja; one that is empty is not
// there. Reading throws Error or gives tokens of the vocabulary, and a template whose text is
// well-formed.
#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "tests/fuzz/need.h"
#include "tests/fuzz/scratch_files.h"
#include "text/documents/chat_template.h"
#include "text/documents/tokenize_files.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {
namespace {

constexpr std::array kNames = {"tokenizer_config.json", "generation_config.json",
                               "chat_template.jinja"};

const Tokenizer& FuzzedTokenizer() {
  static const Tokenizer tokenizer = Tokenizer::FromText(
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "\u00e9": 2}, "merges": []},
          "added_tokens": [{"id": 3, "content": "<s>", "special": true},
                           {"id": 4, "content": "</s>", "special": true}]})",
      "tokenizer");
  return tokenizer;
}

void Read(const std::filesystem::path& folder) {
  const Tokenizer& tokenizer = FuzzedTokenizer();
  const int64_t vocab = tokenizer.vocab_size();
  Accepts([&] {
    int64_t last = -1;
    for (const int32_t token : StopTokensOf(folder, vocab)) {
      Need(token > last && token < vocab);
      last = token;
    }
  });
  Accepts([&] {
    const std::optional<int32_t> end = EndOfText(folder, tokenizer);
    Need(!end || (*end >= 0 && *end < vocab));
  });
  Accepts([&] {
    const std::optional<ChatTemplate> chat = ChatTemplate::FromFolder(folder, tokenizer);
    if (!chat) return;
    Conversation conversation;
    conversation.messages = {{"user", "a", {}}, {"assistant", "b", {}}};
    Need(IsValidUtf8(chat->Render(conversation, false, "here").text));
  });
}

}  // namespace
}  // namespace zeroplan

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace zeroplan;
  static const ScratchFiles files;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  for (const char* name : kNames) {
    const std::string_view text = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(text.size() + 1, rest.size()));
    if (text.empty()) {
      std::filesystem::remove(files.folder() / name);
    } else {
      files.Write(name, text);
    }
  }
  Read(files.folder());
  return 0;
}
