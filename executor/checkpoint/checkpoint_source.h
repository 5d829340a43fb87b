// Reads checkpoints: any range of any tensor, however many ranks wrote it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/files.h"
#include "core/model/model_spec.h"
#include "core/model/param_table.h"
#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/checkpoint/state_io.h"
#include "executor/checkpoint/stored_state.h"

namespace zeroplan {

// The folder to resume from: `path` itself if it is a checkpoint (holds a meta.json), else the one
// that DIR/checkpoints/latest names. If `latest` is missing, as after a first save that was
// interrupted right before its end, returns the newest complete checkpoint with a warning. Throws
// Error(kUsage) if there is none.
std::filesystem::path FindCheckpoint(const std::filesystem::path& path);

// The checkpoints that a run may resume from, in the order in which to try them.
struct ResumeCandidates {
  // Existing folders: first the one that `latest` names, then the others, newest first.
  std::vector<std::filesystem::path> folders;
  // Why the first folder is not the one that `latest` names: `latest` holds no name, or no folder
  // has that name. Else empty.
  std::string latest_damage;
};
ResumeCandidates ListCandidates(const std::filesystem::path& save_dir);

// Reads a checkpoint. Throws Error(kUsage) for damage, and Error(kRuntime) if files cannot be read
// for another reason (permissions, too many open files). Opens shard files as they are read, and
// keeps only a few open, whatever their number.
class CheckpointSource : public StateSource {
 public:
  // Opens FindCheckpoint(path). Checks before any read that the model is the same, that each file
  // exists, is complete and is the one that was saved, and that together the files hold every
  // element of every state once. Throws Error(kUsage) that names the file and the fix; for a
  // damaged checkpoint, also the newest intact one and how to resume from it.
  static CheckpointSource Open(const std::filesystem::path& path, const ModelSpec& spec,
                               std::span<const ParamTensor> table);

  // The same for several ranks, each of which checks its part of the files:
  //
  //     CheckpointSource source = CheckpointSource::Begin(folder, spec, table);
  //     const std::string mine = source.LookAt(rank, ranks);
  //     source.Complete(group.AllGather(mine));
  //
  // Begin reads only meta.json. It throws what Open throws, but does not mention other checkpoints.
  static CheckpointSource Begin(const std::filesystem::path& folder, const ModelSpec& spec,
                                std::span<const ParamTensor> table);
  // Checks headers and all data of files part, part + parts, ... Returns the content of the
  // headers, for Complete.
  std::string LookAt(int part, int parts);
  // `looks`: the results of LookAt, by part. Throws if together they are no complete checkpoint.
  void Complete(std::span<const std::string> looks);

  const CheckpointMeta& meta() const { return meta_; }
  const std::filesystem::path& folder() const { return folder_; }
  // The bytes of all shard files, according to meta.json.
  uint64_t file_bytes() const;
  // The number of times that a shard file was opened.
  int64_t files_opened() const { return cache_->opened; }

  // Verifies the checksums of the data that it reads first. If the data is not what was saved,
  // throws Error(kUsage) as Open does.
  void Read(const TensorRange& range, std::span<float> out) const override;
  // Verifies the checksums of all data. Throws as Read does.
  void Verify() const;
  // A sentence about the newest other checkpoint that is intact. Verifies its data.
  std::string Intact() const;

 private:
  // Elements [begin, begin + count) of a tensor's state, stored from byte `offset` on. For scales:
  // `count` of them, the first being that of element `begin`.
  struct Piece {
    uint64_t begin = 0;
    uint64_t count = 0;
    uint64_t offset = 0;
    Dtype dtype = Dtype::kF32;  // kU8: codes
    size_t first_chunk = 0;     // in checksums_
    size_t file = 0;
  };
  // An entry of a file's header: a Piece, and the tensor and state that it belongs to.
  struct Entry {
    size_t tensor_and_kind = 0;
    uint64_t begin = 0;
    uint64_t count = 0;
    uint64_t offset = 0;
    Dtype dtype = Dtype::kF32;
  };
  // Open files, oldest first. The oldest are closed when there are many.
  struct FileCache {
    std::mutex mutex;
    std::deque<std::pair<size_t, std::shared_ptr<const UniqueFd>>> files;
    std::atomic<int64_t> opened = 0;
  };

  CheckpointSource() = default;
  std::filesystem::path PathOf(size_t file) const { return folder_ / meta_.files[file].name; }
  std::shared_ptr<const UniqueFd> FileAt(size_t file) const;
  void ReadBytes(size_t file, uint64_t offset, std::span<std::byte> out) const;
  std::vector<Entry> ReadHeader(size_t file) const;
  void AddFile(size_t file, std::span<const Entry> entries);
  void IndexAll();
  void Sort();  // sorts pieces_ once it is complete; throws if they are no complete checkpoint
  void CheckCover() const;
  void CheckScales(size_t tensor, StateKind state) const;
  void VerifyAll() const;
  // Returns the result of `look`. If `look` throws damage, adds Intact's sentences to the error.
  template <typename Fn>
  auto WithWayOut(const Fn& look) const;
  void VerifyPiece(const Piece& piece, size_t tensor_and_kind, uint64_t begin,
                   uint64_t count) const;
  // Elements [first, first + out.size()) of pieces_[tensor_and_kind][at], checked, as fp32.
  void ReadPiece(size_t tensor_and_kind, size_t at, uint64_t first, std::span<float> out) const;
  void ReadCodes(size_t tensor_and_kind, size_t at, uint64_t first, std::span<float> out) const;

  std::filesystem::path folder_;
  CheckpointMeta meta_;
  ModelSpec spec_;
  std::vector<ParamTensor> table_;
  std::unordered_map<std::string, size_t> index_;  // into table_, by name
  std::vector<size_t> first_chunk_;                // in checksums_, by file
  std::vector<std::vector<Piece>> pieces_;         // by tensor and kEntryKinds; sorted, no gaps
  std::vector<uint64_t> checksums_;                // the checksums of all files
  std::unique_ptr<std::atomic<bool>[]> verified_;  // by checksum
  std::unique_ptr<FileCache> cache_ = std::make_unique<FileCache>();
};

// Below: checks that the checkpoints in a folder are what was saved.

struct CheckpointReport {
  std::filesystem::path folder;
  // The step in its meta.json; 0 if that cannot be read.
  int64_t step = 0;
  uint64_t bytes = 0;
  size_t files = 0;
  int world_size = 0;
  // A sentence for each file that is not the one that was saved; empty: the checkpoint is intact.
  std::vector<std::string> damage;
};

// Checks a checkpoint. `with_data`: reads each file and verifies its checksums; else checks only
// that it exists and has its size. Throws Error(kRuntime) if files cannot be read for a reason
// other than damage.
CheckpointReport LookAtCheckpoint(const std::filesystem::path& folder, bool with_data);

struct FolderReport {
  std::vector<CheckpointReport> checkpoints;  // the one that --resume tries first, then the others,
                                              // newest first
  std::string latest_damage;                  // as in ResumeCandidates; empty: none
  // The checkpoint that --resume uses, the first intact one. Null: none is intact, or `path` is the
  // folder of one step.
  const CheckpointReport* taken = nullptr;
  size_t damaged = 0;
};

// Reports on `path`, the folder given to --save or the folder of one step. Calls `seen` with each
// checkpoint as soon as it has been checked. Throws Error(kUsage) if `path` holds no checkpoint.
FolderReport LookAtCheckpoints(const std::filesystem::path& path, bool with_data,
                               const std::function<void(const CheckpointReport&)>& seen);

}  // namespace zeroplan
