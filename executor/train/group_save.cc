#include "executor/train/group_save.h"

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "executor/train/save_parts.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// What begins a rank's part.
constexpr char kDone = '+';
constexpr char kFailed = '!';

// One attempt. Nothing if a rank met what another attempt may not meet: `problem` says what.
std::optional<fs::path> SaveOnce(ProcessGroup& group, const GroupSave& save, CheckpointMeta meta,
                                 const WriteShards& write, std::string& problem) {
  const bool first = group.rank() == 0;
  Staging made(save);
  // Every rank's part, by rank, once all have theirs.
  const auto exchange =
      [&](const std::function<std::string()>& part) -> std::optional<std::vector<std::string>> {
    std::string mine;
    try {
      mine = kDone + part();
    } catch (const TransientIoError& error) {
      mine = kFailed + std::string(error.what());
    }
    std::vector<std::string> all = group.AllGather(mine);
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (!all[rank].starts_with(kFailed)) continue;
      problem = all[rank].substr(1);
      if (all.size() > 1) problem = fmt::format("rank {}: {}", rank, problem);
      return std::nullopt;
    }
    for (std::string& text : all) text.erase(0, 1);
    return all;
  };
  const auto staging =
      exchange([&] { return first ? made.Make(meta.step).string() : std::string(); });
  if (!staging) return std::nullopt;
  NeedShared(group, staging->front());
  const auto files = exchange([&] {
    return WriteShardFiles(save, staging->front(),
                           [&](std::span<StateSink* const> sinks) { meta.state = write(sinks); });
  });
  if (!files) return std::nullopt;
  meta.files = ReadDescriptions(*files);
  const auto folder =
      exchange([&] { return first ? made.Commit(group, meta).string() : std::string(); });
  if (!folder) return std::nullopt;
  return folder->front();
}

}  // namespace

fs::path SaveTogether(ProcessGroup& group, const GroupSave& save, const CheckpointMeta& meta,
                      const WriteShards& write) {
  std::string problem;
  for (int attempt = 1;; ++attempt) {
    std::this_thread::sleep_for(PauseBeforeSave(attempt));
    if (const auto folder = SaveOnce(group, save, meta, write, problem)) return *folder;
    if (attempt == kSaveAttempts) ThrowRuntime("{}", problem);
    if (group.rank() == 0) WarnOfNewSave(meta.step, problem, attempt + 1);
  }
}

}  // namespace zeroplan
