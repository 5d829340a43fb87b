#include "executor/train/group_save.h"

#include <unistd.h>

#include <deque>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/log.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/shard_writer.h"
#include "executor/checkpoint/state_io.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// How long a network file system may take to show what another host has made.
constexpr std::chrono::seconds kShowLimit(10);
constexpr std::chrono::milliseconds kLookAgain(100);

// Throws once the run has failed: then nobody waits for a disk.
bool Appears(const fs::path& path, const ProcessGroup& group) {
  const auto until = std::chrono::steady_clock::now() + kShowLimit;
  std::error_code error;
  for (;;) {
    // Listing the parent makes a client of NFS look afresh.
    fs::directory_iterator look(path.parent_path(), error);
    if (fs::exists(path, error)) return true;
    group.ThrowIfFailed();
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(kLookAgain);
  }
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "this host";
}

std::string DescribeFiles(const std::vector<std::unique_ptr<ShardWriter>>& shards) {
  std::ostringstream text;
  for (const auto& shard : shards) {
    const CheckpointFile file = shard->Describe();
    text << file.name << ' ' << file.bytes << ' ' << file.header_hash << ' '
         << file.checksums.size();
    for (const uint64_t checksum : file.checksums) text << ' ' << checksum;
    text << '\n';
  }
  return text.str();
}

// Keeps a TransientIoError to itself until the engine is through.
class PatientSink : public StateSink {
 public:
  explicit PatientSink(StateSink& sink) : sink_(sink) {}
  void Write(const TensorRange& range, std::span<const float> values) override {
    if (failure_) return;
    try {
      sink_.Write(range, values);
    } catch (const TransientIoError& error) {
      failure_ = error;
    }
  }
  void ThrowIfFailed() const {
    if (failure_) throw *failure_;
  }

 private:
  StateSink& sink_;
  std::optional<TransientIoError> failure_;
};

// What other hosts wrote has to be here before it is called a checkpoint.
void CheckFiles(const ProcessGroup& group, const fs::path& staging,
                const std::vector<CheckpointFile>& files) {
  for (const CheckpointFile& file : files) {
    const fs::path path = staging / file.name;
    std::error_code error;
    const uint64_t bytes = Appears(path, group) ? fs::file_size(path, error) : 0;
    if (bytes == file.bytes && !error) continue;
    ThrowRuntime(
        "{}: rank 0 sees {} bytes of the {} that its rank wrote; ⟦save⟧ needs a disk that "
        "all hosts of the run share",
        path.string(), error ? 0 : bytes, file.bytes);
  }
}

}  // namespace

void NeedShared(const ProcessGroup& group, const fs::path& path) {
  if (group.rank() == 0 || Appears(path, group)) return;
  ThrowUsage(
      "⟦save⟧: rank {} on {} cannot see {}, which rank 0 has; name a folder on a disk that all "
      "hosts of the run share",
      group.rank(), HostName(), path.string());
}

void WarnOfNewSave(int64_t step, const std::string& problem, int attempt) {
  LogWarning("step {} could not be saved: {}; saving it again ({} of {})", step, problem, attempt,
             kSaveAttempts);
}

Staging::~Staging() {
  if (!folder_.empty()) DiscardStaging(folder_);
}

const fs::path& Staging::Make(int64_t step) {
  return folder_ = StageCheckpoint(save_.save_dir, step, save_.hook);
}

fs::path Staging::Commit(const ProcessGroup& group, const CheckpointMeta& meta) {
  CheckFiles(group, folder_, meta.files);
  fs::path committed =
      CommitCheckpoint(save_.save_dir, folder_, meta, save_.keep, save_.spared, save_.hook);
  folder_.clear();
  return committed;
}

std::string WriteShardFiles(const GroupSave& save, const fs::path& staging,
                            const std::function<void(std::span<StateSink* const>)>& write) {
  NothingSink nothing;
  std::vector<std::unique_ptr<ShardWriter>> shards;
  std::deque<PatientSink> patient;
  std::vector<StateSink*> sinks;
  for (int i = 0; i < save.local_rank_count; ++i) {
    const int rank = save.first_local_rank + i;
    if (save.layout->FirstOwner(rank)) {
      const auto owner = static_cast<int>(save.layout->OwnerOf(rank));
      shards.push_back(std::make_unique<ShardWriter>(staging, *save.layout, owner, save.hook));
      sinks.push_back(&patient.emplace_back(*shards.back()));
    } else {
      sinks.push_back(&nothing);
    }
  }
  write(sinks);
  for (const PatientSink& sink : patient) sink.ThrowIfFailed();
  for (const auto& shard : shards) shard->Finish();
  return DescribeFiles(shards);
}

std::vector<CheckpointFile> ReadDescriptions(const std::vector<std::string>& of_ranks) {
  std::vector<CheckpointFile> files;
  for (const std::string& text : of_ranks) {
    std::istringstream lines(text);
    size_t checksums = 0;
    for (CheckpointFile file; lines >> file.name >> file.bytes >> file.header_hash >> checksums;) {
      file.checksums.assign(checksums, 0);
      for (uint64_t& checksum : file.checksums) lines >> checksum;
      files.push_back(file);
    }
  }
  return files;
}

namespace {

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
    } catch (...) {  // told before `made` goes: others would fail of the folder they miss
      FailOf(group, std::current_exception());
      throw;
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
