// Encodes and decodes texts for compare_tokenizers.py.
// Usage: encode_texts TOKENIZER_JSON TEXTS IDS DECODED
// TEXTS and DECODED: for each text its bytes (uint64), then the text. IDS: for each text the number
// of ids (uint64), then the ids (int32). Decoded twice, whole and token by token, which must agree.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/tokenizer_parity/sized_texts.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {
namespace {

void Write(std::ofstream& out, uint64_t count, const void* data, size_t bytes) {
  out.write(reinterpret_cast<const char*>(&count), sizeof count);
  out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}

void Run(char** arguments) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  auto begin = Clock::now();
  const Tokenizer tokenizer = Tokenizer::FromFile(arguments[1]);
  std::printf("load %.3f s", seconds(begin));
  std::ifstream texts_file(arguments[2], std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(texts_file),
                        std::istreambuf_iterator<char>()};
  const std::vector<std::string_view> texts = SplitSizedTexts(all);
  std::ofstream ids_file(arguments[3], std::ios::binary);
  std::ofstream decoded_file(arguments[4], std::ios::binary);
  double encoding = 0;
  double bytes = 0;
  for (const std::string_view text : texts) {
    begin = Clock::now();
    const std::vector<int32_t> ids = tokenizer.Encode(text, true);
    encoding += seconds(begin);
    bytes += static_cast<double>(text.size());
    Write(ids_file, ids.size(), ids.data(), ids.size() * sizeof(int32_t));
    const std::string decoded = tokenizer.Decode(ids, true);
    TextStream stream(tokenizer, true);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.Push(id);
    streamed += stream.Finish();
    if (streamed != decoded) ThrowUsage("the stream of {} differs: {}", decoded, streamed);
    Write(decoded_file, decoded.size(), decoded.data(), decoded.size());
  }
  std::printf(", %.1f MB/s\n", bytes / encoding / 1e6);
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s TOKENIZER_JSON TEXTS IDS DECODED\n", argv[0]);
    return 2;
  }
  try {
    zeroplan::Run(argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
