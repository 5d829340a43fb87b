#include "executor/data/token_dataset.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>

#include "core/base/error.h"
#include "executor/data/token_file.h"
#include "tests/executor/device/temp_dir.h"

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
  std::string WriteLlmc(const std::string& name, int32_t magic, int32_t version, int32_t count,
                        const std::vector<uint16_t>& tokens) const {
    std::vector<int32_t> header(256);
    header[0] = magic;
    header[1] = version;
    header[2] = count;
    std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
    bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2);
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

bool Contains(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE(text);
  return found;
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
  const auto llmc = folder.WriteLlmc("a.bin", 20240520, 1, 3, {1, 2, 50256});
  const auto bare = folder.WriteU16("b.bin", {3, 65535});
  const auto short_one = folder.WriteU16("c.u16", {4});
  const auto empty = folder.WriteLlmc("d.bin", 20240520, 1, 0, {});
  const TokenDataset data = Open({llmc, bare, empty, short_one});
  CHECK_FALSE(data.is_text());
  CHECK(data.vocab_needed() == std::nullopt);
  CHECK(ReadAll(data) == std::vector<int32_t>{1, 2, 50256, 3, 65535, 4});
}

TEST_CASE("token dataset: what cannot be read") {
  const Folder folder;
  const auto text = folder.Write("a.txt", "text");
  const auto tokens = folder.WriteU16("a.bin", {1});
  fs::create_directories(folder.path() + "/none/below");
  folder.Write("empty/x", "");
  const auto odd = folder.Write("odd.bin", "abc");
  const std::string dir = folder.path();
  CHECK(Contains(UsageError([&] { Open({dir + "/missing"}); }), "missing: cannot open: No such"));
  CHECK(Contains(UsageError([&] { Open({dir + "/none"}); }), "none: the folder holds no files"));
  CHECK(Contains(UsageError([&] { Open({dir + "/empty"}); }), "every file is empty"));
  CHECK(Contains(UsageError([&] { Open({}); }), "no file"));
  CHECK(Contains(UsageError([&] { Open({odd}); }), "odd.bin: 3 bytes"));
  const auto mixed = UsageError([&] { Open({text, tokens}); });
  CHECK(Contains(mixed, "a.txt is text"));
  CHECK(Contains(mixed, "a.bin is a file of uint16 tokens"));
  CHECK(Contains(UsageError([&] { Open({tokens, text}); }), "a.txt is text"));
  REQUIRE(::mkfifo((dir + "/pipe").c_str(), 0600) == 0);
  CHECK(Contains(UsageError([&] { Open({dir + "/pipe"}); }), "not a regular file"));
  const auto version = folder.WriteLlmc("v.bin", 20240520, 2, 1, {1});
  CHECK(Contains(UsageError([&] { Open({version}); }), "token file version 2"));
  for (const int32_t count : {0, 1, 3, -1, 2147483647}) {
    const auto wrong = folder.WriteLlmc("w.bin", 20240520, 1, count, {1, 2});
    CHECK(Contains(UsageError([&] { Open({wrong}); }),
                   "w.bin: the header says " + std::to_string(count) + " tokens"));
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
  CHECK(Contains(UsageError([&] { data.Read(3, bad); }),
                 "b.bin: token 100 at position 1 is outside the model's vocabulary of 100"));
  data.SetVocab(101);
  CHECK_NOTHROW(data.Read(3, bad));
  CHECK(bad == std::vector<int32_t>{4, 100});

  TokenDataset text = Open({folder.Write("t.txt", "hello")});
  CHECK_NOTHROW(text.SetVocab(50257));
  CHECK(Contains(UsageError([&] { text.SetVocab(255); }), "t.txt: text has 256 tokens"));
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

  CHECK(Contains(UsageError([&] { WriteTokenFile(folder.path() + "/x.txt", tokens); }), ".bin"));
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
    CHECK(Contains(error.what(), "/no/such/.x.bin.tmp: cannot create: No such file"));
  }
}

}  // namespace
}  // namespace zeroplan
