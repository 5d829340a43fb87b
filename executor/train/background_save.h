// A save that is written beside the steps, from a copy of the states in host memory.
//
// A thread of this process writes, at the lowest priority, and never talks to other ranks. The
// trainer's thread asks it between two steps, and then the ranks tell one another in the control
// channel how far theirs are: rank 0 has staged a folder; every rank's files are complete and
// synced; rank 0 has committed. So nothing is committed before all files are there, no rank waits
// for another's disk, and the channel is used by one thread alone.
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
  // Hands what the copy holds of local rank `index` to `sink`; called by the writer's thread, for
  // one rank after the other. As Engine::WriteSaveCopy.
  using WriteCopy = std::function<void(int index, StateSink& sink)>;

  // `group` and what `save` points to outlive it.
  BackgroundSave(ProcessGroup& group, const GroupSave& save, WriteCopy write);
  // Gives up what is under way: nothing of it stays.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;
  // What the destructor does first; returns once the writer's thread has ended. Nothing may be
  // begun any more.
  void GiveUp();

  // ---- all ranks call these at once, from the thread of the group's collectives ----

  // True from Begin until Look or Wait has returned a folder, or thrown.
  bool under_way() const { return phase_ != Phase::kIdle; }
  // Starts to save the copy, which must stay as it is while this is under way. `meta` is as in
  // SaveTogether, with the state. REQUIRES: nothing is under way.
  void Begin(const CheckpointMeta& meta);
  // Between two steps, of which one takes about `step_seconds` (rank 0's counts): the checkpoint's
  // folder once all ranks know that it is committed. Does not wait for any disk. Ranks meet in
  // every call, or, where steps are short, in every few.
  //
  // Throws what failed of the save here, as SaveTogether does; errors that may pass are met anew in
  // the background first.
  std::optional<std::filesystem::path> Look(double step_seconds);
  // Returns once it is committed. Throws as Look.
  std::filesystem::path Wait();

  // ---- for the watch ----

  std::string Doing() const override;
  uint64_t moves() const override { return moves_.load(std::memory_order_relaxed); }

 private:
  enum class Phase : uint8_t { kIdle, kStage, kWrite, kCommit };
  class Writer;
  class Sink;

  // What the writer's thread does; each returns this rank's part.
  std::string Stage();
  std::string Write();
  std::string Commit(const std::vector<std::string>& descriptions);
  void SetDoing(std::string what);
  void ThrowIfGivenUp() const;

  void Start(Phase phase);
  // Tells the others, and goes on once all have theirs.
  std::optional<std::filesystem::path> Meet(double step_seconds);
  // Begins anew after a failure that may pass, or throws.
  void TryAgain(const std::string& problem);
  bool alone() const { return group_.world_size() == 1; }
  bool first() const { return group_.rank() == 0; }

  ProcessGroup& group_;
  const GroupSave save_;
  const WriteCopy write_;

  // The trainer's thread's; the writer reads them while it is busy.
  Phase phase_ = Phase::kIdle;
  CheckpointMeta meta_;
  int attempt_ = 1;
  int64_t looks_left_ = 1;  // until the ranks meet again
  bool told_ = false;       // the others have this rank's part
  std::vector<std::string> parts_;
  std::filesystem::path folder_;  // that rank 0 has staged

  std::unique_ptr<Staging> staging_;  // rank 0's; the writer's while it is busy
  std::atomic<bool> given_up_{false};
  std::atomic<uint64_t> moves_{0};
  mutable std::mutex mutex_;
  std::string doing_;               // under mutex_
  std::unique_ptr<Writer> writer_;  // last
};

}  // namespace zeroplan
