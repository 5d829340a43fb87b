// A save that is written concurrently with steps, from a copy of the states in host memory.
//
// A thread of this process writes, at the lowest priority, and never communicates with other ranks.
// The trainer's thread polls it between two steps; then the ranks exchange their progress in the
// control channel: rank 0 has staged a folder; every rank's files are complete and synced; rank 0
// has committed. So nothing is committed before all files exist, no rank waits for another's disk,
// and one thread alone uses the channel.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/checkpoint/state_io.h"
#include "executor/engine/watch.h"
#include "executor/process/process_group.h"
#include "executor/train/group_save.h"

namespace zeroplan {

class BackgroundSave final : public WatchedBeside {
 public:
  // Writes local rank `index` from the copy to `sink`; called by the writer's thread, for one rank
  // after the other. Same as Engine::WriteSaveCopy.
  using WriteCopy = std::function<void(int index, StateSink& sink)>;

  // `group` and the pointers of `save` must outlive it.
  BackgroundSave(ProcessGroup& group, const GroupSave& save, WriteCopy write);
  // Gives up a save under way: deletes all of it.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;
  // The destructor's first step; returns once the writer's thread has ended. No save may begin
  // after it.
  void GiveUp();

  // ---- all ranks call these at once, from the thread of the group's collectives ----

  // True from Begin until Look or Wait has returned a folder, or thrown.
  bool under_way() const { return phase_ != Phase::kIdle; }
  // Starts to save the copy, which must stay unchanged while the save is under way. `meta` is as in
  // SaveTogether, with the state. REQUIRES: no save is under way.
  void Begin(const CheckpointMeta& meta);
  // Called between two steps, of about `step_seconds` each (rank 0's counts): returns the
  // checkpoint's folder once all ranks know that it is committed. Does not wait for any disk. Ranks
  // meet in every call, or, if steps are short, in every few.
  //
  // Throws the save's failure on this rank, as SaveTogether does; transient errors are retried in
  // the background first.
  std::optional<std::filesystem::path> Look(double step_seconds);
  // Returns once the save is committed. Throws as Look.
  std::filesystem::path Wait();

  // ---- for the watch ----

  std::string Doing() const override;
  uint64_t moves() const override { return moves_.load(std::memory_order_relaxed); }

 private:
  enum class Phase : uint8_t { kIdle, kStage, kWrite, kCommit };
  class Writer;
  class Sink;

  // The phases of the writer's thread; each returns this rank's part.
  std::string Stage();
  std::string Write();
  std::string Commit(const std::vector<std::string>& descriptions);
  void SetDoing(std::string what);
  void ThrowIfGivenUp() const;

  void Start(Phase phase);
  // Sends this rank's part to the others, and continues once all have sent theirs.
  std::optional<std::filesystem::path> Meet(double step_seconds);
  // Restarts the save after a transient failure, or throws.
  void TryAgain(const std::string& problem);
  bool alone() const { return group_.world_size() == 1; }
  bool first() const { return group_.rank() == 0; }

  ProcessGroup& group_;
  const GroupSave save_;
  const WriteCopy write_;

  // Written by the trainer's thread; the writer reads them while it is busy.
  Phase phase_ = Phase::kIdle;
  CheckpointMeta meta_;
  int attempt_ = 1;
  int64_t looks_left_ = 1;  // calls of Look until the ranks meet again
  bool told_ = false;       // this rank's part is sent
  std::vector<std::string> parts_;
  std::filesystem::path folder_;  // the folder that rank 0 has staged

  std::unique_ptr<Staging> staging_;  // rank 0's; used by the writer while it is busy
  std::atomic<bool> given_up_{false};
  std::atomic<uint64_t> moves_{0};
  mutable std::mutex mutex_;
  std::string doing_;               // guarded by mutex_
  std::unique_ptr<Writer> writer_;  // last
};

}  // namespace zeroplan
