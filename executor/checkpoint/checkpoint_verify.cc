#include "executor/checkpoint/checkpoint_verify.h"

#include <optional>
#include <system_error>

#include "core/base/error.h"
#include "core/base/long_work.h"
#include "core/model/param_table.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/checkpoint_source.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// Runs fn; what it finds damaged is noted.
template <typename Fn>
bool Note(CheckpointReport& report, const Fn& fn) {
  try {
    fn();
    return true;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) throw;
    report.damage.emplace_back(error.what());
    return false;
  }
}

void LookAtData(CheckpointSource& source, CheckpointReport& report) {
  const auto files = static_cast<int>(source.meta().files.size());
  std::vector<std::string> looks;
  bool all = true;
  for (int file = 0; file < files; ++file) {
    all = Note(report, [&] { looks.push_back(source.LookAt(file, files)); }) && all;
  }
  if (all) Note(report, [&] { source.Complete(looks); });
}

void LookAtSizes(const CheckpointSource& source, CheckpointReport& report) {
  for (const CheckpointFile& file : source.meta().files) {
    const fs::path path = source.folder() / file.name;
    std::error_code error;
    const uint64_t bytes = fs::file_size(path, error);
    if (error) {
      report.damage.push_back(fmt::format("{}: {}", path.string(), error.message()));
    } else if (bytes != file.bytes) {
      report.damage.push_back(
          fmt::format("{}: {} bytes, saved with {}", path.string(), bytes, file.bytes));
    }
  }
}

}  // namespace

CheckpointReport LookAtCheckpoint(const fs::path& folder, bool with_data) {
  CheckpointReport report{.folder = folder};
  const LongWork work(fmt::format("Reading {}", folder.filename().string()), /*at_once=*/true);
  std::optional<CheckpointSource> source;
  Note(report, [&] {
    const ModelSpec model = ReadCheckpointMeta(folder).model;
    source.emplace(CheckpointSource::Begin(folder, model, BuildParamTable(model)));
  });
  if (!source) return report;
  const CheckpointMeta& meta = source->meta();
  report.step = meta.step;
  report.bytes = source->file_bytes();
  report.files = meta.files.size();
  report.world_size = meta.world_size;
  if (with_data) {
    LookAtData(*source, report);
  } else {
    LookAtSizes(*source, report);
  }
  return report;
}

FolderReport LookAtCheckpoints(const fs::path& path, bool with_data,
                               const std::function<void(const CheckpointReport&)>& seen) {
  FolderReport report;
  const fs::path folder = path.has_filename() ? path : path.parent_path();
  std::error_code error;
  const bool is_one =
      IsStepFolderName(folder.filename().native()) || fs::exists(folder / "meta.json", error);
  ResumeCandidates candidates;
  if (is_one) {
    if (!fs::is_directory(folder, error)) ThrowUsage("{}: no such folder", path.string());
    candidates.folders.push_back(folder);
  } else if (HasCheckpoint(path)) {
    candidates = ListCandidates(path);
  } else {
    ThrowUsage("{}: holds no checkpoint; name the folder given to @@save, or one step's",
               path.string());
  }
  report.latest_damage = candidates.latest_damage;
  report.checkpoints.reserve(candidates.folders.size());
  for (const fs::path& one : candidates.folders) {
    const CheckpointReport& look =
        report.checkpoints.emplace_back(LookAtCheckpoint(one, with_data));
    seen(look);
    if (!look.damage.empty()) ++report.damaged;
    if (look.damage.empty() && report.taken == nullptr && !is_one) report.taken = &look;
  }
  return report;
}

}  // namespace zeroplan
