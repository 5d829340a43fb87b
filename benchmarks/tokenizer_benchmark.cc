// How fast texts become tokens. benchmarks/peers/tokenizer_peers.py runs it beside the PyPI
// packages `tokenizers` and `tiktoken`. Usage: tokenizer_benchmark TOKENIZER TEXTS [THREADS...]
// TEXTS: for each text its bytes (uint64), then the text. For each number of threads (default 1) a
// line: the median of five passes over all texts, in MB/s, and a hash of the ids.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/hash.h"
#include "core/base/timing.h"
#include "tests/tokenizer_parity/sized_texts.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {
namespace {

constexpr int kPasses = 5;

void Run(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  auto begin = Clock::now();
  const Tokenizer tokenizer = Tokenizer::FromFile(argv[1]);
  std::printf("loaded in %.3f s\n", seconds(begin));
  std::ifstream file(argv[2], std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::vector<std::string_view> texts = SplitSizedTexts(all);
  size_t bytes = 0;
  for (const std::string_view text : texts) bytes += text.size();
  std::vector<int> threads;
  for (int i = 3; i < argc; ++i) threads.push_back(std::atoi(argv[i]));
  if (threads.empty()) threads.push_back(1);
  for (const int count : threads) {
    std::vector<double> passes, processor;
    uint64_t hash = 0;
    size_t tokens = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
      begin = Clock::now();
      const std::clock_t ticks = std::clock();
      const auto ids = tokenizer.EncodeMany(texts, false, count);
      processor.push_back(static_cast<double>(std::clock() - ticks) / CLOCKS_PER_SEC);
      passes.push_back(seconds(begin));
      hash = tokens = 0;
      for (const auto& one : ids) {
        tokens += one.size();
        hash = hash * 31 + HashBytes(std::as_bytes(std::span(one)));
      }
    }
    const double megabytes = static_cast<double>(bytes) / 1e6;
    std::printf("threads %d: %.2f MB/s, %.2f MB/CPU s, %zu bytes, %zu tokens, ids %016llx\n", count,
                megabytes / Median(passes), megabytes / Median(processor), bytes, tokens,
                static_cast<unsigned long long>(hash));
  }
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s TOKENIZER TEXTS [THREADS...]\n", argv[0]);
    return 2;
  }
  try {
    zeroplan::Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
