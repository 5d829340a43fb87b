#include "executor/train/group_save.h"

#include <unistd.h>

#include <chrono>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/checkpoint_writer.h"
#include "executor/checkpoint/nothing_sink.h"
#include "executor/checkpoint/shard_writer.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// How long a network file system may take to show what another host has made.
constexpr std::chrono::seconds kShowLimit(10);
constexpr std::chrono::milliseconds kLookAgain(100);

bool Appears(const fs::path& path) {
  const auto until = std::chrono::steady_clock::now() + kShowLimit;
  std::error_code error;
  for (;;) {
    // Listing the parent makes a client of NFS look afresh.
    fs::directory_iterator look(path.parent_path(), error);
    if (fs::exists(path, error)) return true;
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(kLookAgain);
  }
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "this host";
}

// Of rank 0's unfinished save.
class Staging {
 public:
  explicit Staging(IoHook* hook) : hook_(hook) {}
  ~Staging() {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  const fs::path& Make(const fs::path& save_dir, int64_t step) {
    return folder_ = StageCheckpoint(save_dir, step, hook_);
  }
  void Keep() { folder_.clear(); }

 private:
  IoHook* hook_;
  fs::path folder_;
};

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

std::string WriteAndDescribe(const GroupSave& save, const fs::path& staging,
                             const WriteShards& write, StepState& state) {
  NothingSink nothing;
  std::vector<std::unique_ptr<ShardWriter>> shards;
  std::vector<StateSink*> sinks;
  for (int i = 0; i < save.local_rank_count; ++i) {
    const int rank = save.first_local_rank + i;
    if (rank < static_cast<int>(save.layout->world_size)) {
      shards.push_back(std::make_unique<ShardWriter>(staging, *save.layout, rank, save.hook));
      sinks.push_back(shards.back().get());
    } else {
      sinks.push_back(&nothing);
    }
  }
  state = write(sinks);
  for (const auto& shard : shards) shard->Finish();
  return DescribeFiles(shards);
}

// What other hosts wrote has to be here before it is called a checkpoint.
void CheckFiles(const fs::path& staging, const std::vector<CheckpointFile>& files) {
  for (const CheckpointFile& file : files) {
    const fs::path path = staging / file.name;
    std::error_code error;
    const uint64_t bytes = Appears(path) ? fs::file_size(path, error) : 0;
    if (bytes == file.bytes && !error) continue;
    ThrowRuntime(
        "{}: rank 0 sees {} bytes of the {} that its rank wrote; --save needs a disk that "
        "all hosts of the run share",
        path.string(), error ? 0 : bytes, file.bytes);
  }
}

}  // namespace

void NeedShared(const ProcessGroup& group, const fs::path& path) {
  if (group.rank() == 0 || Appears(path)) return;
  ThrowUsage(
      "--save: rank {} on {} cannot see {}, which rank 0 has; name a folder on a disk that all "
      "hosts of the run share",
      group.rank(), HostName(), path.string());
}

fs::path SaveTogether(ProcessGroup& group, const GroupSave& save, CheckpointMeta meta,
                      const WriteShards& write) {
  const bool first = group.rank() == 0;
  Staging made(save.hook);
  fs::path staging;
  if (first) staging = made.Make(save.save_dir, meta.step);
  staging = group.AllGather(staging.string()).front();
  NeedShared(group, staging);
  const std::string mine = WriteAndDescribe(save, staging, write, meta.state);
  meta.files = ReadDescriptions(group.AllGather(mine));
  std::string folder;
  if (first) {
    CheckFiles(staging, meta.files);
    folder =
        CommitCheckpoint(save.save_dir, staging, std::move(meta), save.keep, save.spared, save.hook)
            .string();
    made.Keep();
  }
  return group.AllGather(folder).front();
}

}  // namespace zeroplan
