#include "executor/data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "core/base/error.h"
#include "executor/data/token_dataset.h"

namespace zeroplan {
namespace {

static_assert(sizeof(TokenFileOrigin::digest) == 8 * sizeof(int32_t));
static_assert(std::endian::native == std::endian::little, "token files are read in place");

constexpr uint64_t kMaxTokens = std::numeric_limits<int32_t>::max();
constexpr int32_t kMost16 = std::numeric_limits<uint16_t>::max();
constexpr size_t kChunkTokens = size_t{1} << 18;

// Of a file that has no header.
uint32_t BareTokenBytes(const std::filesystem::path& path) {
  return path.extension() == ".u32" ? 4 : 2;
}

TokenFileExtent FindBareTokens(uint64_t bytes, const std::filesystem::path& path) {
  const uint32_t token_bytes = BareTokenBytes(path);
  if (bytes % token_bytes != 0) {
    ThrowUsage(
        "{}: {} bytes, not a multiple of {}, cannot be uint{} tokens; text files must not end in "
        ".bin, .u16 or .u32",
        path.string(), bytes, token_bytes, 8 * token_bytes);
  }
  return {0, bytes / token_bytes, token_bytes, false};
}

}  // namespace

bool IsTokenFile(const std::filesystem::path& path) {
  const auto extension = path.extension();
  return extension == ".bin" || extension == ".u16" || extension == ".u32";
}

TokenFileExtent FindTokens(const MappedFile& file, const std::filesystem::path& path) {
  const auto bytes = file.bytes();
  std::array<int32_t, 13> header{};
  if (bytes.size() >= sizeof header) std::memcpy(header.data(), bytes.data(), sizeof header);
  // As bare tokens the magic numbers would start with tokens 55,432 and 55,713, past GPT-2's
  // 50,257, or be tokens past 20 million.
  const TokenFileKind* kind = nullptr;
  for (const TokenFileKind* known : {&kTokenFiles16, &kTokenFiles32}) {
    if (header[0] == known->magic) kind = known;
  }
  if (kind == nullptr) return FindBareTokens(bytes.size(), path);
  if (header[1] != kind->version) {
    ThrowUsage("{}: token file version {}, with magic number {} only version {} is supported",
               path.string(), header[1], kind->magic, kind->version);
  }
  if (path.extension() != ".bin" && BareTokenBytes(path) != kind->token_bytes) {
    ThrowUsage("{}: the header says uint{} tokens, the name uint{}; rename the file to .bin",
               path.string(), 8 * kind->token_bytes, 8 * BareTokenBytes(path));
  }
  const uint64_t expected =
      kTokenFileHeaderBytes + kind->token_bytes * static_cast<uint64_t>(std::max(header[2], 0));
  if (header[2] < 0 || bytes.size() != expected) {
    ThrowUsage(
        "{}: the header says {} uint{} tokens ({} bytes in all), the file has {} bytes; get it "
        "again",
        path.string(), header[2], 8 * kind->token_bytes, expected, bytes.size());
  }
  TokenFileExtent extent = {kTokenFileHeaderBytes, static_cast<uint64_t>(header[2]),
                            kind->token_bytes, true, std::nullopt};
  if (header[3] == kTokenFileOriginMark) {
    TokenFileOrigin& origin = extent.origin.emplace();
    std::memcpy(origin.digest.data(), &header[4], origin.digest.size());
    origin.vocab = header[12];
  }
  return extent;
}

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, IoHook* hook,
                                 std::optional<TokenFileOrigin> origin)
    : hook_(hook),
      origin_(origin),
      kind_(origin && origin->vocab > kMost16 + 1 ? kTokenFiles32 : kTokenFiles16),
      end_(origin ? origin->vocab : kMost16 + 1),
      temporary_(path.extension() == ".bin"
                     ? path
                     : throw Error(ExitCode::kUsage,
                                   fmt::format("{}: the name of a token file must end in .bin",
                                               path.string()))),
      file_(DurableFile::Create(temporary_.path(), hook)) {}

void TokenFileWriter::Append(std::span<const int32_t> tokens) {
  if (tokens.size() > kMaxTokens - count_) {
    ThrowUsage("{}: more than {} tokens do not fit one token file; split the text over several",
               temporary_.target().string(), kMaxTokens);
  }
  while (!tokens.empty()) {
    const auto chunk = tokens.first(std::min(tokens.size(), kChunkTokens));
    for (const int32_t token : chunk) {
      ZEROPLAN_CHECK(token >= 0 && token < end_, "token {}", token);
    }
    const uint64_t at = kTokenFileHeaderBytes + count_ * kind_.token_bytes;
    if (kind_.token_bytes == sizeof(int32_t)) {
      file_.WriteAt(at, std::as_bytes(chunk));
    } else {
      buffer_.assign(chunk.begin(), chunk.end());
      file_.WriteAt(at, std::as_bytes(std::span(buffer_)));
    }
    count_ += chunk.size();
    tokens = tokens.subspan(chunk.size());
  }
}

void TokenFileWriter::Finish() {
  std::array<int32_t, kTokenFileHeaderBytes / sizeof(int32_t)> header{};
  header[0] = kind_.magic;
  header[1] = kind_.version;
  header[2] = static_cast<int32_t>(count_);
  if (origin_) {
    header[3] = kTokenFileOriginMark;
    std::memcpy(&header[4], origin_->digest.data(), origin_->digest.size());
    header[12] = origin_->vocab;
  }
  file_.WriteAt(0, std::as_bytes(std::span(header)));
  file_.Finish();
  temporary_.Commit(hook_);
}

void WriteTokenFile(const std::filesystem::path& path, std::span<const int32_t> tokens,
                    IoHook* hook) {
  TokenFileWriter writer(path, hook);
  writer.Append(tokens);
  writer.Finish();
}

uint64_t TokenizeText(std::span<const std::string> texts, const std::filesystem::path& path,
                      IoHook* hook) {
  const TokenDataset data = TokenDataset::Open(texts);
  if (!data.is_text()) ThrowUsage("{}: is a token file already, not text", texts[0]);
  TokenFileWriter writer(path, hook);
  std::vector<int32_t> chunk;
  for (uint64_t begin = 0; begin < data.size(); begin += chunk.size()) {
    chunk.resize(std::min<uint64_t>(kChunkTokens, data.size() - begin));
    data.Read(begin, chunk);
    writer.Append(chunk);
  }
  writer.Finish();
  return writer.count();
}

}  // namespace zeroplan
