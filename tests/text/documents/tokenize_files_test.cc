#include "text/documents/tokenize_files.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/test_seed.h"
#include "tests/text/documents/compressed_files.h"
#include "tests/text/tokenizer/tokenizer_folder.h"
#include "text/documents/token_cache.h"
#include "text/documents/token_text.h"
#include "text/files/mapped_file.h"
#include "text/files/token_dataset.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

TokenizeOptions EndingWith(int32_t end_of_text, int threads) {
  TokenizeOptions options;
  options.end_of_text = [=] { return end_of_text; };
  options.threads = threads;
  return options;
}

std::string Show(const Tokenizer& tokenizer, const std::string& file, uint64_t begin,
                 uint64_t count, bool mask = false) {
  return TokensAsText(tokenizer, file, {begin, count, mask});
}

TEST_CASE("tokenize files: documents end with the end-of-text token, and come back as text") {
  const TokenizerFolder folder;
  fs::create_directory(folder.path("texts"));
  folder.Write("texts/b", "second\xff");
  folder.Write("texts/a", "the first\n");
  folder.Write("texts/none", "");
  const Tokenizer tokenizer = Tokenizer::FromFile(TokenizerFixture("gpt2"));
  const int32_t end = *tokenizer.TokenId("<|endoftext|>");
  const std::vector<fs::path> paths = {folder.path("texts/a"), folder.path("texts/b"),
                                       folder.path("texts/none")};
  const std::string out = folder.path("out.bin");
  const TokenizedFiles done = TokenizeFiles(tokenizer, paths, EndingWith(end, 2), out);
  CHECK(done.documents == 2);
  CHECK(done.token_bytes == 2);
  CHECK(done.tokens == tokenizer.Encode("the first\n", false).size() +
                           tokenizer.Encode("second\xff", false).size() + 2);
  const std::string text =
      "-- document 1, token 0 --\nthe first\n<|endoftext|>\n-- document 2, token 7 --\n"
      "second\xEF\xBF\xBD<|endoftext|>";
  CHECK(Show(tokenizer, out, 0, 1000) == text);
  CHECK(Show(tokenizer, out, done.tokens - 1, 1000) == "<|endoftext|>");
  CHECK(Show(tokenizer, out, done.tokens, 1).empty());
  const TokenFileExtent extent = FindTokens(MappedFile::Open(out), out);
  REQUIRE(extent.origin.has_value());
  CHECK((*extent.origin == OriginOf(tokenizer)));
  CHECK(extent.documents == 2);
  CHECK_FALSE(extent.mask_offset.has_value());

  // Another tokenizer is refused, by name.
  const Tokenizer other = Tokenizer::FromFile(TokenizerFixture("smollm2"));
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { Show(other, out, 0, 1); }),
            "made with another tokenizer"));
  fs::create_directory(folder.path("model"));
  const std::vector<std::string> data = {out};
  CheckDataOrigin(data, folder.path("model"));  // nothing to compare with
  fs::copy_file(TokenizerFixture("gpt2"), folder.path("model/tokenizer.json"));
  CheckDataOrigin(data, folder.path("model"));
  fs::copy_file(TokenizerFixture("smollm2"), folder.path("model/tokenizer.json"),
                fs::copy_options::overwrite_existing);
  const std::string message =
      ErrorOf(ExitCode::kUsage, [&] { CheckDataOrigin(data, folder.path("model")); });
  CHECK(Has(message, out));
  CHECK(Has(message, "made with another tokenizer"));

  CHECK(Has(ErrorOf(ExitCode::kUsage,
                    [&] {
                      TokenizeFiles(tokenizer, std::vector<fs::path>{out}, EndingWith(end, 1), out);
                    }),
            "is a token file already"));
  const std::vector<fs::path> empty = {folder.path("texts/none")};
  CHECK(Has(
      ErrorOf(ExitCode::kUsage,
              [&] { TokenizeFiles(tokenizer, empty, EndingWith(end, 1), folder.path("x.bin")); }),
      "no text in it"));
  CHECK_FALSE(fs::exists(folder.path("x.bin")));
}

TEST_CASE("tokenize files: a vocabulary past 65,536 takes 32 bits a token") {
  const TokenizerFolder folder;
  // The letters, and one token far behind.
  std::string vocab;
  for (int i = 0; i < 26; ++i) vocab += fmt::format("\"{}\": {}, ", static_cast<char>('a' + i), i);
  const std::string file = R"({"model": {"type": "BPE", "vocab": {)" + vocab +
                           R"("ab": 70000}, "merges": ["a b"]}, "decoder": {"type": "Fuse"}})";
  const Tokenizer tokenizer = Tokenizer::FromText(file, "f");
  CHECK(tokenizer.vocab_size() == 70'001);
  folder.Write("text", "cab");
  const std::vector<fs::path> paths = {folder.path("text")};
  const std::string out = folder.path("out.bin");
  const TokenizedFiles done = TokenizeFiles(tokenizer, paths, EndingWith(25, 1), out);
  CHECK(done.token_bytes == 4);
  CHECK(FindTokens(MappedFile::Open(out), out).token_bytes == 4);
  CHECK(Show(tokenizer, out, 0, 10) == "-- document 1, token 0 --\ncabz");
}

TEST_CASE("tokenize files: the end-of-text token is the one that tokenizer_config.json names") {
  const TokenizerFolder folder;
  fs::copy_file(TokenizerFixture("qwen2"), folder.path("tokenizer.json"));
  const Tokenizer tokenizer = Tokenizer::FromFile(folder.path(""));
  CHECK_FALSE(EndOfText(folder.path(""), tokenizer).has_value());
  folder.Write("tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  CHECK(EndOfText(folder.path("tokenizer.json"), tokenizer) == tokenizer.TokenId("<|im_end|>"));
  folder.Write("tokenizer_config.json", R"({"eos_token": {"content": "<|endoftext|>"}})");
  CHECK(EndOfText(folder.path(""), tokenizer) == tokenizer.TokenId("<|endoftext|>"));
  folder.Write("tokenizer_config.json", R"({"eos_token": null})");
  CHECK_FALSE(EndOfText(folder.path(""), tokenizer).has_value());
  folder.Write("tokenizer_config.json", R"({"eos_token": "<nobody>"})");
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { EndOfText(folder.path(""), tokenizer); }),
            "eos_token: \"<nobody>\" is no token"));
}

TEST_CASE("tokenize files: special tokens stand around texts as the tokenizer adds them") {
  const TokenizerFolder folder;
  const auto shown = [&](const std::string& name, const std::string& text,
                         const TextChoices& choices = {}) {
    const Tokenizer tokenizer = Tokenizer::FromFile(TokenizerFixture("llama3"));
    folder.Write(name, text);
    TokenizeOptions options = EndingWith(*tokenizer.TokenId("<|end_of_text|>"), 1);
    options.choices = choices;
    const std::vector<fs::path> files = {folder.path(name)};
    TokenizeFiles(tokenizer, files, options, folder.path("out.bin"));
    return Show(tokenizer, folder.path("out.bin"), 0, 100);
  };
  const std::string head = "-- document 1, token 0 --\n";
  const std::string text = head + "<|begin_of_text|>Hi<|end_of_text|>";
  CHECK(shown("a.txt", "Hi") == text);
  CHECK(shown("a.jsonl", R"({"text": "Hi"})") == text);
  CHECK(shown("a.jsonl", R"({"prompt": "H", "completion": "i"})") == text);
  // Once, if they are there already.
  CHECK(shown("a.txt", "<|begin_of_text|>Hi<|end_of_text|>") == text);
  TextChoices none;
  none.special_tokens = false;
  CHECK(shown("a.txt", "Hi", none) == head + "Hi<|end_of_text|>");
}

TEST_CASE("tokenize files: what cannot be cut anywhere is refused before it fills the memory") {
  const TokenizerFolder folder;
  const Tokenizer tokenizer = Tokenizer::FromFile(TokenizerFixture("gpt2"));
  folder.Write("a.txt.gz", Gzip(std::string(size_t{70} << 20, 'a')));
  const std::vector<fs::path> files = {folder.path("a.txt.gz")};
  CHECK(
      Has(ErrorOf(ExitCode::kUsage,
                  [&] { TokenizeFiles(tokenizer, files, EndingWith(0, 1), folder.path("x.bin")); }),
          "a.txt.gz: 64 MiB without a blank or a line"));
}

// Words, numbers, blanks, other scripts, added tokens, in any order.
std::string AnyText(size_t bytes, std::mt19937_64* random) {
  static const std::vector<std::string> kParts = {
      "word",       "Another", " ",   "  ",     "\n",  "\n\n",  "12345",  "don't",
      "é",          "中文",    "😀",  ".",      "...", "\t",    "x = y;", "e\u0301",
      "<|im_end|>", "</s>",    "<s>", "\u3000", "ﬁ",   "a b c", "Ünïcödé"};
  std::string text;
  while (text.size() < bytes) {
    text += kParts[(*random)() % kParts.size()];
    if ((*random)() % 3 != 0) text += ' ';
  }
  return text;
}

TEST_CASE("tokenize files: a long text is encoded in parts, and its ids are those of the whole") {
  const TokenizerFolder folder;
  std::mt19937_64 random(TestSeed());
  INFO("ZEROPLAN_TEST_SEED=", TestSeed());
  for (const char* name : {"gpt2", "llama2", "llama3", "qwen2", "qwen3", "mistral_v01",
                           "mistral_v03", "gemma", "deepseek_v3", "metaspace_always", "yi"}) {
    CAPTURE(name);
    const Tokenizer tokenizer = Tokenizer::FromFile(TokenizerFixture(name));
    const std::string text = AnyText(60'000, &random);
    // Each place where it may be cut, apart and whole.
    std::vector<int32_t> apart;
    size_t from = 0;
    for (size_t to = 5'000; to + 5'000 < text.size(); to += 5'000) {
      const std::optional<size_t> cut = tokenizer.CutBefore(text, to);
      REQUIRE(cut.has_value());
      REQUIRE((*cut > from && *cut <= to));
      const std::vector<int32_t> part =
          tokenizer.EncodePart(text.substr(from, *cut - from), from > 0);
      apart.insert(apart.end(), part.begin(), part.end());
      from = *cut;
    }
    const std::vector<int32_t> part = tokenizer.EncodePart(text.substr(from), true);
    apart.insert(apart.end(), part.begin(), part.end());
    CHECK((apart == tokenizer.Encode(text, false)));
  }

  // A file that is read several times, compressed or not.
  const Tokenizer tokenizer = Tokenizer::FromFile(TokenizerFixture("llama2"));
  // "<s>" at its begin would not be added again.
  const std::string text = "a" + AnyText(3 * DocumentSource::kTextBytes + 12'345, &random);
  std::vector<int32_t> expected = tokenizer.Encode(text, true);
  const int32_t end = *tokenizer.TokenId("</s>");
  if (expected.back() != end) expected.push_back(end);
  folder.Write("long.txt", text);
  folder.Write("long.txt.gz", Gzip(text));
  for (const char* file : {"long.txt", "long.txt.gz"}) {
    const std::vector<fs::path> files = {folder.path(file)};
    const TokenizedFiles done =
        TokenizeFiles(tokenizer, files, EndingWith(end, 2), folder.path("long.bin"));
    CHECK(done.documents == 1);
    CHECK(done.bytes == text.size());
    REQUIRE(done.tokens == expected.size());
    const std::string path = folder.path("long.bin");
    std::vector<int32_t> ids(done.tokens);
    TokenDataset data = TokenDataset::Open({&path, 1});
    data.Read(0, ids);
    CHECK((ids == expected));
  }
}

TEST_CASE("tokenize files: what is no text is refused by name") {
  const TokenizerFolder folder;
  const Tokenizer tokenizer = Tokenizer::FromFile(TokenizerFixture("gpt2"));
  const auto refused = [&](const std::string& name, const std::string& bytes) {
    folder.Write(name, bytes);
    const std::vector<fs::path> files = {folder.path(name)};
    const std::string message = ErrorOf(ExitCode::kUsage, [&] {
      TokenizeFiles(tokenizer, files, EndingWith(0, 1), folder.path("x.bin"));
    });
    CHECK(message.starts_with(folder.path(name) + ": "));
    CHECK_FALSE(fs::exists(folder.path("x.bin")));
    if (files[0].extension() != ".gz") {
      CHECK(ErrorOf(ExitCode::kUsage, [&] { RefuseAsBytes(files[0]); }) == message);
    }
    return message;
  };
  CHECK(Has(refused("a.png", "x"), "an image by its name"));
  CHECK(Has(refused("a.PDF", "x"), "pdftotext"));
  CHECK(Has(refused("a.docx", "x"), "pandoc"));
  CHECK(Has(refused("a.xlsx", "x"), "save it as CSV"));
  CHECK(Has(refused("a.bz2", "x"), "bunzip2"));
  CHECK(Has(refused("a.xz", "x"), "unxz"));
  CHECK(Has(refused("a.tar.gz", Gzip("x")), "an archive by its name"));
  CHECK(Has(refused("picture", "\x89PNG\r\n"), "a PNG image by its first bytes"));
  CHECK(Has(refused("b.txt", "%PDF-1.7"), "a PDF by its first bytes"));
  CHECK(Has(refused("c.txt", Gzip("x")), "let its name end in .gz"));
  CHECK(Has(refused("d.txt.gz", Gzip("PK\x03\x04")), "a zip archive"));
  CHECK(Has(refused("e.txt", std::string("\xFF\xFEh\0i\0", 6)), "iconv -f UTF-16"));
  CHECK(Has(refused("f.txt", std::string("h\0i\0", 4)), "has 2 bytes that are 0"));
  CHECK(Has(refused("g.txt", "caf\xE9 caf\xE9 caf\xE9 caf\xE9 caf\xE9"), "iconv -f LATIN1"));
}

}  // namespace
}  // namespace zeroplan
