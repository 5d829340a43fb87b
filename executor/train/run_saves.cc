#include "executor/train/run_saves.h"

#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/timing.h"
#include "core/program/step_order.h"
#include "executor/train/group_save.h"

namespace zeroplan {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

RunSaves::RunSaves(const RunParts& parts, std::function<void(const SaveReport&)> tell)
    : parts_(parts),
      schedule_(parts.options.save_every, parts.options.interruption_rate),
      tell_(std::move(tell)) {
  const TrainOptions& options = parts_.options;
  save_.save_dir = options.save_dir;
  save_.layout = &parts_.opened.program.layout;
  save_.first_local_rank = parts_.engine.first_local_rank();
  save_.local_rank_count = parts_.engine.local_rank_count();
  save_.keep = options.keep;
  save_.spared = parts_.opened.damaged;
  save_.hook = options.save_hook;
  if (options.save_dir.empty() || !SavesFromCopy(parts_.opened.program)) return;
  beside_ = std::make_unique<BackgroundSave>(
      parts_.group, save_,
      [this](int index, StateSink& sink) { parts_.engine.WriteSaveCopy(index, sink); });
  parts_.watch.ObserveBeside(beside_.get(), Watch::Seconds(parts_.limits.still_seconds()));
}

RunSaves::~RunSaves() {
  // Watched until its thread has ended.
  if (beside_) beside_->GiveUp();
  parts_.watch.ObserveBeside(nullptr, Watch::Seconds(0));
}

void RunSaves::Save(const CheckpointMeta& meta) {
  if (!beside_) return SaveWaiting(meta);
  Finish();
  Begin(meta);
  report_.beside = false;  // no step follows
  Finish();
}

void RunSaves::SaveWaiting(const CheckpointMeta& meta) {
  schedule_.NoteBegun();
  parts_.limits.ExpectMoves(fmt::format("saving step {}", meta.step));
  report_ = {.step = meta.step};
  const Clock::time_point begin = Clock::now();
  const auto write = [this](std::span<StateSink* const> sinks) {
    parts_.engine.Save(sinks);
    return parts_.engine.state();
  };
  std::filesystem::path folder;
  {
    const Watch::Meeting meeting(parts_.watch);
    folder = SaveTogether(parts_.group, save_, meta, write);
  }
  report_.stall_seconds = report_.write_seconds = SecondsSince(begin);
  NoteSaved(folder);
}

void RunSaves::SaveBetweenSteps(const CheckpointMeta& meta) {
  if (!beside_) return SaveWaiting(meta);
  if (beside_->under_way()) {
    ++waited_for_;
    if (parts_.first()) {
      LogInfo("step {}: waits for the save of step {}, which is still being written", meta.step,
              report_.step);
    }
    Finish();
  }
  Begin(meta);
}

void RunSaves::Begin(CheckpointMeta meta) {
  schedule_.NoteBegun();
  parts_.limits.ExpectMoves(fmt::format("copying the states of step {} for its save", meta.step));
  report_ = {.step = meta.step, .beside = true};
  const Clock::time_point begin = Clock::now();
  parts_.engine.SaveToCopy();
  meta.state = parts_.engine.state();
  copied_at_ = Clock::now();
  beside_->Begin(meta);
  report_.stall_seconds = SecondsSince(begin);
  parts_.limits.SetMeeting(parts_.limits.still_seconds(), "training");
}

void RunSaves::Look(double step_seconds) {
  if (!beside_) return;
  std::optional<std::filesystem::path> folder;
  {
    const Watch::Meeting meeting(parts_.watch);
    folder = beside_->Look(step_seconds);
  }
  if (folder) NoteSaved(*folder);
}

void RunSaves::Finish() {
  if (!beside_ || !beside_->under_way()) return;
  parts_.watch.Rest();  // the writers have limits of their own
  parts_.limits.SetMeeting(parts_.limits.still_seconds(),
                           fmt::format("saving step {}", report_.step));
  const Clock::time_point begin = Clock::now();
  std::filesystem::path folder;
  {
    const Watch::Meeting meeting(parts_.watch);
    folder = beside_->Wait();
  }
  report_.waited_seconds = SecondsSince(begin);
  report_.stall_seconds += report_.waited_seconds;
  NoteSaved(folder);
}

void RunSaves::FinishAlone() {
  if (parts_.group.world_size() > 1) return;
  try {
    Finish();
  } catch (const Error& error) {
    LogWarning("step {} could not be saved: {}", report_.step, error.what());
  }
}

void RunSaves::NoteSaved(const std::filesystem::path& folder) {
  if (beside_) report_.write_seconds = SecondsSince(copied_at_);
  last_checkpoint_ = report_.folder = folder;
  saved_at_ = report_.step;
  ++count_;
  parts_.limits.SetMeeting(parts_.limits.still_seconds(), "training");
  if (schedule_.is_auto()) ChooseInterval();
  tell_(report_);
}

void RunSaves::ChooseInterval() {
  schedule_.NoteSaved(report_.stall_seconds - report_.waited_seconds,
                      beside_ ? report_.write_seconds : 0);
  const std::string mine = parts_.first() ? SaveSchedule::Write(schedule_.Choose()) : "";
  schedule_.Take(parts_.Gather(mine).front());
  report_.chosen = schedule_.chosen();
}

}  // namespace zeroplan
