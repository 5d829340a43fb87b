#include "text/documents/tokenize_files.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/text/tokenizer/tokenizer_folder.h"
#include "text/files/mapped_file.h"

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
  const std::vector<std::string> paths = {folder.path("texts")};
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

  CHECK(Has(
      ErrorOf(ExitCode::kUsage, [&] { TokenizeFiles(tokenizer, data, EndingWith(end, 1), out); }),
      "is a token file already"));
  const std::vector<std::string> empty = {folder.path("texts/none")};
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
  const std::vector<std::string> paths = {folder.path("text")};
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

}  // namespace
}  // namespace zeroplan
