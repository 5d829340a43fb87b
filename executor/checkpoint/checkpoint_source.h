// Reading a checkpoint back: any range of any tensor, however many ranks wrote it.
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

// The folder to resume from: what DIR/checkpoints/latest names; `path` itself if it is a checkpoint
// (holds a meta.json). If `latest` is missing, as after a first save that was cut off right before
// its end, the newest complete checkpoint, with a warning. Throws Error(kUsage) if there is none.
std::filesystem::path FindCheckpoint(const std::filesystem::path& path);

// One look at DIR/checkpoints/latest, for whoever may take another checkpoint if that one is
// damaged.
struct ResumeCandidates {
  // What `latest` names first, then the others, newest first; folders that exist.
  std::vector<std::filesystem::path> folders;
  // Why the first is not what `latest` names: it holds no name, or that of no folder. Else empty.
  std::string latest_damage;
};
ResumeCandidates ListCandidates(const std::filesystem::path& save_dir);

// Throws Error(kUsage) for damage, Error(kRuntime) where files cannot be looked at for a reason
// that is not theirs (permissions, too many open files). Shard files are opened as they are read,
// and few at a time, whatever their number.
class CheckpointSource : public StateSource {
 public:
  // Opens FindCheckpoint(path). Everything is checked before anything is read: the model is the
  // same; each file is there, whole and the one that was saved; together they hold every element of
  // every state once. Throws Error(kUsage) naming the file and the fix; if the checkpoint is
  // damaged, also the newest intact one and how to resume from that.
  static CheckpointSource Open(const std::filesystem::path& path, const ModelSpec& spec,
                               std::span<const ParamTensor> table);

  // The same for several ranks, each of which looks at its part of the files:
  //
  //     CheckpointSource source = CheckpointSource::Begin(folder, spec, table);
  //     const std::string mine = source.LookAt(rank, ranks);
  //     source.Complete(group.AllGather(mine));
  //
  // Reads meta.json alone. Throws as Open does, without a word about other checkpoints.
  static CheckpointSource Begin(const std::filesystem::path& folder, const ModelSpec& spec,
                                std::span<const ParamTensor> table);
  // Headers and all data of files part, part + parts, ... What the headers say, for Complete.
  std::string LookAt(int part, int parts);
  // What LookAt returned, by part. Throws where together they are no whole checkpoint.
  void Complete(std::span<const std::string> looks);

  const CheckpointMeta& meta() const { return meta_; }
  const std::filesystem::path& folder() const { return folder_; }
  // Bytes of all shard files, as meta.json says.
  uint64_t file_bytes() const;
  // How often a shard file was opened.
  int64_t files_opened() const { return cache_->opened; }

  // What it reads is held against its checksums first. Throws Error(kUsage) as Open does where the
  // data is not what was saved.
  void Read(const TensorRange& range, std::span<float> out) const override;
  // Holds all data against its checksums. Throws as Read does.
  void Verify() const;
  // One sentence about the newest checkpoint beside this one that is intact, its data looked at.
  std::string Intact() const;

 private:
  // Elements [begin, begin + count) of a tensor's state, stored from byte `offset` on; of scales
  // `count` that begin with the one of element `begin`.
  struct Piece {
    uint64_t begin = 0;
    uint64_t count = 0;
    uint64_t offset = 0;
    Dtype dtype = Dtype::kF32;  // kU8: codes
    size_t first_chunk = 0;     // in checksums_
    size_t file = 0;
  };
  // An entry of a file's header: Piece and where it belongs.
  struct Entry {
    size_t tensor_and_kind = 0;
    uint64_t begin = 0;
    uint64_t count = 0;
    uint64_t offset = 0;
    Dtype dtype = Dtype::kF32;
  };
  // Open files, oldest first; some of them go when there are many.
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
  void Sort();  // pieces_, once all are there; throws where they are no whole checkpoint
  void CheckCover() const;
  void CheckScales(size_t tensor, StateKind state) const;
  void VerifyAll() const;
  // Returns what `look` returns; damage that it throws is passed on with Intact's sentences.
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
  std::vector<uint64_t> checksums_;                // of all files
  std::unique_ptr<std::atomic<bool>[]> verified_;  // by checksum
  std::unique_ptr<FileCache> cache_ = std::make_unique<FileCache>();
};

// Whether the checkpoints in a folder are what was saved.

struct CheckpointReport {
  std::filesystem::path folder;
  // The step that its meta.json names; 0 where that cannot be read.
  int64_t step = 0;
  uint64_t bytes = 0;
  size_t files = 0;
  int world_size = 0;
  // A sentence for each file that is not the saved one; empty: the checkpoint is intact.
  std::vector<std::string> damage;
};

// `with_data`: each file is read and held against its checksums; else its presence and size are
// looked at. Throws Error(kRuntime) where files cannot be looked at for a reason that is not
// theirs.
CheckpointReport LookAtCheckpoint(const std::filesystem::path& folder, bool with_data);

struct FolderReport {
  std::vector<CheckpointReport> checkpoints;  // the one that --resume tries first, then the newest
  std::string latest_damage;                  // as ResumeCandidates; empty: none
  // What --resume takes: the first that is intact. Null: nothing, or `path` is one step's folder.
  const CheckpointReport* taken = nullptr;
  size_t damaged = 0;
};

// Reports on `path`, the folder given to --save or one step's. `seen` is called with each
// checkpoint as soon as it has been looked at. Throws Error(kUsage) if `path` holds no checkpoint.
FolderReport LookAtCheckpoints(const std::filesystem::path& path, bool with_data,
                               const std::function<void(const CheckpointReport&)>& seen);

}  // namespace zeroplan
