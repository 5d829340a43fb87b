#include "executor/checkpoint/checkpoint_source.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/state_checksum.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr std::array kStates = {StateKind::kMaster, StateKind::kAdamM, StateKind::kAdamV};

struct EntryKey {
  std::string_view tensor;
  size_t state = 0;
  uint64_t begin = 0;
};

// Takes "NAME|STATE|BEGIN" apart.
std::optional<EntryKey> ParseEntryName(std::string_view name) {
  const size_t second = name.rfind('|');
  if (second == std::string_view::npos || second == 0) return std::nullopt;
  const size_t first = name.rfind('|', second - 1);
  if (first == std::string_view::npos) return std::nullopt;
  EntryKey key{.tensor = name.substr(0, first)};
  const std::string_view state = name.substr(first + 1, second - first - 1);
  while (key.state < kStates.size() && StateKindName(kStates[key.state]) != state) ++key.state;
  if (key.state == kStates.size()) return std::nullopt;
  const char* end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + second + 1, end, key.begin);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return key;
}

std::string HowToTake(const fs::path& folder, std::string_view state) {
  return fmt::format("{} is {}; to resume from it: echo {} > {}", folder.string(), state,
                     folder.filename().string(), (folder.parent_path() / "latest").string());
}

// One sentence about the newest checkpoint below `save_dir` whose meta.json can be read.
std::string Readable(const fs::path& save_dir) {
  const auto list = ListCheckpoints(save_dir);
  if (list.empty() || list.front().serial == 0) {
    return fmt::format("no checkpoint in {} can be read", CheckpointsFolder(save_dir).string());
  }
  return HowToTake(list.front().folder, "there");
}

constexpr uint64_t kVerifiedAtOnce = uint64_t{1} << 16;  // elements

}  // namespace

fs::path FindCheckpoint(const fs::path& path) {
  // Without a trailing slash, so that parent_path is the folder above.
  const fs::path folder = path.has_filename() ? path : path.parent_path();
  std::error_code error;
  if (fs::exists(folder / "meta.json", error) || IsStepFolderName(folder.filename().native())) {
    return folder;
  }
  std::optional<std::string> latest;
  try {
    latest = ReadLatest(path);
  } catch (const Error& damage) {
    throw Error(damage.code(), fmt::format("{}\n{}", damage.what(), Readable(path)));
  }
  if (latest) return CheckpointsFolder(path) / *latest;
  const auto list = ListCheckpoints(path);
  if (list.empty()) {
    ThrowUsage("{}: there is no checkpoint to resume from (no {})", path.string(),
               (CheckpointsFolder(path) / "latest").string());
  }
  LogWarning("{} is missing; taking the newest checkpoint, {}",
             (CheckpointsFolder(path) / "latest").string(), list.front().folder.string());
  return list.front().folder;
}

template <typename Fn>
auto CheckpointSource::WithWayOut(const fs::path& folder, const ModelSpec& spec,
                                  std::span<const ParamTensor> table, const Fn& look) {
  try {
    return look();
  } catch (const Error& damage) {
    throw Error(damage.code(), fmt::format("{}\n{}", damage.what(), Intact(folder, spec, table)));
  }
}

CheckpointSource CheckpointSource::Open(const fs::path& path, const ModelSpec& spec,
                                        std::span<const ParamTensor> table) {
  const fs::path folder = FindCheckpoint(path);
  CheckpointMeta meta = WithWayOut(folder, spec, table, [&] { return ReadCheckpointMeta(folder); });
  CheckSameShape(meta.model, spec, (folder / "meta.json").string());
  return WithWayOut(folder, spec, table,
                    [&] { return OpenFolder(folder, std::move(meta), table); });
}

std::string CheckpointSource::Intact(const fs::path& damaged, const ModelSpec& spec,
                                     std::span<const ParamTensor> table) {
  const fs::path checkpoints = damaged.parent_path();
  for (const CheckpointListing& other : ListCheckpoints(checkpoints.parent_path())) {
    if (other.folder.filename() == damaged.filename()) continue;
    try {
      CheckpointMeta meta = ReadCheckpointMeta(other.folder);
      CheckSameShape(meta.model, spec, other.folder.string());
      const CheckpointSource source = OpenFolder(other.folder, std::move(meta), table);
      source.VerifyAll();
    } catch (const Error&) {
      continue;
    }
    return HowToTake(other.folder, "intact");
  }
  return fmt::format("no other checkpoint in {} is intact", checkpoints.string());
}

CheckpointSource CheckpointSource::OpenFolder(const fs::path& folder, CheckpointMeta meta,
                                              std::span<const ParamTensor> table) {
  CheckpointSource source;
  source.folder_ = folder;
  source.meta_ = std::move(meta);
  source.table_.assign(table.begin(), table.end());
  source.pieces_.resize(table.size() * kStates.size());
  std::unordered_map<std::string_view, size_t> index_of;
  for (size_t i = 0; i < table.size(); ++i) index_of.emplace(table[i].name, i);
  for (const CheckpointFile& file : source.meta_.files) source.AddFile(file, index_of);
  for (auto& pieces : source.pieces_) {
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  }
  source.CheckCover();
  source.verified_ = std::make_unique<std::atomic<bool>[]>(source.checksums_.size());
  return source;
}

void CheckpointSource::AddFile(const CheckpointFile& expected,
                               const std::unordered_map<std::string_view, size_t>& index_of) {
  const fs::path path = folder_ / expected.name;
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error) ThrowUsage("{}: {}", path.string(), error.message());
  if (bytes != expected.bytes) {
    ThrowUsage("{}: {} bytes, saved with {}: the file was cut off or changed", path.string(), bytes,
               expected.bytes);
  }
  const SafetensorsFile& file = files_.emplace_back(SafetensorsFile::Open(path));
  if (file.header_hash() != expected.header_hash) {
    ThrowUsage("{}: the header is not the one that was saved", path.string());
  }
  size_t chunk = checksums_.size();
  checksums_.insert(checksums_.end(), expected.checksums.begin(), expected.checksums.end());
  for (const SafetensorsEntry& entry : file.entries()) {
    const auto key = ParseEntryName(entry.name);
    const auto tensor = key ? index_of.find(key->tensor) : index_of.end();
    if (tensor == index_of.end() || entry.dtype != "F32" || entry.shape.size() != 1) {
      ThrowUsage("{}: '{}' is not part of a checkpoint of this model", path.string(),
                 Printable(entry.name));
    }
    pieces_[tensor->second * kStates.size() + key->state].push_back(
        {key->begin, entry.elements, file.Bytes(entry).data(), chunk, files_.size() - 1});
    chunk += ChecksumCount(entry.elements);
  }
  if (chunk != checksums_.size()) {
    ThrowUsage("{}: files: {} has {} checksums for {} chunks", (folder_ / "meta.json").string(),
               expected.name, expected.checksums.size(),
               expected.checksums.size() + chunk - checksums_.size());
  }
}

void CheckpointSource::CheckCover() const {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const ParamTensor& tensor = table_[i / kStates.size()];
    const auto state = StateKindName(kStates[i % kStates.size()]);
    uint64_t covered = 0;
    for (const Piece& piece : pieces_[i]) {
      if (piece.begin != covered || piece.count > tensor.elements() - covered) {
        ThrowUsage("{}: {} of {}: elements {} + {} where {} of {} is next", folder_.string(), state,
                   tensor.name, piece.begin, piece.count, covered, tensor.elements());
      }
      covered += piece.count;
    }
    if (covered != tensor.elements()) {
      ThrowUsage("{}: {} of {}: elements from {} to {} are missing; is a rank's file missing?",
                 folder_.string(), state, tensor.name, covered, tensor.elements());
    }
  }
}

void CheckpointSource::VerifyPiece(const Piece& piece, size_t tensor_and_state, uint64_t begin,
                                   uint64_t count) const {
  for (uint64_t c = begin / kChecksumElements; c * kChecksumElements < begin + count; ++c) {
    const size_t index = piece.first_chunk + c;
    if (verified_[index].load(std::memory_order_relaxed)) continue;
    const uint64_t first = c * kChecksumElements;
    const uint64_t elements = std::min(kChecksumElements, piece.count - first);
    // A file's tensors need not be aligned.
    std::vector<float> part(std::min(elements, kVerifiedAtOnce));
    uint64_t sum = 0;
    for (uint64_t done = 0; done < elements; done += part.size()) {
      part.resize(std::min<uint64_t>(part.size(), elements - done));
      std::memcpy(part.data(), piece.data + (first + done) * sizeof(float),
                  part.size() * sizeof(float));
      sum += StateChecksum(first + done, part);
    }
    if (sum != checksums_[index]) {
      ThrowUsage("{}: {} of {}, elements {} + {}: the data is not what was saved",
                 files_[piece.file].path().string(),
                 StateKindName(kStates[tensor_and_state % kStates.size()]),
                 table_[tensor_and_state / kStates.size()].name, piece.begin + first, elements);
    }
    verified_[index].store(true, std::memory_order_relaxed);
  }
}

void CheckpointSource::VerifyAll() const {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    for (const Piece& piece : pieces_[i]) VerifyPiece(piece, i, 0, piece.count);
  }
}

void CheckpointSource::Verify() const {
  WithWayOut(folder_, meta_.model, table_, [&] { VerifyAll(); });
}

void CheckpointSource::Read(const TensorRange& range, std::span<float> out) const {
  const size_t index =
      static_cast<size_t>(range.tensor) * kStates.size() + static_cast<size_t>(range.state);
  const std::vector<Piece>& pieces = pieces_.at(index);
  const uint64_t elements = pieces.empty() ? 0 : pieces.back().begin + pieces.back().count;
  ZEROPLAN_CHECK(
      out.size() == range.count && range.begin <= elements && range.count <= elements - range.begin,
      "tensor {}: {} + {} of {} elements into {}", range.tensor, range.begin, range.count, elements,
      out.size());
  if (out.empty()) return;
  auto piece = std::upper_bound(pieces.begin(), pieces.end(), range.begin,
                                [](uint64_t at, const Piece& p) { return at < p.begin; }) -
               1;
  for (uint64_t begin = range.begin; !out.empty(); ++piece) {
    const uint64_t first = begin - piece->begin;
    const size_t count = std::min<uint64_t>(out.size(), piece->count - first);
    WithWayOut(folder_, meta_.model, table_, [&] { VerifyPiece(*piece, index, first, count); });
    std::memcpy(out.data(), piece->data + first * sizeof(float), count * sizeof(float));
    out = out.subspan(count);
    begin += count;
  }
}

}  // namespace zeroplan
