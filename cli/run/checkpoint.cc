// zeroplan checkpoint: what a run's folder holds, and whether it is what was saved.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "cli/common/commands.h"
#include "cli/common/executor_commands.h"
#include "cli/common/output.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/checkpoint/checkpoint_source.h"

namespace zeroplan {
namespace {

void PrintLine(const CheckpointReport& report, const char* sound) {
  const std::string name = report.folder.filename().string();
  std::string line = name;
  if (report.files > 0) {
    line += fmt::format("  step {}, {} in {} file{}, {} rank{}", report.step,
                        FormatBytes(report.bytes), report.files, report.files == 1 ? "" : "s",
                        report.world_size, report.world_size == 1 ? "" : "s");
  }
  line += fmt::format("  {}\n", report.damage.empty() ? sound : "damaged");
  for (const std::string& damage : report.damage) line += fmt::format("  {}\n", damage);
  WriteReport("", line);
}

// What --keep-best has kept; nothing where there is none.
void PrintBest(const std::string& path) {
  try {
    const std::optional<std::string> best = ReadBest(path);
    if (!best) return;
    const auto& validation = ReadCheckpointMeta(CheckpointsFolder(path) / *best).validation;
    WriteReport("", fmt::format("best is {}{}\n", *best,
                                validation && validation->any_finite
                                    ? fmt::format(", validation loss {:.4f}", validation->best_loss)
                                    : ""));
  } catch (const Error& damage) {
    WriteReport("", fmt::format("best: {}\n", damage.what()));
  }
}

void Look(const std::string& path, bool with_data) {
  if (std::error_code ignored; !std::filesystem::is_directory(path, ignored)) {
    ThrowUsage("{}: there is no such folder; name the one given to --save, or one step's", path);
  }
  const FolderReport report =
      LookAtCheckpoints(path, with_data, [&](const CheckpointReport& checkpoint) {
        PrintLine(checkpoint, with_data ? "intact" : "all files there, data not read");
      });
  if (!report.latest_damage.empty()) WriteReport("", report.latest_damage + "\n");
  if (report.taken != nullptr) {
    WriteReport("", fmt::format("--resume takes {}\n", report.taken->folder.filename().string()));
  }
  PrintBest(path);
  const size_t all = report.checkpoints.size();
  if (report.damaged > 0) {
    ThrowUsage("{}: {} of {} checkpoint{} {} damaged{}", path, report.damaged, all,
               all == 1 ? "" : "s", report.damaged == 1 ? "is" : "are",
               report.damaged == all ? "; --resume has nothing to take" : "");
  }
  if (!report.latest_damage.empty()) {
    ThrowUsage("{}: which checkpoint is the latest is not known", path);
  }
}

constexpr const char* kFooter = R"(Examples:
  zeroplan checkpoint list out
  zeroplan checkpoint verify out)";

void AddLook(Command& group, const char* name, const char* help, bool with_data) {
  Command command = group.Add(name, help);
  auto path = std::make_shared<std::string>();
  command.Required("folder", "DIR", "The folder given to --save, or one step's", *path);
  command.Progress(kNoGroup);
  command.Footer(kFooter);
  command.Run([path, with_data] { Look(*path, with_data); });
}

}  // namespace

void RegisterCheckpoint(Command& app) {
  Command group = app.AddGroup(kCheckpointCommand.name, kCheckpointCommand.help);
  group.Footer(kFooter);
  AddLook(
      group, "verify",
      "Reads every checkpoint and checks it against its checksums; exit code 2 if one is damaged",
      true);
  AddLook(group, "list",
          "Lists the checkpoints and says whether all files are there; reads no "
          "data",
          false);
}

}  // namespace zeroplan
