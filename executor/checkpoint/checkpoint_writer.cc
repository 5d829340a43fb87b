#include "executor/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <random>
#include <string>

#include "core/base/error.h"
#include "core/base/log.h"
#include "executor/checkpoint/checkpoint_folder.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// False, with a warning, if it cannot be removed: what is left over costs room and does no harm.
void RemoveLeftover(const fs::path& path, IoHook* hook) {
  std::error_code error;
  if (const int code = hook == nullptr ? 0 : hook->Before(IoStep::kRemove, path)) {
    error = std::error_code(code, std::generic_category());
  } else {
    fs::remove_all(path, error);
  }
  if (error) LogWarning("{}: cannot remove: {}", path.string(), error.message());
}

void RemoveLeftovers(const fs::path& checkpoints, IoHook* hook) {
  std::vector<fs::path> found;
  std::error_code error;
  for (auto entry = fs::directory_iterator(checkpoints, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (entry->path().filename().native().starts_with(kStagingPrefix)) {
      found.push_back(entry->path());
    }
  }
  for (const fs::path& path : found) RemoveLeftover(path, hook);
}

// A folder that is half removed must not pass for a checkpoint: it loses its name first.
void DeleteCheckpoint(const fs::path& folder, IoHook* hook) {
  const fs::path doomed =
      folder.parent_path() / fmt::format("{}old-{}", kStagingPrefix, folder.filename().string());
  try {
    RenamePath(folder, doomed, hook);
  } catch (const Error& error) {
    LogWarning("{}", error.what());
    return;
  }
  RemoveLeftover(doomed, hook);
}

fs::path FreeStepFolder(const fs::path& checkpoints, int64_t step) {
  fs::path folder = checkpoints / StepFolderName(step);
  std::error_code error;
  for (int again = 1; fs::exists(folder, error); ++again) {
    folder = checkpoints / fmt::format("{}-{}", StepFolderName(step), again);
  }
  return folder;
}

}  // namespace

fs::path StageCheckpoint(const fs::path& save_dir, int64_t step, IoHook* hook) {
  const fs::path checkpoints = CheckpointsFolder(save_dir);
  MakeFolders(checkpoints, hook);
  RemoveLeftovers(checkpoints, hook);
  std::random_device random;
  const fs::path staging = checkpoints / fmt::format("{}{}-{:08x}{:08x}", kStagingPrefix,
                                                     StepFolderName(step), random(), random());
  try {
    MakeFolders(staging, hook);
  } catch (...) {
    RemoveLeftover(staging, nullptr);
    throw;
  }
  return staging;
}

fs::path CommitCheckpoint(const fs::path& save_dir, const fs::path& staging, CheckpointMeta meta,
                          int keep, const std::vector<std::string>& spared, IoHook* hook) {
  const fs::path checkpoints = CheckpointsFolder(save_dir);
  const auto before = ListCheckpoints(save_dir);
  meta.serial = before.empty() ? 1 : before.front().serial + 1;

  DurableFile file = DurableFile::Create(staging / "meta.json", hook);
  const std::string text = FormatCheckpointMeta(meta);
  file.WriteAt(0, std::as_bytes(std::span(text)));
  file.Finish();
  SyncFolder(staging, hook);
  fs::path folder = FreeStepFolder(checkpoints, meta.step);
  RenamePath(staging, folder, hook);
  SyncFolder(checkpoints, hook);
  if (meta.is_best) NameBest(save_dir, folder.filename().string(), hook);
  WriteFileAtomically(checkpoints / "latest", folder.filename().string() + "\n", hook);

  std::string best;
  try {
    best = ReadBest(save_dir).value_or("");
  } catch (const Error& damage) {
    LogWarning("{}; nothing is deleted", damage.what());
    return folder;
  }
  int kept = 1;  // the new one
  for (const CheckpointListing& old : before) {
    const std::string name = old.folder.filename().string();
    const bool damaged =
        !old.is_whole || std::find(spared.begin(), spared.end(), name) != spared.end();
    if (damaged || ++kept <= std::max(keep, 1) || name == best) continue;
    DeleteCheckpoint(old.folder, hook);
  }
  return folder;
}

void NameBest(const fs::path& save_dir, const std::string& folder, IoHook* hook) {
  WriteFileAtomically(CheckpointsFolder(save_dir) / "best", folder + "\n", hook);
}

}  // namespace zeroplan
