#include "text/files/token_dataset.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <unordered_set>

#include "core/base/error.h"
#include "core/base/long_work.h"
#include "text/files/data_files.h"
#include "text/files/token_file.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// Tokens that one look takes: few enough to stay in the cache, enough for vectors.
constexpr size_t kLookTokens = 4096;
// How much of a mapped file is read ahead and then let go.
constexpr uint64_t kReadBytes = uint64_t{4} << 20;
// How many tokens of a bare file show what size they have.
constexpr uint64_t kTellingTokens = 4096;

template <typename Token>
Token Load(const std::byte* data) {
  Token value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// `data` as int32; the largest of them. Aligned or not.
template <typename Token>
Token Convert(const std::byte* data, std::span<int32_t> out) {
  Token largest = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const Token token = Load<Token>(data + i * sizeof(Token));
    largest = std::max(largest, token);
    out[i] = static_cast<int32_t>(token);
  }
  return largest;
}

// The largest of `count` tokens.
template <typename Token>
Token Largest(const std::byte* data, size_t count) {
  Token largest = 0;
  size_t done = 0;
  for (; done + kLookTokens <= count; done += kLookTokens) {
    // A fixed count is what the compiler makes vectors of.
    for (size_t i = 0; i < kLookTokens; ++i) {
      largest = std::max(largest, Load<Token>(data + (done + i) * sizeof(Token)));
    }
  }
  for (; done < count; ++done) {
    largest = std::max(largest, Load<Token>(data + done * sizeof(Token)));
  }
  return largest;
}

// uint32 tokens below `vocab`, read as uint16: every second one is the upper half of an id, the
// others are anything.
bool LooksLikeUint32(std::span<const std::byte> bytes, int64_t vocab) {
  if (vocab <= 65536 || bytes.size() % 4 != 0) return false;
  const uint64_t tokens = std::min<uint64_t>(bytes.size() / 4, kTellingTokens);
  std::unordered_set<uint16_t> lower, upper;
  for (uint64_t i = 0; i < tokens; ++i) {
    if (Load<uint32_t>(bytes.data() + 4 * i) >= vocab) return false;
    lower.insert(Load<uint16_t>(bytes.data() + 4 * i));
    upper.insert(Load<uint16_t>(bytes.data() + 4 * i + 2));
  }
  return tokens >= 64 && lower.size() > 8 * upper.size();
}

}  // namespace

TokenDataset TokenDataset::Open(std::span<const std::string> paths) {
  if (paths.empty()) ThrowUsage("⟦data⟧: no file or folder given");
  TokenDataset data;
  for (const fs::path& file : DataFiles(paths)) data.Add(file);
  if (data.pieces_.empty()) {
    ThrowUsage("{}{}: no tokens, every file is empty", paths[0], paths.size() > 1 ? ", ..." : "");
  }
  return data;
}

void TokenDataset::Add(const fs::path& path) {
  Piece piece{.path = path, .file = MappedFile::Open(path), .begin = size_};
  if (piece.file.size() == 0) return;
  const bool is_text = !IsTokenFile(path);
  const auto extent =
      is_text ? TokenFileExtent{0, piece.file.size(), 1} : FindTokens(piece.file, path);
  if (extent.count == 0) return;
  if (!pieces_.empty() && is_text != is_text_) {
    const fs::path& first = pieces_.front().path;
    RefuseMixed(is_text ? path : first, is_text ? first : path);
  }
  is_text_ = is_text;
  piece.data = piece.file.bytes().data() + extent.offset;
  piece.count = extent.count;
  piece.token_bytes = extent.token_bytes;
  piece.is_bare = !is_text && !extent.has_header;
  const std::byte* file = piece.file.bytes().data();
  if (extent.documents > 0) {
    piece.documents = extent.documents;
    piece.document_begins = file + extent.documents_offset;
  }
  if (extent.mask_offset) {
    piece.mask = file + *extent.mask_offset;
    has_mask_ = true;
  }
  documents_ += piece.documents;
  size_ += extent.count;
  pieces_.push_back(std::move(piece));
}

std::optional<int64_t> TokenDataset::vocab_needed() const {
  return is_text_ ? std::optional(kByteTokens) : std::nullopt;
}

void TokenDataset::SetVocab(int64_t vocab) {
  if (is_text_ && vocab < kByteTokens) {
    ThrowUsage("{}: text has {} tokens (its bytes), the model's vocabulary only {}",
               pieces_.front().path.string(), kByteTokens, vocab);
  }
  for (const Piece& piece : pieces_) {
    if (!piece.is_bare || piece.token_bytes != 2) continue;
    if (LooksLikeUint32({piece.data, piece.count * 2}, vocab)) {
      ThrowUsage(
          "{}: a bare file of this name holds uint16 tokens, but these look like uint32 ones of "
          "the "
          "model's vocabulary of {}; name the file .u32",
          piece.path.string(), vocab);
    }
  }
  vocab_ = vocab;
}

size_t TokenDataset::PieceAt(uint64_t position) const {
  const auto next = std::upper_bound(pieces_.begin(), pieces_.end(), position,
                                     [](uint64_t at, const Piece& p) { return at < p.begin; });
  return static_cast<size_t>(next - pieces_.begin()) - 1;
}

uint64_t TokenDataset::PartSize(int part, int parts) const {
  const auto border = [&](int i) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(size_) * static_cast<unsigned>(i) /
                                 static_cast<unsigned>(parts));
  };
  return border(part + 1) - border(part);
}

uint64_t TokenDataset::CheckVocab(int part, int parts, uint64_t budget_bytes) const {
  ZEROPLAN_CHECK(part >= 0 && part < parts, "part {} of {}", part, parts);
  uint64_t begin = 0;
  for (int i = 0; i < part; ++i) begin += PartSize(i, parts);
  const uint64_t end = begin + PartSize(part, parts);
  // What of each file lies in the part, and has to be looked at.
  struct Share {
    const Piece* piece;
    uint64_t first, last;
  };
  std::vector<Share> shares;
  uint64_t bytes = 0, looked = 0;
  for (size_t i = begin < end ? PieceAt(begin) : pieces_.size();
       i < pieces_.size() && pieces_[i].begin < end; ++i) {
    const Piece& piece = pieces_[i];
    const uint64_t first = std::max(begin, piece.begin) - piece.begin;
    const uint64_t last = std::min(end - piece.begin, piece.count);
    if (CannotBeOutside(piece)) {
      looked += last - first;
      continue;
    }
    shares.push_back({&piece, first, last});
    bytes += (last - first) * piece.token_bytes;
  }
  // Blocks so far apart that they add up to the budget.
  const double apart = bytes <= budget_bytes || budget_bytes == 0
                           ? 1
                           : static_cast<double>(bytes) / static_cast<double>(budget_bytes);
  for (const auto& [piece, first, last] : shares) {
    const uint64_t block = kReadBytes / piece->token_bytes;
    const auto stride = static_cast<uint64_t>(static_cast<double>(block) * apart);
    for (uint64_t at = first; at < last; at += stride) {
      const uint64_t count = std::min(block, last - at);
      ThrowIfInterrupted();
      CheckTokens(*piece, at, count);
      looked += count;
    }
  }
  return looked;
}

bool TokenDataset::CannotBeOutside(const Piece& piece) const {
  return piece.token_bytes == 1 || (piece.token_bytes == 2 && vocab_ > 65535);
}

void TokenDataset::CheckTokens(const Piece& piece, uint64_t first, uint64_t count) const {
  const std::byte* data = piece.data + first * piece.token_bytes;
  const auto offset = static_cast<uint64_t>(data - piece.file.bytes().data());
  piece.file.Prefetch(offset, 2 * count * piece.token_bytes);
  const bool is_16 = piece.token_bytes == 2;
  const uint32_t largest = is_16 ? Largest<uint16_t>(data, count) : Largest<uint32_t>(data, count);
  if (largest >= vocab_) {
    for (uint64_t i = 0; i < count; ++i) {
      const uint32_t token = is_16 ? Load<uint16_t>(data + 2 * i) : Load<uint32_t>(data + 4 * i);
      if (token >= vocab_) ThrowOutside(piece, first + i, token);
    }
  }
  piece.file.DropResident(offset, count * piece.token_bytes);
}

void TokenDataset::ThrowOutside(const Piece& piece, uint64_t position, uint32_t token) const {
  ThrowUsage(
      "{}: token {} at position {} is outside the model's vocabulary of {}; make the file with "
      "this model's tokenizer, or train a model of at least {} tokens; where tokens were added to "
      "the tokenizer, ⟦resize_embeddings⟧ adds them to the model",
      piece.path.string(), token, position, vocab_, uint64_t{token} + 1);
}

std::string TokenDataset::Digest(uint64_t most_bytes) const {
  // The parts of each file: tokens, borders of documents, the mask.
  struct Part {
    const Piece* piece;
    const std::byte* data;
    uint64_t bytes;
  };
  std::vector<Part> parts;
  uint64_t total = 0;
  const auto add_part = [&](const Piece& piece, const std::byte* data, uint64_t bytes) {
    if (data == nullptr) return;
    parts.push_back({&piece, data, bytes});
    total += bytes;
  };
  for (const Piece& piece : pieces_) {
    add_part(piece, piece.data, piece.count * piece.token_bytes);
    add_part(piece, piece.document_begins, 8 * piece.documents);
    add_part(piece, piece.mask, (piece.count + 7) / 8);
  }
  const double apart = std::max(
      1.0, static_cast<double>(total) / static_cast<double>(std::max(most_bytes, kReadBytes)));
  ChecksumStream checksum;
  uint64_t looked = 0;
  for (const auto& [piece, data, bytes] : parts) {
    const std::array<uint64_t, 2> shape = {bytes, piece->token_bytes};
    checksum.Add(std::as_bytes(std::span(shape)));
    const auto offset = static_cast<uint64_t>(data - piece->file.bytes().data());
    const auto stride = static_cast<uint64_t>(static_cast<double>(kReadBytes) * apart);
    for (uint64_t at = 0; at < bytes; at += stride) {
      const uint64_t block = std::min(kReadBytes, bytes - at);
      checksum.Add(piece->file, offset + at, block);
      looked += block;
    }
  }
  const Checksum both = checksum.Get();
  std::string text = fmt::format("{:016x}{:016x}, {} tokens", both[0], both[1], size_);
  if (looked < total) {
    text += fmt::format(", {:.0f} % of the bytes compared",
                        100.0 * static_cast<double>(looked) / static_cast<double>(total));
  }
  return text;
}

bool TokenDataset::any_counts() const {
  return std::any_of(pieces_.begin(), pieces_.end(), [](const Piece& piece) {
    if (piece.mask == nullptr) return true;
    const std::span<const std::byte> mask(piece.mask, (piece.count + 7) / 8);
    return std::any_of(mask.begin(), mask.end(), [](std::byte b) { return b != std::byte{0}; });
  });
}

uint64_t TokenDataset::counted() const {
  uint64_t counted = 0;
  for (const Piece& piece : pieces_) {
    if (piece.mask == nullptr) {
      counted += piece.count;
      continue;
    }
    // The bits behind the last token are 0 (token_file.h).
    for (const std::byte bits : std::span(piece.mask, (piece.count + 7) / 8)) {
      counted += static_cast<uint64_t>(std::popcount(std::to_integer<unsigned>(bits)));
    }
  }
  return counted;
}

uint64_t TokenDataset::FirstDocumentFrom(const Piece& piece, uint64_t position) {
  if (position <= piece.begin) return 0;
  uint64_t low = 0, high = piece.documents;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (piece.begin + DocumentBegin(piece, middle) < position) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

void TokenDataset::MaskTargets(uint64_t begin, std::span<int32_t> targets) const {
  if (!has_mask_) return;
  ZEROPLAN_CHECK(begin <= size_ && targets.size() <= size_ - begin, "tokens {} + {} of {}", begin,
                 targets.size(), size_);
  for (size_t i = targets.empty() ? 0 : PieceAt(begin); !targets.empty(); ++i) {
    const Piece& piece = pieces_[i];
    const uint64_t first = begin - piece.begin;
    const size_t count = std::min<uint64_t>(targets.size(), piece.count - first);
    for (size_t k = 0; piece.mask != nullptr && k < count; ++k) {
      const uint64_t token = first + k;
      const auto bits = std::to_integer<unsigned>(piece.mask[token / 8]);
      if ((bits >> token % 8 & 1) == 0) targets[k] = -1;
    }
    targets = targets.subspan(count);
    begin += count;
  }
}

void TokenDataset::Read(uint64_t begin, std::span<int32_t> out) const {
  ZEROPLAN_CHECK(begin <= size_ && out.size() <= size_ - begin, "tokens {} + {} of {}", begin,
                 out.size(), size_);
  for (size_t i = out.empty() ? 0 : PieceAt(begin); !out.empty(); ++i) {
    const Piece& piece = pieces_[i];
    const uint64_t first = begin - piece.begin;
    const size_t count = std::min<uint64_t>(out.size(), piece.count - first);
    const std::byte* data = piece.data + first * piece.token_bytes;
    const auto part = out.first(count);
    const uint32_t largest = piece.token_bytes == 1   ? Convert<uint8_t>(data, part)
                             : piece.token_bytes == 2 ? Convert<uint16_t>(data, part)
                                                      : Convert<uint32_t>(data, part);
    if (largest >= vocab_) {
      for (size_t k = 0; k < count; ++k) {
        const auto token = static_cast<uint32_t>(part[k]);
        if (token >= vocab_) ThrowOutside(piece, first + k, token);
      }
    }
    out = out.subspan(count);
    begin += count;
  }
}

}  // namespace zeroplan
