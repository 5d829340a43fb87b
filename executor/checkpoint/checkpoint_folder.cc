#include "executor/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_source.h"
#include "core/base/log.h"
#include "core/base/units.h"
#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/checkpoint/safetensors.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

bool AllDigits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

CheckpointListing Describe(const fs::path& folder) {
  CheckpointListing listing{.folder = folder};
  try {
    const CheckpointMeta meta = ReadCheckpointMeta(folder);
    listing.serial = meta.serial;
    listing.is_whole =
        std::all_of(meta.files.begin(), meta.files.end(), [&](const CheckpointFile& file) {
          std::error_code error;
          return fs::file_size(folder / file.name, error) == file.bytes && !error;
        });
  } catch (const Error&) {  // of its meta.json
  }
  return listing;
}

// "process 123 on HOST", as the holder of a lock writes it.
std::string Holder(int pid) {
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return fmt::format("process {} on {}", pid, host);
}

// Whether `holder` is a process of this host that has been killed, or has ended.
bool IsDying(const std::string& holder) {
  int pid = 0;
  if (std::sscanf(holder.c_str(), "process %d on ", &pid) != 1 || holder != Holder(pid)) {
    return false;
  }
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string stat;
  if (!std::getline(file, stat)) return true;
  // "123 (NAME) STATE ...", of its first thread.
  const size_t end = stat.rfind(')');
  const char state = end + 2 < stat.size() ? stat[end + 2] : '?';
  return state == 'Z' || state == 'X';
}

std::string ReadHolder(int fd) {
  char text[256] = {};
  const ssize_t bytes = ::pread(fd, text, sizeof text - 1, 0);
  return bytes > 0 ? std::string(text, static_cast<size_t>(bytes)) : "";
}

// flock's errno, 0 if it is taken.
int TakeLock(int fd, const fs::path& save_dir) {
  const auto until = std::chrono::steady_clock::now() + SaveLock::kDyingLimit;
  for (bool said = false;;) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return 0;
    const int error = errno;
    const std::string holder = ReadHolder(fd);
    const bool late = std::chrono::steady_clock::now() > until;
    if (error != EWOULDBLOCK || late || !IsDying(holder)) return error;
    if (!std::exchange(said, true)) {
      LogInfo("⟦save⟧ {}: waits for {}, which was killed and has not quite ended",
              save_dir.string(), Printable(holder));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// The step folder that a file names; nullopt: there is no such file.
std::optional<std::string> ReadName(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error)) return std::nullopt;
  std::string name = ReadTextFile(file);
  while (!name.empty() && (name.back() == '\n' || name.back() == '\r' || name.back() == ' ')) {
    name.pop_back();
  }
  if (!IsStepFolderName(name)) {
    ThrowUsage("{}: '{}' is not the name of a checkpoint such as {}", file.string(),
               Printable(name), StepFolderName(123));
  }
  return name;
}

}  // namespace

fs::path CheckpointsFolder(const fs::path& save_dir) { return save_dir / "checkpoints"; }

std::string StepFolderName(int64_t step) { return fmt::format("step-{:08}", step); }

std::string ShardFileName(int rank) { return fmt::format("rank-{:04}.safetensors", rank); }

bool IsStepFolderName(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  const size_t dash = name.find('-');
  if (!AllDigits(name.substr(0, dash))) return false;
  return dash == std::string_view::npos || AllDigits(name.substr(dash + 1));
}

std::vector<CheckpointListing> ListCheckpoints(const fs::path& save_dir) {
  std::vector<CheckpointListing> list;
  std::error_code error;
  for (auto entry = fs::directory_iterator(CheckpointsFolder(save_dir), error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code gone;
    if (entry->is_directory(gone) && IsStepFolderName(entry->path().filename().native())) {
      list.push_back(Describe(entry->path()));
    }
  }
  std::sort(list.begin(), list.end(), [](const CheckpointListing& a, const CheckpointListing& b) {
    return a.serial != b.serial ? a.serial > b.serial : a.folder > b.folder;
  });
  return list;
}

std::optional<std::string> ReadLatest(const fs::path& save_dir) {
  return ReadName(CheckpointsFolder(save_dir) / "latest");
}

std::optional<std::string> ReadBest(const fs::path& save_dir) {
  return ReadName(CheckpointsFolder(save_dir) / "best");
}

SaveLock::SaveLock(const fs::path& save_dir) {
  const fs::path path = CheckpointsFolder(save_dir) / ".lock";
  std::error_code ignored;
  if (fs::exists(save_dir, ignored) && !fs::is_directory(save_dir, ignored)) {
    ThrowUsage("⟦save⟧ {}: is a file; name a folder", save_dir.string());
  }
  try {
    MakeFolders(path.parent_path(), nullptr);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("⟦save⟧: {}; name a folder that can be made and written",
                                          error.what()));
  }
  constexpr mode_t kMode = 0644;
  file_ = UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kMode));
  if (!file_) ThrowRuntime("{}: cannot open: {}", path.string(), std::strerror(errno));
  if (const int error = TakeLock(file_.get(), save_dir); error != 0) {
    if (error != EWOULDBLOCK) {
      ThrowUsage(
          "⟦save⟧ {}: the file system cannot lock ({}: {}), so that two runs could write into one "
          "another's checkpoints; mount it with locks (Lustre: -o flock), or name another folder",
          save_dir.string(), path.string(), std::strerror(error));
    }
    const std::string holder = ReadHolder(file_.get());
    ThrowUsage("⟦save⟧ {}: another run saves here{}; wait for its end, or name another folder",
               save_dir.string(), holder.empty() ? "" : fmt::format(" ({})", Printable(holder)));
  }
  // For the message of whoever comes next.
  const std::string me = Holder(::getpid());
  if (::ftruncate(file_.get(), 0) != 0 ||
      ::pwrite(file_.get(), me.data(), me.size(), 0) != static_cast<ssize_t>(me.size())) {
    LogWarning("{}: cannot write: {}", path.string(), std::strerror(errno));
  }
}

bool HasCheckpoint(const fs::path& save_dir) {
  std::error_code error;
  return fs::exists(CheckpointsFolder(save_dir) / "latest", error) ||
         !ListCheckpoints(save_dir).empty();
}

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
  fs::path staging = checkpoints / fmt::format("{}{}-{:08x}{:08x}", kStagingPrefix,
                                               StepFolderName(step), random(), random());
  try {
    MakeFolders(staging, hook);
  } catch (...) {
    RemoveLeftover(staging, nullptr);
    throw;
  }
  return staging;
}

void DiscardStaging(const fs::path& staging) {
  const fs::path doomed =
      staging.parent_path() / fmt::format("{}old{}", kStagingPrefix, staging.filename().string());
  std::error_code error, ignored;
  fs::rename(staging, doomed, error);
  fs::remove_all(error ? staging : doomed, ignored);
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
        "⟦save⟧ {}: lies on {}, where a folder is renamed by copying it, so that half a checkpoint "
        "could pass for a whole one; save to a file system, and copy from there",
        save_dir.string(), store);
  }
  const fs::path checkpoints = CheckpointsFolder(save_dir);
  for (const char* name : {"latest", "best"}) {
    if (std::error_code ignored; !fs::is_directory(checkpoints / name, ignored)) continue;
    ThrowUsage(
        "⟦save⟧ {}: {} is a folder, and a save writes a file of that name; move it away, or name "
        "another folder",
        save_dir.string(), (checkpoints / name).string());
  }
  RemoveLeftovers(checkpoints, nullptr);
  try {
    Try(checkpoints);
  } catch (const Error& error) {
    ThrowUsage(
        "⟦save⟧ {}: cannot be saved to: {}; name a folder on a file system that can write, fsync "
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
        "⟦save⟧ {}: a file of a checkpoint has {}, and this process may write files of at most {}; "
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
      "⟦save⟧ {}: the run needs up to {} there, {} are free: a checkpoint has {} (of which ⟦keep⟧ "
      "{} "
      "and one being written lie there), the weights at the end {}{}; free the room, name another "
      "folder, or keep fewer",
      save_dir.string(), FormatBytes(needed), FormatBytes(free),
      FormatBytes(demand.checkpoint_bytes()), demand.keep, FormatBytes(demand.final_bytes),
      swap == 0 ? "" : fmt::format(", swap files on the same disk {}", FormatBytes(swap)));
}

}  // namespace zeroplan
