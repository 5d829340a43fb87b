// How a run saves, whether it is one process or several. All ranks call these in the same order; on
// one rank's error the others throw too once it has told the group (SpreadFailure).
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "core/program/layout.h"
#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/checkpoint/state_io.h"
#include "executor/process/process_group.h"

namespace zeroplan {

// Throws Error(kUsage) on a rank that cannot see `path`, which rank 0 has made or seen: it waits a
// while for a network file system to show it.
void NeedShared(const ProcessGroup& group, const std::filesystem::path& path);

struct GroupSave {
  std::filesystem::path save_dir;  // on a disk that all ranks share
  const ParamLayout* layout = nullptr;
  int first_local_rank = 0;  // the ranks of this process
  int local_rank_count = 1;
  // As CommitCheckpoint.
  int keep = 2;
  std::vector<std::string> spared;
  IoHook* hook = nullptr;
};

// Writes the shards of this process's ranks to their sinks; returns the state after.
using WriteShards = std::function<StepState(std::span<StateSink* const> sinks)>;

// Rank 0 stages a checkpoint, every process writes its shards, rank 0 commits. `meta` is as the
// trainer fills it in, without state and files; rank 0's counts. Returns the checkpoint's folder.
//
// What makes a TransientIoError of a rank is made anew from the start, by all, up to three times
// with a warning: `write` may be called again. On an error, on whatever rank, the checkpoint before
// is intact and still the latest, unless the error names the sync of a new `latest`: then either
// may be.
std::filesystem::path SaveTogether(ProcessGroup& group, const GroupSave& save,
                                   const CheckpointMeta& meta, const WriteShards& write);

}  // namespace zeroplan
