#include "executor/checkpoint/checkpoint_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/hash.h"
#include "core/base/limits.h"
#include "core/base/log.h"
#include "core/base/long_work.h"
#include "core/model/param_table.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/safetensors.h"
#include "executor/checkpoint/shard_writer.h"
#include "executor/kernels/cpu_levels.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

struct EntryKey {
  std::string_view tensor;
  size_t kind = 0;
  uint64_t begin = 0;
};

// Takes "NAME|KIND|BEGIN" apart.
std::optional<EntryKey> ParseEntryName(std::string_view name) {
  const size_t second = name.rfind('|');
  if (second == std::string_view::npos || second == 0) return std::nullopt;
  const size_t first = name.rfind('|', second - 1);
  if (first == std::string_view::npos) return std::nullopt;
  EntryKey key{.tensor = name.substr(0, first)};
  const std::string_view kind = name.substr(first + 1, second - first - 1);
  while (key.kind < kEntryKinds && EntryKindName(key.kind) != kind) ++key.kind;
  if (key.kind == kEntryKinds) return std::nullopt;
  const char* end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + second + 1, end, key.begin);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return key;
}

// The dtypes that an entry may have.
std::optional<Dtype> EntryDtype(size_t kind, std::string_view name) {
  if (name == "F32") return Dtype::kF32;
  if (IsScaleKind(kind)) return std::nullopt;
  if (name == "BF16") return Dtype::kBF16;
  if (name == "F16") return Dtype::kF16;
  if (name == "U8" && kind != EntryKind(StateKind::kMaster)) return Dtype::kU8;
  return std::nullopt;
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

constexpr size_t kReadAtOnce = size_t{1} << 18;  // elements
constexpr size_t kOpenFiles = 64;

// Whether a file cannot be opened for a reason that lies with this process.
bool IsOurs(int error) {
  return error == EACCES || error == EPERM || error == EMFILE || error == ENFILE || error == ENOMEM;
}

UniqueFd OpenShard(const fs::path& path, uint64_t expected_bytes) {
  UniqueFd fd;
  struct stat info {};
  const int error = WithIoRetries("open", path, [&] {
    fd = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    return fd && ::fstat(fd.get(), &info) == 0 ? 0 : errno;
  });
  if (IsOurs(error)) ThrowRuntime("{}: {}", path.string(), std::strerror(error));
  if (error != 0) ThrowUsage("{}: {}", path.string(), std::strerror(error));
  if (!S_ISREG(info.st_mode)) ThrowUsage("{}: not a regular file", path.string());
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (bytes != expected_bytes) {
    ThrowUsage("{}: {} bytes, saved with {}: the file was cut off or changed", path.string(), bytes,
               expected_bytes);
  }
  return fd;
}

}  // namespace

fs::path FindCheckpoint(const fs::path& path) {
  // Without a trailing slash, so that parent_path is the folder above.
  fs::path folder = path.has_filename() ? path : path.parent_path();
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

ResumeCandidates ListCandidates(const fs::path& save_dir) {
  ResumeCandidates candidates;
  const fs::path latest = CheckpointsFolder(save_dir) / "latest";
  try {
    if (const auto name = ReadLatest(save_dir)) {
      std::error_code error;
      const fs::path folder = CheckpointsFolder(save_dir) / *name;
      if (fs::is_directory(folder, error)) {
        candidates.folders.push_back(folder);
      } else {
        candidates.latest_damage = fmt::format("{}: {}, which it names, is not there",
                                               latest.string(), folder.filename().string());
      }
    } else {
      LogWarning("{} is missing; the newest checkpoint counts", latest.string());
    }
  } catch (const Error& damage) {
    if (damage.code() != ExitCode::kUsage) throw;
    candidates.latest_damage = damage.what();
  }
  for (const CheckpointListing& listing : ListCheckpoints(save_dir)) {
    if (candidates.folders.empty() || listing.folder != candidates.folders.front()) {
      candidates.folders.push_back(listing.folder);
    }
  }
  return candidates;
}

template <typename Fn>
auto CheckpointSource::WithWayOut(const Fn& look) const {
  try {
    return look();
  } catch (const Error& damage) {
    if (damage.code() != ExitCode::kUsage) throw;
    throw Error(damage.code(), fmt::format("{}\n{}", damage.what(), Intact()));
  }
}

CheckpointSource CheckpointSource::Begin(const fs::path& folder, const ModelSpec& spec,
                                         std::span<const ParamTensor> table) {
  CheckpointSource source;
  source.folder_ = folder;
  source.spec_ = spec;
  source.table_.assign(table.begin(), table.end());
  for (size_t i = 0; i < table.size(); ++i) source.index_.emplace(table[i].name, i);
  source.meta_ = ReadCheckpointMeta(folder);
  for (const CheckpointFile& file : source.meta_.files) {
    source.first_chunk_.push_back(source.checksums_.size());
    source.checksums_.insert(source.checksums_.end(), file.checksums.begin(), file.checksums.end());
  }
  source.pieces_.resize(table.size() * kEntryKinds);
  source.verified_ = std::make_unique<std::atomic<bool>[]>(source.checksums_.size());
  return source;
}

CheckpointSource CheckpointSource::Open(const fs::path& path, const ModelSpec& spec,
                                        std::span<const ParamTensor> table) {
  CheckpointSource nothing;  // for its way out, while meta.json is not read
  nothing.folder_ = FindCheckpoint(path);
  nothing.spec_ = spec;
  nothing.table_.assign(table.begin(), table.end());
  CheckpointSource source = nothing.WithWayOut([&] { return Begin(nothing.folder_, spec, table); });
  CheckSameShape(source.meta_.model, spec, (source.folder_ / "meta.json").string());
  nothing.WithWayOut([&] { source.IndexAll(); });
  return source;
}

std::string CheckpointSource::Intact() const {
  const fs::path checkpoints = folder_.parent_path();
  for (const CheckpointListing& other : ListCheckpoints(checkpoints.parent_path())) {
    if (other.folder.filename() == folder_.filename()) continue;
    try {
      CheckpointSource source = Begin(other.folder, spec_, table_);
      CheckSameShape(source.meta_.model, spec_, other.folder.string());
      source.IndexAll();
      source.VerifyAll();
    } catch (const Error&) {
      continue;
    }
    return HowToTake(other.folder, "intact");
  }
  return fmt::format("no other checkpoint in {} is intact", checkpoints.string());
}

uint64_t CheckpointSource::file_bytes() const {
  uint64_t bytes = 0;
  for (const CheckpointFile& file : meta_.files) bytes += file.bytes;
  return bytes;
}

std::shared_ptr<const UniqueFd> CheckpointSource::FileAt(size_t file) const {
  const std::lock_guard lock(cache_->mutex);
  for (const auto& [index, fd] : cache_->files) {
    if (index == file) return fd;
  }
  if (cache_->files.size() == kOpenFiles) cache_->files.pop_front();
  auto fd = std::make_shared<const UniqueFd>(OpenShard(PathOf(file), meta_.files[file].bytes));
  ++cache_->opened;
  return cache_->files.emplace_back(file, std::move(fd)).second;
}

void CheckpointSource::ReadBytes(size_t file, uint64_t offset, std::span<std::byte> out) const {
  const std::shared_ptr<const UniqueFd> fd = FileAt(file);
  while (!out.empty()) {
    ssize_t got = 0;
    const int error = WithIoRetries("read", PathOf(file), [&] {
      got = ::pread(fd->get(), out.data(), out.size(), static_cast<off_t>(offset));
      return got < 0 ? errno : 0;
    });
    if (error == EINTR) continue;
    if (error != 0) {
      ThrowUsage("{}: cannot read: {}", PathOf(file).string(), std::strerror(error));
    }
    if (got == 0) ThrowUsage("{}: ends at byte {}", PathOf(file).string(), offset);
    offset += static_cast<uint64_t>(got);
    out = out.subspan(static_cast<size_t>(got));
  }
}

std::vector<CheckpointSource::Entry> CheckpointSource::ReadHeader(size_t file) const {
  const CheckpointFile& expected = meta_.files[file];
  const std::string path = PathOf(file).string();
  uint64_t length = 0;
  const uint64_t most = std::min(kMostHeaderBytes, expected.bytes);
  std::string header(std::min(expected.bytes, kLengthBytes), '\0');
  ReadBytes(file, 0, std::as_writable_bytes(std::span(header)));
  if (header.size() == kLengthBytes) std::memcpy(&length, header.data(), kLengthBytes);
  if (length == 0 || length > most - kLengthBytes) {
    ThrowUsage("{}: a header of {} bytes is past the limit of {}", path, length, most);
  }
  header.resize(kLengthBytes + length);
  ReadBytes(file, 0, std::as_writable_bytes(std::span(header)));
  if (HashBytes(std::as_bytes(std::span(header))) != expected.header_hash) {
    ThrowUsage("{}: the header is not the one that was saved", path);
  }
  const SafetensorsHeader parsed = ParseSafetensorsHeader(
      std::string_view(header).substr(kLengthBytes), expected.bytes - header.size(), path);
  std::vector<Entry> entries;
  for (const SafetensorsEntry& entry : parsed.entries) {
    const auto key = ParseEntryName(entry.name);
    const auto tensor = key ? index_.find(std::string(key->tensor)) : index_.end();
    const auto dtype = key ? EntryDtype(key->kind, entry.dtype) : std::nullopt;
    if (tensor == index_.end() || !dtype || entry.shape.size() != 1) {
      ThrowUsage("{}: '{}' is not part of a checkpoint of this model", path, Printable(entry.name));
    }
    entries.push_back({tensor->second * kEntryKinds + key->kind, key->begin, entry.elements,
                       header.size() + entry.begin, *dtype});
  }
  return entries;
}

void CheckpointSource::AddFile(size_t file, std::span<const Entry> entries) {
  size_t chunk = first_chunk_[file];
  for (const Entry& entry : entries) {
    pieces_.at(entry.tensor_and_kind)
        .push_back({entry.begin, entry.count, entry.offset, entry.dtype, chunk, file});
    chunk += ChecksumCount(entry.count);
  }
  const size_t needed = chunk - first_chunk_[file], has = meta_.files[file].checksums.size();
  if (needed != has) {
    ThrowUsage("{}: files: {} has {} checksums for {} chunks", (folder_ / "meta.json").string(),
               meta_.files[file].name, has, needed);
  }
}

void CheckpointSource::Sort() {
  for (auto& pieces : pieces_) {
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  }
  CheckCover();
}

void CheckpointSource::IndexAll() {
  for (size_t file = 0; file < meta_.files.size(); ++file) AddFile(file, ReadHeader(file));
  Sort();
}

std::string CheckpointSource::LookAt(int part, int parts) {
  std::ostringstream text;
  for (auto file = static_cast<size_t>(part); file < meta_.files.size();
       file += static_cast<size_t>(parts)) {
    const std::vector<Entry> entries = ReadHeader(file);
    text << file << ' ' << entries.size() << '\n';
    size_t chunk = first_chunk_[file];
    for (const Entry& entry : entries) {
      text << entry.tensor_and_kind << ' ' << entry.begin << ' ' << entry.count << ' '
           << entry.offset << ' ' << static_cast<int>(entry.dtype) << '\n';
      const Piece piece{entry.begin, entry.count, entry.offset, entry.dtype, chunk, file};
      chunk += ChecksumCount(entry.count);
      if (chunk > checksums_.size()) break;  // Complete says so
      VerifyPiece(piece, entry.tensor_and_kind, 0, entry.count);
    }
  }
  return text.str();
}

void CheckpointSource::Complete(std::span<const std::string> looks) {
  for (const std::string& look : looks) {
    std::istringstream text(look);
    size_t count = 0;
    for (size_t file = 0; text >> file >> count;) {
      std::vector<Entry> entries(count);
      for (Entry& entry : entries) {
        int dtype = 0;
        text >> entry.tensor_and_kind >> entry.begin >> entry.count >> entry.offset >> dtype;
        entry.dtype = static_cast<Dtype>(dtype);
      }
      AddFile(file, entries);
    }
  }
  Sort();
}

void CheckpointSource::CheckCover() const {
  const bool adapted = HoldsAdapters(table_);
  for (size_t t = 0; t < table_.size(); ++t) {
    const ParamTensor& tensor = table_[t];
    for (const StateKind kind : SavedStates(tensor, adapted)) {
      const auto state = StateKindName(kind);
      uint64_t covered = 0;
      for (const Piece& piece : pieces_[t * kEntryKinds + EntryKind(kind)]) {
        if (piece.begin != covered || piece.count > tensor.elements() - covered) {
          ThrowUsage("{}: {} of {}: elements {} + {} where {} of {} is next", folder_.string(),
                     state, tensor.name, piece.begin, piece.count, covered, tensor.elements());
        }
        covered += piece.count;
      }
      if (covered != tensor.elements()) {
        ThrowUsage("{}: {} of {}: elements from {} to {} are missing; is a rank's file missing?",
                   folder_.string(), state, tensor.name, covered, tensor.elements());
      }
      if (kind != StateKind::kMaster) CheckScales(t, kind);
    }
  }
}

// Each piece of codes has one of scales, in the same place of pieces_.
void CheckpointSource::CheckScales(size_t tensor, StateKind state) const {
  const std::vector<Piece>& pieces = pieces_[tensor * kEntryKinds + EntryKind(state)];
  const std::vector<Piece>& scales = pieces_[tensor * kEntryKinds + ScaleKind(state)];
  const auto has_codes = [](const Piece& piece) { return piece.dtype == Dtype::kU8; };
  const bool in_codes = std::any_of(pieces.begin(), pieces.end(), has_codes);
  bool fit = scales.size() == (in_codes ? pieces.size() : 0);
  for (size_t i = 0; fit && i < scales.size(); ++i) {
    fit = has_codes(pieces[i]) && pieces[i].begin % kDynamic8Group == 0 &&
          scales[i].begin == pieces[i].begin && scales[i].count == ScaleCount(pieces[i].count);
  }
  if (fit) return;
  ThrowUsage("{}: {} of {}: codes and scales do not belong together", folder_.string(),
             StateKindName(state), table_[tensor].name);
}

void CheckpointSource::VerifyPiece(const Piece& piece, size_t tensor_and_kind, uint64_t begin,
                                   uint64_t count) const {
  std::vector<std::byte> part;
  const uint64_t size = DtypeBytes(piece.dtype);
  for (uint64_t c = begin / kChecksumElements; c * kChecksumElements < begin + count; ++c) {
    const size_t index = piece.first_chunk + c;
    if (verified_[index].load(std::memory_order_relaxed)) continue;
    const uint64_t first = c * kChecksumElements;
    const uint64_t elements = std::min(kChecksumElements, piece.count - first);
    uint64_t sum = 0;
    ThrowIfInterrupted();
    for (uint64_t done = 0; done < elements; done += part.size() / size) {
      part.resize(std::min<uint64_t>(kReadAtOnce, elements - done) * size);
      ReadBytes(piece.file, piece.offset + (first + done) * size, part);
      sum += StateChecksum(first + done, part, size);
    }
    if (sum != checksums_[index]) {
      const size_t kind = tensor_and_kind % kEntryKinds;
      const uint64_t of_each = IsScaleKind(kind) ? kDynamic8Group : 1;
      ThrowUsage("{}: {} of {}, elements {} + {}: the data is not what was saved",
                 PathOf(piece.file).string(), EntryKindName(kind),
                 table_[tensor_and_kind / kEntryKinds].name, piece.begin + first * of_each,
                 elements * of_each);
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
  WithWayOut([&] { VerifyAll(); });
}

void CheckpointSource::Read(const TensorRange& range, std::span<float> out) const {
  const size_t index = static_cast<size_t>(range.tensor) * kEntryKinds + EntryKind(range.state);
  const std::vector<Piece>& pieces = pieces_.at(index);
  const uint64_t elements = pieces.empty() ? 0 : pieces.back().begin + pieces.back().count;
  ZEROPLAN_CHECK(
      out.size() == range.count && range.begin <= elements && range.count <= elements - range.begin,
      "tensor {}: {} + {} of {} elements into {}", range.tensor, range.begin, range.count, elements,
      out.size());
  if (out.empty()) return;
  const auto piece = std::upper_bound(pieces.begin(), pieces.end(), range.begin,
                                      [](uint64_t at, const Piece& p) { return at < p.begin; }) -
                     1;
  uint64_t begin = range.begin;
  for (auto at = static_cast<size_t>(piece - pieces.begin()); !out.empty(); ++at) {
    const uint64_t first = begin - pieces[at].begin;
    const size_t count = std::min<uint64_t>(out.size(), pieces[at].count - first);
    WithWayOut([&] { ReadPiece(index, at, first, out.first(count)); });
    out = out.subspan(count);
    begin += count;
  }
}

void CheckpointSource::ReadPiece(size_t tensor_and_kind, size_t at, uint64_t first,
                                 std::span<float> out) const {
  const Piece& piece = pieces_[tensor_and_kind][at];
  VerifyPiece(piece, tensor_and_kind, first, out.size());
  if (piece.dtype == Dtype::kU8) return ReadCodes(tensor_and_kind, at, first, out);
  if (piece.dtype == Dtype::kF32) {
    return ReadBytes(piece.file, piece.offset + first * sizeof(float), std::as_writable_bytes(out));
  }
  std::vector<std::byte> stored;
  for (uint64_t size = DtypeBytes(piece.dtype); !out.empty();) {
    const auto part = out.first(std::min(out.size(), kReadAtOnce));
    stored.resize(part.size() * size);
    ReadBytes(piece.file, piece.offset + first * size, stored);
    BestCpuKernels().widen(piece.dtype, stored.data(), static_cast<int64_t>(part.size()),
                           part.data());
    out = out.subspan(part.size());
    first += part.size();
  }
}

void CheckpointSource::ReadCodes(size_t tensor_and_kind, size_t at, uint64_t first,
                                 std::span<float> out) const {
  const StateKind state = kStateKinds[tensor_and_kind % kEntryKinds];
  const size_t scale_kind = tensor_and_kind - EntryKind(state) + ScaleKind(state);
  const Piece &codes = pieces_[tensor_and_kind][at], &scales = pieces_[scale_kind].at(at);
  std::vector<uint8_t> stored;
  std::vector<float> groups;
  while (!out.empty()) {
    const auto part = out.first(std::min(out.size(), kReadAtOnce));
    stored.resize(part.size());
    ReadBytes(codes.file, codes.offset + first, std::as_writable_bytes(std::span(stored)));
    const uint64_t group = first / kDynamic8Group, in_group = first % kDynamic8Group;
    groups.resize(ScaleCount(in_group + part.size()));
    VerifyPiece(scales, scale_kind, group, groups.size());
    ReadBytes(scales.file, scales.offset + group * sizeof(float),
              std::as_writable_bytes(std::span(groups)));
    DecodeDynamic8(CodesDtype(state), stored, in_group, groups, part);
    out = out.subspan(part.size());
    first += part.size();
  }
}

namespace {

namespace fs = std::filesystem;

// Runs fn; what it finds damaged is noted.
template <typename Fn>
bool Note(CheckpointReport& report, const Fn& fn) {
  try {
    fn();
    return true;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) throw;
    report.damage.emplace_back(error.what());
    return false;
  }
}

void LookAtData(CheckpointSource& source, CheckpointReport& report) {
  const auto files = static_cast<int>(source.meta().files.size());
  std::vector<std::string> looks;
  bool all = true;
  for (int file = 0; file < files; ++file) {
    all = Note(report, [&] { looks.push_back(source.LookAt(file, files)); }) && all;
  }
  if (all) Note(report, [&] { source.Complete(looks); });
}

void LookAtSizes(const CheckpointSource& source, CheckpointReport& report) {
  for (const CheckpointFile& file : source.meta().files) {
    const fs::path path = source.folder() / file.name;
    std::error_code error;
    const uint64_t bytes = fs::file_size(path, error);
    if (error) {
      report.damage.push_back(fmt::format("{}: {}", path.string(), error.message()));
    } else if (bytes != file.bytes) {
      report.damage.push_back(
          fmt::format("{}: {} bytes, saved with {}", path.string(), bytes, file.bytes));
    }
  }
}

}  // namespace

CheckpointReport LookAtCheckpoint(const fs::path& folder, bool with_data) {
  CheckpointReport report{.folder = folder};
  const LongWork work(fmt::format("Reading {}", folder.filename().string()), /*at_once=*/true);
  std::optional<CheckpointSource> source;
  Note(report, [&] {
    const ModelSpec model = ReadCheckpointMeta(folder).model;
    source.emplace(CheckpointSource::Begin(folder, model, BuildParamTable(model)));
  });
  if (!source) return report;
  const CheckpointMeta& meta = source->meta();
  report.step = meta.step;
  report.bytes = source->file_bytes();
  report.files = meta.files.size();
  report.world_size = meta.world_size;
  if (with_data) {
    LookAtData(*source, report);
  } else {
    LookAtSizes(*source, report);
  }
  return report;
}

FolderReport LookAtCheckpoints(const fs::path& path, bool with_data,
                               const std::function<void(const CheckpointReport&)>& seen) {
  FolderReport report;
  fs::path folder = path.has_filename() ? path : path.parent_path();
  std::error_code error;
  const bool is_one =
      IsStepFolderName(folder.filename().native()) || fs::exists(folder / "meta.json", error);
  ResumeCandidates candidates;
  if (is_one) {
    if (!fs::is_directory(folder, error)) ThrowUsage("{}: no such folder", path.string());
    candidates.folders.push_back(folder);
  } else if (HasCheckpoint(path)) {
    candidates = ListCandidates(path);
  } else {
    ThrowUsage("{}: holds no checkpoint; name the folder given to ⟦save⟧, or one step's",
               path.string());
  }
  report.latest_damage = candidates.latest_damage;
  report.checkpoints.reserve(candidates.folders.size());
  for (const fs::path& one : candidates.folders) {
    const CheckpointReport& look =
        report.checkpoints.emplace_back(LookAtCheckpoint(one, with_data));
    seen(look);
    if (!look.damage.empty()) ++report.damaged;
    if (look.damage.empty() && report.taken == nullptr && !is_one) report.taken = &look;
  }
  return report;
}

}  // namespace zeroplan
