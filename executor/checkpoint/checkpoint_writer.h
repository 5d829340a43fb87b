// Saving training state so that a crash at any instant leaves the previous or the new checkpoint to
// resume from.
//
// The order of things: files are written and synced in .tmp-step-N, the folder is synced and
// renamed to step-N, `best` (where this is it) and then `latest` are replaced by rename, and only
// then older checkpoints go. So a run that goes on from `latest` finds what was best until then,
// whatever `best` names by now. See checkpoint_folder.h for the names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "executor/checkpoint/checkpoint_meta.h"

namespace zeroplan {

// One rank stages; after a barrier each rank writes its file with a ShardWriter; after another the
// first rank, given what each Describe()d, commits (executor/train/group_save.h).

// Removes what interrupted saves left, and makes the folder to write to. Throws Error(kRuntime)
// naming the path and the system's reason. REQUIRES: nobody else saves into `save_dir` at the same
// time (SaveLock).
std::filesystem::path StageCheckpoint(const std::filesystem::path& save_dir, int64_t step,
                                      IoHook* hook = nullptr);
// `meta.files` lists the files in `staging`, complete and synced; serial is filled in. Returns the
// checkpoint's folder.
//
// `keep` complete checkpoints stay, the new one among them; at least 1. 2 leaves something to fall
// back to when a disk loses a file. Damaged checkpoints do not count, and are not deleted: those
// that lack files, and those in `spared`, the step folders known to be damaged. What `best` names
// stays besides. Failing to delete is a warning, not an error.
std::filesystem::path CommitCheckpoint(const std::filesystem::path& save_dir,
                                       const std::filesystem::path& staging, CheckpointMeta meta,
                                       int keep, const std::vector<std::string>& spared,
                                       IoHook* hook = nullptr);

// Has `best` name a complete checkpoint, a folder of `save_dir`.
void NameBest(const std::filesystem::path& save_dir, const std::string& folder,
              IoHook* hook = nullptr);

}  // namespace zeroplan
