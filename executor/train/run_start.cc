#include "executor/train/run_start.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "executor/checkpoint/save_room.h"
#include "executor/train/resume_choice.h"
#include "executor/train/run_agreement.h"

namespace zeroplan {

std::optional<SaveLock> LockSaveFolder(const TrainOptions& options, const ProcessGroup& group) {
  if (group.rank() != 0 || options.save_dir.empty()) return std::nullopt;
  std::optional<SaveLock> lock(std::in_place, options.save_dir);
  CheckSaveFolder(options.save_dir);
  return lock;
}

std::unique_ptr<CheckpointSource> OpenCheckpoint(const Program& program,
                                                 const TrainOptions& options, ProcessGroup& group,
                                                 std::vector<std::string>& damaged) {
  // First of all: what ranks do next depends on it.
  AgreeAtStart(group, {{"--resume", options.resume ? "given" : "not given"}});
  if (!options.resume) {
    // Rank 0 alone looks: a moment later the folder may hold checkpoints of this run.
    if (group.rank() == 0 && !options.save_dir.empty() && HasCheckpoint(options.save_dir)) {
      ThrowUsage(
          "--save {}: the folder holds checkpoints of an earlier run; continue it with --resume "
          "or choose another folder",
          options.save_dir.string());
    }
    return nullptr;
  }
  if (options.save_dir.empty()) {
    ThrowUsage("--resume needs --save DIR, the folder of the run to continue");
  }
  ResumeChoice choice = ChooseCheckpoint(group, options.save_dir, program.model,
                                         *program.layout.tensors, options.strict_resume);
  if (choice.source == nullptr && group.rank() == 0) {
    LogInfo("no checkpoint in {} yet: starting afresh", options.save_dir.string());
  }
  damaged = std::move(choice.damaged);
  return std::move(choice.source);
}

std::unique_ptr<HfWeightsSource> OpenWeights(const Program& program, const TrainOptions& options) {
  const std::filesystem::path& folder = options.init_from;
  if (folder.empty()) return nullptr;
  if (std::error_code ignored; std::filesystem::equivalent(folder, options.save_dir, ignored)) {
    ThrowUsage(
        "--save {}: the run starts from the weights in this folder, and its own would replace "
        "them; choose another folder",
        options.save_dir.string());
  }
  return std::make_unique<HfWeightsSource>(folder, program.model, *program.layout.tensors);
}

uint64_t ChooseSeed(const TrainOptions& options, const CheckpointSource* checkpoint) {
  if (checkpoint == nullptr) return options.seed.value_or(1);
  const uint64_t saved = checkpoint->meta().seed;
  if (options.seed && *options.seed != saved) {
    ThrowUsage(
        "--seed {}: the checkpoint {} was made with seed {}, which fixes the order of its data; "
        "leave --seed out",
        *options.seed, checkpoint->folder().string(), saved);
  }
  return saved;
}

}  // namespace zeroplan
