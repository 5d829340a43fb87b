#include "text/files/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "core/base/error.h"
#include "core/base/long_work.h"
#include "text/files/byte_source.h"
#include "text/files/token_dataset.h"

namespace zeroplan {
namespace {

static_assert(sizeof(TokenFileOrigin::digest) == 8 * sizeof(int32_t));
static_assert(std::endian::native == std::endian::little, "token files are read in place");

constexpr uint64_t kMaxTokens = std::numeric_limits<int32_t>::max();
constexpr int32_t kMost16 = std::numeric_limits<uint16_t>::max();
constexpr size_t kChunkTokens = size_t{1} << 18;

using Header = std::array<int32_t, 29>;  // as much of it as says anything
constexpr size_t kLeastHeaderBytes = 24 * sizeof(int32_t);

// Bytes of a token in a file that has no header.
uint32_t BareTokenBytes(const std::filesystem::path& path) {
  return KindSuffix(path) == ".u32" ? 4 : 2;
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

uint64_t EndOfTokens(const TokenFileExtent& extent) {
  return extent.offset + extent.count * extent.token_bytes;
}

uint64_t MaskBytes(uint64_t tokens) { return (tokens + 7) / 8; }

uint64_t LoadUint64(const void* from) {
  uint64_t value = 0;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void CheckDocuments(const TokenFileExtent& extent, std::span<const std::byte> bytes,
                    const std::filesystem::path& path) {
  const std::byte* begins = bytes.data() + extent.documents_offset;
  uint64_t least = 0;
  uint64_t most = 0;  // of the first one
  for (uint64_t i = 0; i < extent.documents; ++i) {
    const uint64_t begin = LoadUint64(begins + sizeof(uint64_t) * i);
    if (begin < least || begin > most) {
      ThrowUsage(
          "{}: document {} of {} begins at token {}, which must be {} to {}; the file is damaged, "
          "get it again",
          path.string(), i + 1, extent.documents, begin, least, most);
    }
    least = begin + 1;
    most = extent.count - 1;
  }
}

// Sections of a file whose header has their mark.
void FindSections(const Header& header, std::span<const std::byte> bytes,
                  const std::filesystem::path& path, TokenFileExtent* extent) {
  const uint64_t tokens = LoadUint64(&header[14]);
  const uint64_t documents = LoadUint64(&header[16]);
  const int32_t mask = header[18];
  const auto in_llmc = tokens <= kMaxTokens ? static_cast<int32_t>(tokens) : -1;
  if (header[2] != in_llmc || documents > tokens || (documents == 0) != (tokens == 0) ||
      (mask != 0 && mask != 1)) {
    ThrowUsage(
        "{}: the header contradicts itself: {} tokens, by another place {}, {} documents, loss "
        "mask {}; the file is damaged, get it again",
        path.string(), tokens, header[2], documents, mask);
  }
  // What is larger than the file anyway must not overflow.
  const uint64_t at_most = std::min<uint64_t>(tokens, bytes.size());
  extent->count = at_most;
  extent->documents = documents;
  extent->documents_offset = (EndOfTokens(*extent) + 7) / 8 * 8;
  const uint64_t documents_end =
      extent->documents_offset + sizeof(uint64_t) * std::min<uint64_t>(documents, bytes.size());
  const uint64_t expected = documents_end + (mask == 1 ? MaskBytes(at_most) : 0);
  if (tokens != at_most || bytes.size() != expected) {
    ThrowUsage(
        "{}: the header says {} uint{} tokens, {} documents and {} loss mask{}, the file has {} "
        "bytes; get it again",
        path.string(), tokens, 8 * extent->token_bytes, documents, mask == 1 ? "a" : "no",
        tokens == at_most ? fmt::format(" ({} bytes in all)", expected) : "", bytes.size());
  }
  CheckDocuments(*extent, bytes, path);
  if (mask == 0) return;
  extent->mask_offset = documents_end;
  if (tokens % 8 != 0 && std::to_integer<unsigned>(bytes.back()) >> tokens % 8 != 0) {
    ThrowUsage("{}: the loss mask goes on behind the last token; the file is damaged, get it again",
               path.string());
  }
}

}  // namespace

bool IsTokenFile(const std::filesystem::path& path) {
  const std::string extension = KindSuffix(path);
  return extension == ".bin" || extension == ".u16" || extension == ".u32";
}

TokenFileExtent FindTokens(const MappedFile& file, const std::filesystem::path& path) {
  const auto bytes = file.bytes();
  Header header{};
  if (bytes.size() >= kLeastHeaderBytes) {
    std::memcpy(header.data(), bytes.data(), std::min(bytes.size(), sizeof header));
  }
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
  if (KindSuffix(path) != ".bin" && BareTokenBytes(path) != kind->token_bytes) {
    ThrowUsage("{}: the header says uint{} tokens, the name uint{}; rename the file to .bin",
               path.string(), 8 * kind->token_bytes, 8 * BareTokenBytes(path));
  }
  TokenFileExtent extent = {.offset = kTokenFileHeaderBytes,
                            .count = static_cast<uint64_t>(std::max(header[2], 0)),
                            .token_bytes = kind->token_bytes,
                            .has_header = true};
  if (header[13] == kTokenFileSectionsMark) {
    FindSections(header, bytes, path, &extent);
    if (header[24] == kTokenFileLossesMark) {
      extent.losses = {LoadUint64(&header[25]), LoadUint64(&header[27])};
    }
  } else if (const uint64_t expected = EndOfTokens(extent);
             header[2] < 0 || bytes.size() != expected) {
    ThrowUsage(
        "{}: the header says {} uint{} tokens ({} bytes in all), the file has {} bytes; get it "
        "again",
        path.string(), header[2], 8 * kind->token_bytes, expected, bytes.size());
  }
  if (header[3] == kTokenFileOriginMark) {
    TokenFileOrigin& origin = extent.origin.emplace();
    std::memcpy(origin.digest.data(), &header[4], origin.digest.size());
    origin.vocab = header[12];
  }
  return extent;
}

std::optional<bool> ChecksumHolds(const MappedFile& file) {
  if (file.size() < kTokenFileHeaderBytes) return std::nullopt;
  std::array<int32_t, kTokenFileHeaderBytes / sizeof(int32_t)> header{};
  std::memcpy(header.data(), file.bytes().data(), sizeof header);
  if (header[13] != kTokenFileSectionsMark || header[19] != kTokenFileChecksumMark) {
    return std::nullopt;
  }
  Checksum written{};
  std::memcpy(written.data(), &header[20], sizeof written);
  std::fill_n(&header[20], 4, 0);
  ChecksumStream found;
  found.Add(file, kTokenFileHeaderBytes, file.size() - kTokenFileHeaderBytes);
  found.Add(std::as_bytes(std::span(header)));
  return found.Get() == written;
}

void RefuseDamaged(const MappedFile& file, const std::filesystem::path& path) {
  if (ChecksumHolds(file).value_or(true)) return;
  ThrowUsage(
      "{}: its bytes are not those that were written; make it again with zeroplan data tokenize",
      path.string());
}

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, IoHook* hook,
                                 std::optional<TokenFileOrigin> origin)
    : hook_(hook),
      origin_(origin),
      kind_(origin && origin->vocab > kMost16 + 1 ? kTokenFiles32 : kTokenFiles16),
      end_(origin ? origin->vocab : kMost16 + 1),
      temporary_(KindSuffix(path) == ".bin"
                     ? path
                     : throw Error(ExitCode::kUsage,
                                   fmt::format("{}: the name of a token file must end in .bin",
                                               path.string()))),
      file_(DurableFile::Create(temporary_.path(), hook)) {}

void TokenFileWriter::Append(std::span<const int32_t> tokens) {
  Write(tokens);
  counted_ += tokens.size();
  if (mask_.empty()) return;
  const uint64_t before = count_ - tokens.size();
  mask_.resize(MaskBytes(count_));
  for (uint64_t i = before; i < count_; ++i) {
    mask_[i / 8] = static_cast<uint8_t>(mask_[i / 8] | 1u << i % 8);
  }
}

void TokenFileWriter::Append(std::span<const int32_t> tokens, std::span<const uint8_t> counted) {
  ZEROPLAN_CHECK(tokens.size() == counted.size(), "{} tokens, {} marks", tokens.size(),
                 counted.size());
  const auto first_left_out = std::find(counted.begin(), counted.end(), uint8_t{0});
  if (mask_.empty() && first_left_out == counted.end()) return Append(tokens);
  const uint64_t before = count_;
  Write(tokens);
  if (mask_.empty()) {  // all before count
    mask_.assign(MaskBytes(before), 0xFF);
    if (before % 8 != 0) mask_.back() = static_cast<uint8_t>((1u << before % 8) - 1);
  }
  mask_.resize(MaskBytes(count_));
  for (size_t i = 0; i < counted.size(); ++i) {
    if (counted[i] == 0) continue;
    const uint64_t at = before + i;
    mask_[at / 8] = static_cast<uint8_t>(mask_[at / 8] | 1u << at % 8);
    ++counted_;
  }
}

void TokenFileWriter::EndDocument() {
  if (document_begin_ == count_) return;
  documents_.push_back(document_begin_);
  document_begin_ = count_;
}

void TokenFileWriter::WriteAt(uint64_t at, std::span<const std::byte> bytes) {
  checksum_.Add(bytes);
  file_.WriteAt(at, bytes);
}

void TokenFileWriter::Write(std::span<const int32_t> tokens) {
  if (!origin_ && tokens.size() > kMaxTokens - count_) {
    ThrowUsage("{}: more than {} tokens do not fit one token file; split the text over several",
               temporary_.target().string(), kMaxTokens);
  }
  while (!tokens.empty()) {
    ThrowIfInterrupted();
    const auto chunk = tokens.first(std::min(tokens.size(), kChunkTokens));
    for (const int32_t token : chunk) {
      ZEROPLAN_CHECK(token >= 0 && token < end_, "token {}", token);
    }
    const uint64_t at = kTokenFileHeaderBytes + count_ * kind_.token_bytes;
    if (kind_.token_bytes == sizeof(int32_t)) {
      WriteAt(at, std::as_bytes(chunk));
    } else {
      buffer_.assign(chunk.begin(), chunk.end());
      WriteAt(at, std::as_bytes(std::span(buffer_)));
    }
    count_ += chunk.size();
    tokens = tokens.subspan(chunk.size());
  }
}

void TokenFileWriter::WriteSections(FileHeader* header) {
  EndDocument();
  const uint64_t end = kTokenFileHeaderBytes + count_ * kind_.token_bytes;
  const uint64_t documents_at = (end + 7) / 8 * 8;
  const std::array<std::byte, 8> zeros{};
  WriteAt(end, std::span(zeros).first(documents_at - end));
  WriteAt(documents_at, std::as_bytes(std::span(documents_)));
  WriteAt(documents_at + sizeof(uint64_t) * documents_.size(), std::as_bytes(std::span(mask_)));
  const uint64_t documents = documents_.size();
  (*header)[13] = kTokenFileSectionsMark;
  std::memcpy(&(*header)[14], &count_, sizeof count_);
  std::memcpy(&(*header)[16], &documents, sizeof documents);
  (*header)[18] = mask_.empty() ? 0 : 1;
  (*header)[19] = kTokenFileChecksumMark;
  if (losses_ != TokenFileLosses{}) {
    (*header)[24] = kTokenFileLossesMark;
    std::memcpy(&(*header)[25], &losses_.records, sizeof losses_.records);
    std::memcpy(&(*header)[27], &losses_.bytes, sizeof losses_.bytes);
  }
  checksum_.Add(std::as_bytes(std::span(*header)));
  const Checksum checksum = checksum_.Get();
  std::memcpy(&(*header)[20], checksum.data(), sizeof checksum);
}

void TokenFileWriter::Finish() {
  FileHeader header{};
  header[0] = kind_.magic;
  header[1] = kind_.version;
  header[2] = count_ <= kMaxTokens ? static_cast<int32_t>(count_) : -1;
  if (origin_) {
    header[3] = kTokenFileOriginMark;
    std::memcpy(&header[4], origin_->digest.data(), origin_->digest.size());
    header[12] = origin_->vocab;
  }
  if (origin_ || !documents_.empty() || !mask_.empty()) WriteSections(&header);
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
    ThrowIfInterrupted();
    chunk.resize(std::min<uint64_t>(kChunkTokens, data.size() - begin));
    data.Read(begin, chunk);
    writer.Append(chunk);
  }
  writer.Finish();
  return writer.count();
}

}  // namespace zeroplan
