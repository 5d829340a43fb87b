#include "executor/train/resume_choice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/units.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/train/group_save.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// Rank 0's, on every rank.
ResumeCandidates AgreedCandidates(ProcessGroup& group, const fs::path& save_dir) {
  std::string text;
  if (group.rank() == 0 && HasCheckpoint(save_dir)) {
    const ResumeCandidates mine = ListCandidates(save_dir);
    for (const fs::path& folder : mine.folders) text += folder.filename().string() + "\n";
    text += "\n" + mine.latest_damage;
  }
  text = group.AllGather(text).front();
  ResumeCandidates candidates;
  std::istringstream lines(text);
  for (std::string name; std::getline(lines, name) && !name.empty();) {
    candidates.folders.push_back(CheckpointsFolder(save_dir) / name);
  }
  candidates.latest_damage.assign(std::istreambuf_iterator<char>(lines), {});
  return candidates;
}

// "step-00000123-1": 123.
int64_t StepOf(const std::string& folder_name) {
  int64_t step = 0;
  const size_t begin = folder_name.find('-') + 1;
  std::from_chars(folder_name.data() + begin, folder_name.data() + folder_name.size(), step);
  return step;
}

class Chooser {
 public:
  Chooser(ProcessGroup& group, const ModelSpec& spec, std::span<const ParamTensor> table)
      : group_(group), spec_(spec), table_(table) {}

  // The checkpoint, if all ranks find their part intact; else damage() says what is not.
  std::unique_ptr<CheckpointSource> Look(const fs::path& folder) {
    NeedShared(group_, folder);
    std::optional<CheckpointSource> source;
    std::string mine = Attempt([&] {
      source.emplace(CheckpointSource::Begin(folder, spec_, table_));
      return std::string();
    });
    if (source) {  // another model is no damage: no older checkpoint would be of this one
      CheckSameShape(source->meta().model, spec_, (folder / "meta.json").string());
      mine = Attempt([&] { return source->LookAt(group_.rank(), group_.world_size()); });
    }
    const std::vector<std::string> looks = group_.AllGather(mine);
    for (const std::string& look : looks) {
      if (!look.starts_with(kDamaged)) continue;
      damage_ = look.substr(1);
      return nullptr;
    }
    // The same on all ranks.
    damage_ = Attempt([&] {
      source->Complete(looks);
      return std::string();
    });
    if (damage_.empty()) return std::make_unique<CheckpointSource>(std::move(*source));
    damage_.erase(0, 1);
    return nullptr;
  }

  const std::string& damage() const { return damage_; }

 private:
  static constexpr char kDamaged = '!';

  // What fn returns, or the damage that it meets.
  template <typename Fn>
  static std::string Attempt(const Fn& fn) {
    try {
      return fn();
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUsage) throw;
      return kDamaged + std::string(error.what());
    }
  }

  ProcessGroup& group_;
  const ModelSpec& spec_;
  std::span<const ParamTensor> table_;
  std::string damage_;
};

// What is lost with those that were passed over.
std::string Loss(const std::vector<std::string>& damaged, const CheckpointSource& taken) {
  const std::string name = taken.folder().filename().string();
  int64_t newest = 0;
  for (const std::string& folder : damaged) newest = std::max(newest, StepOf(folder));
  const int64_t lost = newest - taken.meta().step;
  return lost > 0 ? fmt::format("{} step{} {} trained again", lost, lost == 1 ? "" : "s",
                                lost == 1 ? "is" : "are")
                  : fmt::format("it is at step {}", taken.meta().step);
}

void SayIntact(const CheckpointSource& source, double seconds) {
  LogInfo("@@resume: {} of {} are as they were saved (looked at in {:.1f} s)",
          FormatBytes(source.file_bytes()), source.folder().filename().string(), seconds);
}

}  // namespace

ResumeChoice ChooseCheckpoint(ProcessGroup& group, const fs::path& save_dir, const ModelSpec& spec,
                              std::span<const ParamTensor> table, bool strict) {
  const auto begin = std::chrono::steady_clock::now();
  const ResumeCandidates candidates = AgreedCandidates(group, save_dir);
  ResumeChoice choice;
  if (candidates.folders.empty() && candidates.latest_damage.empty()) return choice;
  const bool first = group.rank() == 0;
  const fs::path checkpoints = CheckpointsFolder(save_dir);
  std::string damage = candidates.latest_damage;
  const auto refuse_if_strict = [&] {
    if (!strict) return;
    ThrowUsage(
        "{}; @@strict_resume: no other checkpoint is taken in its place; 'zeroplan checkpoint "
        "verify {}' says which are intact",
        damage, save_dir.string());
  };
  if (!damage.empty()) {
    refuse_if_strict();
    if (first) LogWarning("{}", damage);
  }
  Chooser chooser(group, spec, table);
  for (const fs::path& folder : candidates.folders) {
    choice.source = chooser.Look(folder);
    if (choice.source != nullptr) break;
    if (damage.empty()) damage = chooser.damage();
    refuse_if_strict();
    if (first) LogWarning("{}", chooser.damage());
    choice.damaged.push_back(folder.filename().string());
  }
  if (choice.source == nullptr) {
    ThrowUsage("{}; no checkpoint in {} is intact", damage, checkpoints.string());
  }
  if (!first) return choice;
  SayIntact(*choice.source,
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  if (damage.empty()) return choice;
  const std::string taken = choice.source->folder().filename().string();
  if (choice.damaged.empty()) {
    LogWarning("@@resume: taking {}, the newest checkpoint in {}", taken, checkpoints.string());
  } else {
    const bool one = choice.damaged.size() == 1;
    LogWarning(
        "@@resume: taking {}, the newest intact checkpoint: {}. {} {}, and this run does not "
        "delete "
        "{}. @@strict_resume refuses instead",
        taken, Loss(choice.damaged, *choice.source), fmt::join(choice.damaged, ", "),
        one ? "stays as it is" : "stay as they are", one ? "it" : "them");
  }
  return choice;
}

}  // namespace zeroplan
