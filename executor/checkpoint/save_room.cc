#include "executor/checkpoint/save_room.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_source.h"
#include "core/base/units.h"
#include "executor/checkpoint/checkpoint_folder.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kObjectStores[] = {"s3fs",   "gcsfuse", "goofys",   "mountpoint-s3",
                                         "rclone", "geesefs", "blobfuse", "ossfs",
                                         "cosfs",  "yas3fs"};

// What a save does, with files of a few bytes.
void Try(const fs::path& checkpoints) {
  const std::string name = fmt::format("{}probe-{}", kStagingPrefix, ::getpid());
  const fs::path folder = checkpoints / name, renamed = checkpoints / (name + "-renamed");
  struct Clean {
    const fs::path &a, &b;
    ~Clean() {
      std::error_code ignored;
      fs::remove_all(a, ignored);
      fs::remove_all(b, ignored);
    }
  } clean{folder, renamed};
  MakeFolders(folder, nullptr);
  WriteFileAtomically(folder / "a", "old", nullptr);
  WriteFileAtomically(folder / "a", "new", nullptr);
  RenamePath(folder, renamed, nullptr);
  SyncFolder(checkpoints, nullptr);
  std::error_code error;
  if (fs::exists(folder, error) || ReadTextFile(renamed / "a") != "new") {
    ThrowRuntime("{}: a renamed folder does not hold what it held", checkpoints.string());
  }
}

// A field of mountinfo as text: "\040" stands for a blank.
std::string Unescaped(const std::string& field) {
  std::string out;
  for (size_t i = 0; i < field.size(); ++i) {
    if (field[i] == '\\' && i + 3 < field.size()) {
      out += static_cast<char>(std::stoi(field.substr(i + 1, 3), nullptr, 8));
      i += 3;
    } else {
      out += field[i];
    }
  }
  return out;
}

bool SameDisk(const fs::path& a, const fs::path& b) {
  struct stat of_a {
  }, of_b{};
  return ::stat(a.c_str(), &of_a) == 0 && ::stat(b.c_str(), &of_b) == 0 &&
         of_a.st_dev == of_b.st_dev;
}

}  // namespace

std::string ObjectStoreOf(const fs::path& folder, const fs::path& mounts) {
  std::error_code error;
  const std::string path = fs::weakly_canonical(folder, error).string() + "/";
  std::ifstream in(mounts);
  std::string best, kind;
  // "ID PARENT DEV ROOT MOUNT-POINT OPTIONS [MORE...] - TYPE SOURCE OPTIONS"
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string word, mount, type, source;
    for (int i = 0; i < 5; ++i) words >> mount;
    while (words >> word && word != "-") {
    }
    if (!(words >> type >> source)) continue;
    mount = Unescaped(mount);
    if (!mount.ends_with('/')) mount += '/';
    if (!path.starts_with(mount) || mount.size() < best.size()) continue;
    best = mount;
    kind.clear();
    for (const char* store : kObjectStores) {
      if (type.find(store) != std::string::npos || source.starts_with(store)) kind = store;
    }
  }
  return kind;
}

void CheckSaveFolder(const fs::path& save_dir) {
  if (const std::string store = ObjectStoreOf(save_dir); !store.empty()) {
    ThrowUsage(
        "@@save {}: lies on {}, where a folder is renamed by copying it, so that half a checkpoint "
        "could pass for a whole one; save to a file system, and copy from there",
        save_dir.string(), store);
  }
  try {
    Try(CheckpointsFolder(save_dir));
  } catch (const Error& error) {
    ThrowUsage(
        "@@save {}: cannot be saved to: {}; name a folder on a file system that can write, fsync "
        "and rename",
        save_dir.string(), error.what());
  }
}

uint64_t SaveDemand::checkpoint_bytes() const {
  return std::accumulate(shard_bytes.begin(), shard_bytes.end(), uint64_t{0});
}

uint64_t SaveBytes(const SaveDemand& demand, int existing) {
  const uint64_t checkpoint = demand.checkpoint_bytes();
  const int64_t keep = std::max(demand.keep, 1);
  const int64_t in_all = existing + demand.saves;
  const auto more = [&](int64_t most) {
    return static_cast<uint64_t>(std::max<int64_t>(std::min(in_all, most) - existing, 0));
  };
  const uint64_t while_saving = std::max(more(keep + 1), uint64_t{1}) * checkpoint;
  const uint64_t at_end = more(keep) * checkpoint + demand.final_bytes;
  return std::max(while_saving, at_end);
}

void CheckSaveRoom(const fs::path& save_dir, const SaveDemand& demand) {
  rlimit file_size{};
  const uint64_t largest =
      demand.shard_bytes.empty()
          ? 0
          : *std::max_element(demand.shard_bytes.begin(), demand.shard_bytes.end());
  if (::getrlimit(RLIMIT_FSIZE, &file_size) == 0 && file_size.rlim_cur != RLIM_INFINITY &&
      file_size.rlim_cur < largest) {
    ThrowUsage(
        "@@save {}: a file of a checkpoint has {}, and this process may write files of at most {}; "
        "raise the limit (ulimit -f)",
        save_dir.string(), FormatBytes(largest), FormatBytes(file_size.rlim_cur));
  }
  int existing = 0;
  for (const CheckpointListing& listing : ListCheckpoints(save_dir)) existing += listing.is_whole;
  const uint64_t swap = SameDisk(save_dir, demand.swap_dir) ? demand.swap_bytes : 0;
  const uint64_t needed = SaveBytes(demand, existing) + swap;
  struct statvfs disk {};
  // A file system that counts no blocks does not know.
  if (::statvfs(save_dir.c_str(), &disk) != 0 || disk.f_blocks == 0) return;
  const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
  if (needed <= free) return;
  ThrowUsage(
      "@@save {}: the run needs up to {} there, {} are free: a checkpoint has {} (of which @@keep "
      "{} "
      "and one being written lie there), the weights at the end {}{}; free the room, name another "
      "folder, or keep fewer",
      save_dir.string(), FormatBytes(needed), FormatBytes(free),
      FormatBytes(demand.checkpoint_bytes()), demand.keep, FormatBytes(demand.final_bytes),
      swap == 0 ? "" : fmt::format(", swap files on the same disk {}", FormatBytes(swap)));
}

}  // namespace zeroplan
