// What every save of a run is made of, whether the steps wait for it (group_save.h) or not
// (background_save.h): a folder that rank 0 stages, the shards that each process writes there, and
// rank 0's commit.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/train/group_save.h"

namespace zeroplan {

// A save that met a TransientIoError is made anew, this many times in all, after a pause that
// grows.
inline constexpr int kSaveAttempts = 3;
inline std::chrono::milliseconds PauseBeforeSave(int attempt) {
  return std::chrono::milliseconds(500) * (attempt - 1);
}
// Warns that step `step` is saved for the `attempt`-th time, because of `problem`.
void WarnOfNewSave(int64_t step, const std::string& problem, int attempt);

// The folder of an unfinished save, which rank 0 makes and which goes with the object.
class Staging {
 public:
  explicit Staging(const GroupSave& save) : save_(save) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  const std::filesystem::path& Make(int64_t step);
  // Makes a checkpoint of it, once it holds what `meta.files` lists; waits a while for a network
  // file system to show what other hosts wrote. Returns the checkpoint's folder.
  std::filesystem::path Commit(const ProcessGroup& group, const CheckpointMeta& meta);

 private:
  const GroupSave& save_;
  std::filesystem::path folder_;
};

// Writes the files of this process's ranks into `staging`, and syncs them. `write` is given the
// sinks, one a local rank. Returns a description of the files, which ReadDescriptions understands.
// A TransientIoError is thrown only once `write` has returned: in the midst of the engine it would
// end the run.
std::string WriteShardFiles(const GroupSave& save, const std::filesystem::path& staging,
                            const std::function<void(std::span<StateSink* const>)>& write);
std::vector<CheckpointFile> ReadDescriptions(const std::vector<std::string>& of_ranks);

}  // namespace zeroplan
