#include "text/files/token_dataset.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>

#include "core/base/error.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/test_seed.h"
#include "text/files/token_file.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

class Folder : public TempDir {
 public:
  std::string Write(const std::string& name, std::string_view bytes) const {
    const fs::path file = fs::path(path()) / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << bytes;
    return file.string();
  }
  std::string WriteU16(const std::string& name, const std::vector<uint16_t>& tokens) const {
    return Write(name, {reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2});
  }
  std::string WriteU32(const std::string& name, const std::vector<uint32_t>& tokens) const {
    return Write(name, {reinterpret_cast<const char*>(tokens.data()), tokens.size() * 4});
  }
  template <typename Token>
  std::string WriteLlmc(const std::string& name, int32_t magic, int32_t version, int32_t count,
                        const std::vector<Token>& tokens) const {
    std::vector<int32_t> header(256);
    header[0] = magic;
    header[1] = version;
    header[2] = count;
    std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
    bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token));
    return Write(name, bytes);
  }
};

TokenDataset Open(std::vector<std::string> paths) { return TokenDataset::Open(paths); }

std::vector<int32_t> ReadAll(const TokenDataset& data) {
  std::vector<int32_t> tokens(data.size());
  data.Read(0, tokens);
  return tokens;
}

std::string Text(const TokenDataset& data) {
  std::string text;
  for (const int32_t token : ReadAll(data)) text += static_cast<char>(token);
  return text;
}

std::string UsageError(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    return error.what();
  }
  FAIL("no error");
  return "";
}

TEST_CASE("token dataset: text is its bytes") {
  const Folder folder;
  std::string bytes(256, '\0');
  std::iota(bytes.begin(), bytes.end(), static_cast<char>(0));
  const TokenDataset data = Open({folder.Write("all.txt", bytes)});
  CHECK(data.is_text());
  CHECK(data.vocab_needed() == 256);
  std::vector<int32_t> expected(256);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(ReadAll(data) == expected);
}

TEST_CASE("token dataset: files in the order given, folders by byte order of paths") {
  const Folder folder;
  const auto last = folder.Write("z.txt", "Z");
  const auto first = folder.Write("a.txt", "A");
  folder.Write("tree/b.txt", "2");
  folder.Write("tree/b/x.md", "3");  // '.' sorts before '/'
  folder.Write("tree/a", "1");
  folder.Write("tree/B", "0");
  folder.Write("tree/b/deep/er/file", "");
  const TokenDataset data = Open({last, folder.path() + "/tree", first});
  CHECK(Text(data) == "Z0123A");
  CHECK(data.file_count() == 6);
}

TEST_CASE("token dataset: ranges across many files, small and mapped") {
  const Folder folder;
  std::vector<std::string> paths;
  std::string expected;
  for (int i = 0; i < 20; ++i) {
    const size_t size = i % 3 == 0 ? 0 : (i % 5 == 0 ? 40'000 : static_cast<size_t>(i));
    std::string text(size, ' ');
    for (size_t k = 0; k < size; ++k) text[k] = static_cast<char>('a' + (k * 7 + i) % 26);
    paths.push_back(folder.Write("f" + std::to_string(i), text));
    expected += text;
  }
  const TokenDataset data = Open(paths);
  REQUIRE(Text(data) == expected);
  for (uint64_t begin = 0; begin < data.size(); begin += 997) {
    std::vector<int32_t> part(std::min<uint64_t>(1500, data.size() - begin));
    data.Read(begin, part);
    CHECK(std::equal(part.begin(), part.end(), expected.begin() + static_cast<ptrdiff_t>(begin)));
  }
  std::vector<int32_t> none;
  CHECK_NOTHROW(data.Read(data.size(), none));
  std::vector<int32_t> one(1);
  CHECK_THROWS_AS(data.Read(data.size(), one), CheckFailure);
  CHECK_THROWS_AS(data.Read(~uint64_t{0}, one), CheckFailure);
}

TEST_CASE("token dataset: llm.c and bare token files join") {
  const Folder folder;
  const auto llmc = folder.WriteLlmc<uint16_t>("a.bin", 20240520, 1, 3, {1, 2, 50256});
  const auto bare = folder.WriteU16("b.bin", {3, 65535});
  const auto short_one = folder.WriteU16("c.u16", {4});
  const auto empty = folder.WriteLlmc<uint16_t>("d.bin", 20240520, 1, 0, {});
  const TokenDataset data = Open({llmc, bare, empty, short_one});
  CHECK_FALSE(data.is_text());
  CHECK(data.vocab_needed() == std::nullopt);
  CHECK(ReadAll(data) == std::vector<int32_t>{1, 2, 50256, 3, 65535, 4});
}

TEST_CASE("token dataset: tokens of 32 bits, by name or by header, join those of 16") {
  const Folder folder;
  const auto bare = folder.WriteU32("a.u32", {1, 128'255, 70'000});
  const auto llmc = folder.WriteLlmc<uint32_t>("b.bin", 20240801, 7, 2, {65'536, 2});
  const auto named = folder.WriteLlmc<uint32_t>("c.u32", 20240801, 7, 1, {99'999});
  const auto small = folder.WriteU16("d.u16", {65'535, 5});
  TokenDataset data = Open({bare, llmc, named, small});
  data.SetVocab(128'256);
  const std::vector<int32_t> all = {1, 128'255, 70'000, 65'536, 2, 99'999, 65'535, 5};
  CHECK(ReadAll(data) == all);
  for (uint64_t begin = 0; begin < all.size(); ++begin) {
    std::vector<int32_t> rest(all.size() - begin);
    data.Read(begin, rest);
    CHECK(std::equal(rest.begin(), rest.end(), all.begin() + static_cast<ptrdiff_t>(begin)));
  }
  CHECK(data.CheckVocab(0, 1, 1 << 20) == all.size());

  CHECK(Has(UsageError([&] { Open({folder.Write("odd.u32", "abcdef")}); }),
            "odd.u32: 6 bytes, not a multiple of 4, cannot be uint32 tokens"));
  CHECK(Has(UsageError([&] { Open({folder.WriteLlmc<uint16_t>("e.u32", 20240520, 1, 1, {1})}); }),
            "e.u32: the header says uint16 tokens, the name uint32; rename the file to .bin"));
  CHECK(Has(UsageError([&] { Open({folder.WriteLlmc<uint32_t>("f.u16", 20240801, 7, 1, {1})}); }),
            "f.u16: the header says uint32 tokens, the name uint16"));
  CHECK(Has(UsageError([&] { Open({folder.WriteLlmc<uint32_t>("g.bin", 20240801, 1, 1, {1})}); }),
            "token file version 1, with magic number 20240801 only version 7"));
  CHECK(Has(UsageError([&] { Open({folder.WriteLlmc<uint32_t>("h.bin", 20240801, 7, 3, {1})}); }),
            "the header says 3 uint32 tokens (1036 bytes in all), the file has 1028 bytes"));
}

TEST_CASE("token dataset: bare uint32 tokens under a name of uint16 ones are noticed") {
  const Folder folder;
  std::vector<uint32_t> wide(3000);
  std::vector<uint16_t> narrow(6000);
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<uint32_t>(i * 7919 % 128'256);
  for (size_t i = 0; i < narrow.size(); ++i) narrow[i] = static_cast<uint16_t>(i * 7919);
  const auto file = folder.WriteU32("a.bin", wide);
  TokenDataset data = Open({file});
  CHECK(Has(UsageError([&] { data.SetVocab(128'256); }), "a.bin: a bare file of this name"));
  CHECK_NOTHROW(data.SetVocab(50'257));  // no model of 32-bit ids
  CHECK_NOTHROW(Open({folder.WriteU16("b.bin", narrow)}).SetVocab(128'256));
  CHECK_NOTHROW(Open({folder.WriteU16("c.bin", std::vector<uint16_t>(6000))}).SetVocab(128'256));
}

TEST_CASE("token dataset: every part of the stream is held against the vocabulary") {
  const Folder folder;
  std::vector<uint32_t> wide(200'000, 7);
  std::vector<uint16_t> narrow(100'001, 7);
  const auto open = [&] {
    return Open({folder.WriteU32("a.u32", wide), folder.WriteU16("b.u16", narrow),
                 folder.WriteU32("c.u32", {7, 7})});
  };
  const auto check_all = [&](int64_t vocab, int parts) {
    TokenDataset data = open();
    data.SetVocab(vocab);
    uint64_t looked = 0, sizes = 0;
    for (int part = 0; part < parts; ++part) {
      looked += data.CheckVocab(part, parts, 1 << 30);
      sizes += data.PartSize(part, parts);
    }
    CHECK(looked == data.size());
    CHECK(sizes == data.size());
  };
  for (const int parts : {1, 2, 7}) check_all(8, parts);
  for (const size_t at :
       {size_t{0}, size_t{4095}, size_t{4096}, size_t{123'457}, wide.size() - 1}) {
    CAPTURE(at);
    wide[at] = 0xffffffff;
    for (const int parts : {1, 3}) {
      CHECK(Has(UsageError([&] { check_all(128'256, parts); }),
                fmt::format("a.u32: token 4294967295 at position {} is outside the model's "
                            "vocabulary of 128256",
                            at)));
    }
    TokenDataset data = open();
    data.SetVocab(128'256);
    std::vector<int32_t> one(1);
    UsageError([&] { data.Read(at, one); });
    wide[at] = 7;
  }
  narrow.back() = 8;
  CHECK(Has(UsageError([&] { check_all(8, 5); }),
            "b.u16: token 8 at position 100000 is outside the model's vocabulary of 8; make the "
            "file with this model's tokenizer, or train a model of at least 9 tokens"));
  narrow.back() = 65'535;
  check_all(65'536, 5);
}

TEST_CASE("token dataset: of much data blocks are looked at, evenly spread") {
  const Folder folder;
  std::vector<uint32_t> tokens(12 << 20, 7);  // 48 MiB: 12 blocks
  const auto look = [&](uint64_t budget) {
    TokenDataset data = Open({folder.WriteU32("a.u32", tokens)});
    data.SetVocab(8);
    return data.CheckVocab(0, 1, budget);
  };
  CHECK(look(48 << 20) == tokens.size());
  CHECK(look(16 << 20) == 4 << 20);
  tokens[(3 << 20) + 5] = 8;  // in the second block of the four
  CHECK(Has(UsageError([&] { look(16 << 20); }), "token 8 at position 3145733"));
}

TEST_CASE("token dataset: random headers are an error or tokens, never worse") {
  const Folder folder;
  std::mt19937 random(2);
  const auto number = [&]() -> int32_t {
    const int32_t known[] = {20240520, 20240801, 1, 7, 0, -1, 1000, 500, 2147483647};
    return random() % 8 == 0 ? static_cast<int32_t>(random()) : known[random() % std::size(known)];
  };
  int opened = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> words(random() % 3 == 0 ? random() % 300 : 256 + 250 * (random() % 5));
    for (size_t k = 0; k < std::min<size_t>(words.size(), 4); ++k) words[k] = number();
    std::string bytes(reinterpret_cast<const char*>(words.data()), words.size() * 4);
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    const char* names[] = {"x.bin", "x.u16", "x.u32"};
    const auto file = folder.Write(names[random() % 3], bytes);
    try {
      TokenDataset data = Open({file});
      CHECK(data.size() <= bytes.size() / 2);
      ++opened;
      data.SetVocab(1000);
      data.CheckVocab(0, 1, 1 << 20);
      for (const int32_t token : ReadAll(data)) CHECK(token < 1000);
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kUsage);
    }
  }
  CHECK(opened > 50);
  CHECK(opened < 1950);
}

TEST_CASE("token dataset: what cannot be read") {
  const Folder folder;
  const auto text = folder.Write("a.txt", "text");
  const auto tokens = folder.WriteU16("a.bin", {1});
  fs::create_directories(folder.path() + "/none/below");
  folder.Write("empty/x", "");
  const auto odd = folder.Write("odd.bin", "abc");
  const std::string dir = folder.path();
  CHECK(Has(UsageError([&] { Open({dir + "/missing"}); }), "missing: cannot open: No such"));
  CHECK(Has(UsageError([&] { Open({dir + "/none"}); }), "none: the folder holds no files"));
  CHECK(Has(UsageError([&] { Open({dir + "/empty"}); }), "every file is empty"));
  CHECK(Has(UsageError([&] { Open({}); }), "no file"));
  CHECK(Has(UsageError([&] { Open({odd}); }), "odd.bin: 3 bytes"));
  const auto mixed = UsageError([&] { Open({text, tokens}); });
  CHECK(Has(mixed, "a.txt is text"));
  CHECK(Has(mixed, "a.bin is a file of tokens"));
  CHECK(Has(UsageError([&] { Open({tokens, text}); }), "a.txt is text"));
  REQUIRE(::mkfifo((dir + "/pipe").c_str(), 0600) == 0);
  CHECK(Has(UsageError([&] { Open({dir + "/pipe"}); }), "not a regular file"));
  const auto version = folder.WriteLlmc<uint16_t>("v.bin", 20240520, 2, 1, {1});
  CHECK(Has(UsageError([&] { Open({version}); }), "token file version 2"));
  for (const int32_t count : {0, 1, 3, -1, 2147483647}) {
    const auto wrong = folder.WriteLlmc<uint16_t>("w.bin", 20240520, 1, count, {1, 2});
    CHECK(Has(UsageError([&] { Open({wrong}); }),
              "w.bin: the header says " + std::to_string(count) + " uint16 tokens"));
  }
}

TEST_CASE("token dataset: tokens outside the vocabulary are named when read") {
  const Folder folder;
  const auto first = folder.WriteU16("a.bin", {1, 2, 3});
  const auto second = folder.WriteU16("b.bin", {4, 100, 5});
  TokenDataset data = Open({first, second});
  data.SetVocab(100);
  std::vector<int32_t> good(4);
  CHECK_NOTHROW(data.Read(0, good));
  std::vector<int32_t> bad(2);
  CHECK(Has(UsageError([&] { data.Read(3, bad); }),
            "b.bin: token 100 at position 1 is outside the model's vocabulary of 100"));
  data.SetVocab(101);
  CHECK_NOTHROW(data.Read(3, bad));
  CHECK(bad == std::vector<int32_t>{4, 100});

  TokenDataset text = Open({folder.Write("t.txt", "hello")});
  CHECK_NOTHROW(text.SetVocab(50257));
  CHECK(Has(UsageError([&] { text.SetVocab(255); }), "t.txt: text has 256 tokens"));
}

TEST_CASE("token file: write, read back, and the header llm.c expects") {
  const Folder folder;
  const std::string path = folder.path() + "/out.bin";
  std::vector<int32_t> tokens(600'000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 31 % 65536);
  WriteTokenFile(path, tokens);
  CHECK(fs::file_size(path) == 1024 + 2 * tokens.size());
  std::array<int32_t, 4> header{};
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(header.data()), 16);
  CHECK(header == std::array<int32_t, 4>{20240520, 1, 600'000, 0});
  CHECK(ReadAll(Open({path})) == tokens);

  TokenFileWriter writer(path);
  writer.Append(std::span(tokens).first(5));
  CHECK(Open({path}).size() == tokens.size());  // nothing has changed yet
  writer.Append(std::span(tokens).subspan(5, 2));
  writer.Finish();
  CHECK(Open({path}).size() == 7);
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);

  CHECK(Has(UsageError([&] { WriteTokenFile(folder.path() + "/x.txt", tokens); }), ".bin"));
  const std::vector<int32_t> outside = {70'000};
  CHECK_THROWS_AS(WriteTokenFile(path, outside), CheckFailure);
  CHECK(Open({path}).size() == 7);
}

TEST_CASE("token file: text becomes a file of its bytes") {
  const Folder folder;
  const auto a = folder.Write("a.txt", "caf\xc3\xa9");
  const auto b = folder.Write("b.txt", std::string(300'000, 'x'));
  const std::string out = folder.path() + "/t.bin";
  CHECK(TokenizeText(std::vector<std::string>{a, b}, out) == 300'005);
  const TokenDataset data = Open({out});
  CHECK(data.size() == 300'005);
  std::vector<int32_t> head(6);
  data.Read(0, head);
  CHECK(head == std::vector<int32_t>{'c', 'a', 'f', 0xc3, 0xa9, 'x'});
  const std::string again = folder.path() + "/again.bin";
  UsageError([&] { TokenizeText(std::vector<std::string>{out}, again); });
  CHECK_FALSE(fs::exists(again));
  try {
    WriteTokenFile(folder.path() + "/no/such/x.bin", head);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kRuntime);
    CHECK(Has(error.what(), "/no/such/.x.bin.tmp: cannot create: No such file"));
  }
}

TEST_CASE("dataset digest: of the content, not of names") {
  const Folder folder;
  const auto digest = [](const std::string& path) {
    return TokenDataset::Open(std::vector<std::string>{path}).Digest();
  };
  std::string text(300'000, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i * i % 23);
  const std::string one = folder.Write("one.txt", text), two = folder.Write("two.md", text);
  CHECK(digest(one) == digest(two));
  CHECK(digest(one).ends_with(", 300000 tokens"));
  for (const size_t at : {size_t{0}, size_t{123'456}, text.size() - 1}) {
    std::string other = text;
    other[at] = '!';
    CHECK(digest(folder.Write("other.txt", other)) != digest(one));
  }
  CHECK(digest(folder.Write("longer.txt", text + "x")) != digest(one));
  // The same bytes are other tokens.
  CHECK(digest(folder.Write("tokens.u16", text)) != digest(one));
  // Each bit counts; where not all is looked at, that is said.
  std::string large(42'000'000, 'y');
  const std::string path = folder.Write("large.txt", large);
  const std::string before = digest(path);
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 4; ++i) {
    const size_t at = random() % large.size();
    CAPTURE(at);
    large[at] = static_cast<char>(large[at] ^ 1);
    CHECK(digest(folder.Write("large.txt", large)) != before);
    large[at] = static_cast<char>(large[at] ^ 1);
  }
  folder.Write("large.txt", large);
  const std::string part =
      TokenDataset::Open(std::vector<std::string>{path}).Digest(uint64_t{21} << 20);
  CHECK(Has(part, ", 42000000 tokens, 5"));
  CHECK(part.ends_with(" % of the bytes compared"));
  CHECK(digest(path) == before);
}

}  // namespace
}  // namespace zeroplan
