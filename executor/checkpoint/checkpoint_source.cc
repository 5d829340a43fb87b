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

}  // namespace

fs::path FindCheckpoint(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path / "meta.json", error)) {
    // Without a trailing slash, so that parent_path is the folder above.
    return path.has_filename() ? path : path.parent_path();
  }
  if (const auto latest = ReadLatest(path)) return CheckpointsFolder(path) / *latest;
  const auto list = ListCheckpoints(path);
  if (list.empty()) {
    ThrowUsage("{}: there is no checkpoint to resume from (no {})", path.string(),
               (CheckpointsFolder(path) / "latest").string());
  }
  LogWarning("{} is missing; taking the newest checkpoint, {}",
             (CheckpointsFolder(path) / "latest").string(), list.front().folder.string());
  return list.front().folder;
}

CheckpointSource CheckpointSource::Open(const fs::path& path, const ModelSpec& spec,
                                        std::span<const ParamTensor> table) {
  const fs::path folder = FindCheckpoint(path);
  const auto with_way_out = [&](const Error& damage) {
    return Error(damage.code(), fmt::format("{}\n{}", damage.what(), Intact(folder, spec, table)));
  };
  CheckpointMeta meta;
  try {
    meta = ReadCheckpointMeta(folder);
  } catch (const Error& damage) {
    throw with_way_out(damage);
  }
  CheckSameShape(meta.model, spec, (folder / "meta.json").string());
  try {
    return OpenFolder(folder, std::move(meta), table);
  } catch (const Error& damage) {
    throw with_way_out(damage);
  }
}

std::string CheckpointSource::Intact(const fs::path& damaged, const ModelSpec& spec,
                                     std::span<const ParamTensor> table) {
  const fs::path checkpoints = damaged.parent_path();
  for (const CheckpointListing& other : ListCheckpoints(checkpoints.parent_path())) {
    if (other.folder.filename() == damaged.filename()) continue;
    try {
      CheckpointMeta meta = ReadCheckpointMeta(other.folder);
      CheckSameShape(meta.model, spec, other.folder.string());
      OpenFolder(other.folder, std::move(meta), table);
    } catch (const Error&) {
      continue;
    }
    return fmt::format("{} is intact; to resume from it: echo {} > {}", other.folder.string(),
                       other.folder.filename().string(), (checkpoints / "latest").string());
  }
  return fmt::format("no other checkpoint in {} is intact", checkpoints.string());
}

CheckpointSource CheckpointSource::OpenFolder(const fs::path& folder, CheckpointMeta meta,
                                              std::span<const ParamTensor> table) {
  CheckpointSource source;
  source.folder_ = folder;
  source.meta_ = std::move(meta);
  source.pieces_.resize(table.size() * kStates.size());
  std::unordered_map<std::string_view, size_t> index_of;
  for (size_t i = 0; i < table.size(); ++i) index_of.emplace(table[i].name, i);
  for (const CheckpointFile& file : source.meta_.files) source.AddFile(file, index_of);
  for (auto& pieces : source.pieces_) {
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  }
  source.CheckCover(table);
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
  for (const SafetensorsEntry& entry : file.entries()) {
    const auto key = ParseEntryName(entry.name);
    const auto tensor = key ? index_of.find(key->tensor) : index_of.end();
    if (tensor == index_of.end() || entry.dtype != "F32" || entry.shape.size() != 1) {
      ThrowUsage("{}: '{}' is not part of a checkpoint of this model", path.string(),
                 Printable(entry.name));
    }
    pieces_[tensor->second * kStates.size() + key->state].push_back(
        {key->begin, entry.elements, file.Bytes(entry).data()});
  }
}

void CheckpointSource::CheckCover(std::span<const ParamTensor> table) const {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const ParamTensor& tensor = table[i / kStates.size()];
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

void CheckpointSource::Read(const TensorRange& range, std::span<float> out) const {
  const auto& pieces = pieces_.at(static_cast<size_t>(range.tensor) * kStates.size() +
                                  static_cast<size_t>(range.state));
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
    std::memcpy(out.data(), piece->data + first * sizeof(float), count * sizeof(float));
    out = out.subspan(count);
    begin += count;
  }
}

}  // namespace zeroplan
