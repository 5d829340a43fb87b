// Runs a fuzzer without libFuzzer: its corpus, then so many mutants of it.
// Usage: replay CORPUS_FOLDER MUTANTS [MOST_SECONDS [SEED]]. An input that takes more than that
// fails; by default none does. The input that ended the process is left in the file
// "fuzz-last-input" of the working folder. Another seed makes other mutants.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kLastInput = "fuzz-last-input";
std::vector<std::string> Load(const char* folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> texts;
  for (const auto& path : files) {
    std::ifstream file(path, std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return texts;
}

// False if it was slow.
bool Run(const std::string& text, std::chrono::duration<double> most) {
  const auto begin = Clock::now();
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  return Clock::now() - begin < most;
}

// The file, overwritten in place, which costs a tenth of another one each time.
class LastInput {
 public:
  void Write(const std::string& text) {
    if (pwrite(file_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
        ftruncate(file_, static_cast<off_t>(text.size())) != 0) {
      std::perror(kLastInput);
      std::exit(2);
    }
  }

 private:
  int file_ = open(kLastInput, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
};

class Mutator {
 public:
  Mutator(const std::vector<std::string>& corpus, unsigned seed) : corpus_(corpus), random_(seed) {}

  std::string Next() {
    std::string text = Pick();
    for (size_t edits = 1 + random_() % 4; edits > 0; --edits) Edit(&text);
    return text;
  }

 private:
  const std::string& Pick() { return corpus_[random_() % corpus_.size()]; }

  void Edit(std::string* text) {
    static constexpr std::string_view kPieces[] = {"{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   "\"",
                                                   "'",
                                                   "'''",
                                                   ",",
                                                   ":",
                                                   "\n",
                                                   "#",
                                                   "//",
                                                   "/*",
                                                   "*/",
                                                   "\\",
                                                   "\\u0000",
                                                   "0",
                                                   "-1",
                                                   "1e999",
                                                   "1e18",
                                                   "9223372036854775807",
                                                   "18446744073709551615",
                                                   "0.1",
                                                   "true",
                                                   "null",
                                                   "auto",
                                                   "nvme",
                                                   "\xff",
                                                   "\xc3\xa9",
                                                   std::string_view("\0", 1)};
    const size_t at = text->empty() ? 0 : random_() % text->size();
    switch (random_() % 6) {
      case 0:
        if (!text->empty()) (*text)[at] = static_cast<char>(random_());
        break;
      case 1:
        text->erase(at, 1 + random_() % 16);
        break;
      case 2:
        text->insert(at, kPieces[random_() % std::size(kPieces)]);
        break;
      case 3: {  // a part of another seed
        const std::string& other = Pick();
        if (!other.empty())
          text->insert(at, other.substr(random_() % other.size(), random_() % 64));
        break;
      }
      case 4: {  // a part many times over
        const std::string part = text->substr(at, 1 + random_() % 8);
        std::string many;
        for (size_t n = random_() % 300; n > 0; --n) many += part;
        text->insert(at, many);
        break;
      }
      default: {  // another value in place of one
        const size_t end = text->find_first_of(",}\n", at);
        text->replace(at, end == std::string::npos ? 1 : end - at,
                      kPieces[random_() % std::size(kPieces)]);
      }
    }
  }

  const std::vector<std::string>& corpus_;
  std::mt19937 random_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER MUTANTS [MOST_SECONDS [SEED]]\n", argv[0]);
    return 2;
  }
  const std::vector<std::string> corpus = Load(argv[1]);
  if (corpus.empty()) {
    std::fprintf(stderr, "%s: no files\n", argv[1]);
    return 2;
  }
  const std::chrono::duration<double> most(argc > 3 ? std::atof(argv[3]) : 1e9);
  for (const std::string& text : corpus) {
    if (!Run(text, most)) return 1;
  }
  const long count = std::atol(argv[2]);
  Mutator mutator(corpus, argc > 4 ? static_cast<unsigned>(std::atol(argv[4])) : 1u);
  LastInput last;
  for (long i = 0; i < count; ++i) {
    const std::string text = mutator.Next();
    last.Write(text);
    if (!Run(text, most)) {
      std::fprintf(stderr, "slow: see %s\n", kLastInput);
      return 1;
    }
  }
  std::filesystem::remove(kLastInput);
  std::printf("%zu seeds, %ld mutants\n", corpus.size(), count);
  return 0;
}
