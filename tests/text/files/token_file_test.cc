#include "text/files/token_file.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "text/files/token_dataset.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

std::string Bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TokenFileExtent Find(const fs::path& path) { return FindTokens(MappedFile::Open(path), path); }

std::vector<uint64_t> Documents(const fs::path& path) {
  const TokenFileExtent extent = Find(path);
  std::vector<uint64_t> begins(extent.documents);
  const std::string bytes = Bytes(path);
  std::memcpy(begins.data(), bytes.data() + extent.documents_offset, 8 * begins.size());
  return begins;
}

// '1' for each token that counts; "all" without a mask.
std::string Mask(const fs::path& path) {
  const TokenFileExtent extent = Find(path);
  if (!extent.mask_offset) return "all";
  const std::string bytes = Bytes(path);
  std::string mask;
  for (uint64_t i = 0; i < extent.count; ++i) {
    mask += (bytes[*extent.mask_offset + i / 8] >> i % 8 & 1) != 0 ? '1' : '0';
  }
  return mask;
}

std::vector<int32_t> Tokens(const fs::path& path) {
  const std::string name = path.string();
  const TokenDataset data = TokenDataset::Open({&name, 1});
  std::vector<int32_t> tokens(data.size());
  data.Read(0, tokens);
  return tokens;
}

void Write(TokenFileWriter* writer, const std::vector<int32_t>& tokens, const std::string& mask) {
  std::vector<uint8_t> counted;
  for (const char c : mask) counted.push_back(c == '1' ? 1 : 0);
  writer->Append(tokens, counted);
}

TEST_CASE("token file: documents and what counts come back") {
  const TempDir folder;
  for (const int32_t vocab : {300, 70'000}) {
    const fs::path path = folder.path() + "/" + std::to_string(vocab) + ".bin";
    const TokenFileOrigin origin = {{1, 2, 3}, vocab};
    TokenFileWriter writer(path, nullptr, origin);
    writer.EndDocument();  // nothing yet
    writer.Append(std::vector{1, 2, 3});
    writer.EndDocument();
    writer.EndDocument();
    Write(&writer, {4, 5}, "11");
    Write(&writer, {6, 7}, "01");
    writer.EndDocument();
    Write(&writer, {8, 9, 10}, "000");
    writer.Append(std::vector{299, 12, 13, 14, 15, 16, 17, 18});  // no end said
    CHECK(writer.counted() == 14);
    const TokenFileLosses losses =
        vocab == 300 ? TokenFileLosses{5, uint64_t{3} << 32} : TokenFileLosses{};
    writer.SetLosses(losses);
    writer.Finish();
    CHECK((Find(path).losses == losses));
    CHECK(ChecksumHolds(MappedFile::Open(path)).value_or(false));
    CHECK(writer.documents() == 3);
    const TokenFileExtent extent = Find(path);
    CHECK(extent.count == 18);
    CHECK(extent.token_bytes == (vocab == 300 ? 2 : 4));
    CHECK((extent.origin == origin));
    CHECK(extent.documents_offset % 8 == 0);
    CHECK(Documents(path) == std::vector<uint64_t>{0, 3, 7});
    CHECK(Mask(path) == "111110100011111111");
    CHECK(Tokens(path) ==
          std::vector{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 299, 12, 13, 14, 15, 16, 17, 18});
  }
}

TEST_CASE("token file: where all tokens count there is no mask") {
  const TempDir folder;
  const fs::path path = folder.path() + "/a.bin";
  TokenFileWriter writer(path);
  Write(&writer, {1, 2, 3}, "111");
  writer.EndDocument();
  writer.Append(std::vector{4});
  writer.Finish();
  CHECK(Mask(path) == "all");
  CHECK(Documents(path) == std::vector<uint64_t>{0, 3});
  CHECK(writer.counted() == 4);
}

TEST_CASE("token file: without documents, mask and origin it is llm.c's") {
  const TempDir folder;
  const fs::path path = folder.path() + "/a.bin";
  WriteTokenFile(path, std::vector{1, 2, 50'256});
  CHECK(fs::file_size(path) == 1024 + 2 * 3);
  const TokenFileExtent extent = Find(path);
  CHECK(extent.documents == 0);
  CHECK_FALSE(extent.mask_offset.has_value());
  std::string header = Bytes(path).substr(12, 1012);
  CHECK(header == std::string(1012, '\0'));
}

TEST_CASE("token file: damaged sections are refused by name") {
  const TempDir folder;
  const fs::path path = folder.path() + "/a.bin";
  {
    TokenFileWriter writer(path, nullptr, TokenFileOrigin{{}, 300});
    writer.Append(std::vector{1, 2, 3});
    writer.EndDocument();
    Write(&writer, {4, 5}, "01");
    writer.Finish();
  }
  const std::string whole = Bytes(path);
  const uint64_t begins = Find(path).documents_offset;
  REQUIRE(whole.size() == begins + 2 * 8 + 1);
  const auto refused = [&](const std::function<void(std::string*)>& damage) {
    std::string bytes = whole;
    damage(&bytes);
    std::ofstream(path, std::ios::binary) << bytes;
    const std::string message = ErrorOf(ExitCode::kUsage, [&] { Find(path); });
    CHECK(Has(message, path.string()));
    return message;
  };
  const auto word = [](int index) { return static_cast<size_t>(4 * index); };
  CHECK(Has(refused([](std::string* b) { b->pop_back(); }),
            "5 uint16 tokens, 2 documents and a loss mask (1057 bytes in all), the file has 1056"));
  CHECK(Has(refused([](std::string* b) { *b += '\0'; }), "1058 bytes"));
  CHECK(Has(refused([](std::string* b) { b->resize(1030); }), "the file has 1030"));
  // Numbers that contradict one another, or whose sizes would overflow.
  CHECK(Has(refused([&](std::string* b) { (*b)[word(2)] = 6; }), "contradicts itself"));
  CHECK(Has(refused([&](std::string* b) { (*b)[word(14)] = 6; }), "contradicts itself"));
  CHECK(Has(refused([&](std::string* b) { (*b)[word(16)] = 0; }), "contradicts itself"));
  CHECK(Has(refused([&](std::string* b) { (*b)[word(16)] = 6; }), "contradicts itself"));
  CHECK(Has(refused([&](std::string* b) { (*b)[word(18)] = 2; }), "contradicts itself"));
  CHECK(Has(refused([&](std::string* b) { b->replace(word(2), 4, std::string(4, '\xFF')); }),
            "contradicts itself"));
  CHECK(Has(refused([&](std::string* b) {
              b->replace(word(2), 4, std::string(4, '\xFF'));
              b->replace(word(14), 16, std::string(16, '\xFF'));
            }),
            "get it again"));
  CHECK(Has(refused([&](std::string* b) { (*b)[word(18)] = 0; }), "no loss mask"));
  // Documents.
  CHECK(Has(refused([&](std::string* b) { (*b)[begins] = 1; }),
            "document 1 of 2 begins at token 1, which must be 0 to 0"));
  CHECK(Has(refused([&](std::string* b) { (*b)[begins + 8] = 0; }),
            "document 2 of 2 begins at token 0, which must be 1 to 4"));
  CHECK(Has(refused([&](std::string* b) { (*b)[begins + 8] = 5; }), "which must be 1 to 4"));
  CHECK(Has(refused([&](std::string* b) { (*b)[begins + 15] = '\x80'; }), "which must be 1 to 4"));
  CHECK(Has(refused([&](std::string* b) { b->back() = '\x20'; }), "goes on behind the last token"));
}

}  // namespace
}  // namespace zeroplan
