// Whether the checkpoints in a folder are what was saved.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace zeroplan {

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
