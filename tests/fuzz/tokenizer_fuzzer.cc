// A tokenizer.json from anywhere, and any text. Reading throws Error or gives a tokenizer. What
// that encodes are ids of its vocabulary; decoded, whole and as a stream, they give the same
// well-formed text. The input is the file; from the first 0 byte on, if it has one, the text.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {
namespace {

void Use(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.Encode(text, true);
  for (const bool skip : {false, true}) {
    const std::string decoded = tokenizer.Decode(ids, skip);
    if (!IsValidUtf8(decoded)) std::abort();
    TextStream stream(tokenizer, skip);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.Push(id);
    if (streamed + stream.Finish() != decoded) std::abort();
  }
}

void Read(std::string_view file, std::string_view text) {
  try {
    const Tokenizer tokenizer = Tokenizer::FromText(file, "file");
    Use(tokenizer, text);
    Use(tokenizer, file.substr(0, 300));
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) std::abort();
  }
}

}  // namespace
}  // namespace zeroplan

// Tables over all code points are made at their first use. Under sanitizers beside other work that
// takes seconds, which are no input's.
extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  zeroplan::Tokenizer::FromText(R"({
      "added_tokens": [{"id": 1, "content": "<s>", "special": true, "single_word": true}],
      "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
      "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "(?i:'s)|[^\\s\\p{L}\\p{N}]"},
         "behavior": "Isolated", "invert": false},
        {"type": "Punctuation", "behavior": "Isolated"},
        {"type": "Digits", "individual_digits": true}]},
      "model": {"type": "BPE", "vocab": {"u": 0}, "merges": [], "unk_token": "u"}})",
                                "first")
      .Encode("\u00e9<s> 1.", false);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t border = std::min(input.find('\0'), input.size());
  zeroplan::Read(input.substr(0, border), input.substr(std::min(border + 1, size)));
  return 0;
}
