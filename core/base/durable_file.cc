#include "core/base/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/error.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// write(2) moves at most about 2 GiB a call.
constexpr size_t kWriteBytes = size_t{1} << 30;

int AskHook(IoHook* hook, IoStep step, const fs::path& path) {
  return hook == nullptr ? 0 : hook->Before(step, path);
}

[[noreturn]] void Fail(std::string_view what, const fs::path& path, int error) {
  ThrowRuntime("{}: cannot {}: {}", path.string(), what, std::strerror(error));
}

void MakeFolder(const fs::path& folder, IoHook* hook) {
  if (const int error = AskHook(hook, IoStep::kMakeFolder, folder)) {
    Fail("make the folder", folder, error);
  }
  if (::mkdir(folder.c_str(), 0777) == 0) {
    SyncFolder(ParentFolder(folder), hook);
    return;
  }
  const int error = errno;
  std::error_code ignored;
  if (error == EEXIST && fs::is_directory(folder, ignored)) return;
  Fail("make the folder", folder, error);
}

}  // namespace

fs::path ParentFolder(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

DurableFile::DurableFile(fs::path path, IoHook* hook, UniqueFd fd)
    : path_(std::move(path)), hook_(hook), fd_(std::move(fd)) {}

DurableFile DurableFile::Create(const fs::path& path, IoHook* hook) {
  if (const int error = AskHook(hook, IoStep::kCreate, path)) Fail("create", path, error);
  // What lies there goes first, so that nobody's link leads the writing elsewhere.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) Fail("replace", path, errno);
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd) Fail("create", path, errno);
  return DurableFile(path, hook, std::move(fd));
}

void DurableFile::Reserve(uint64_t bytes) {
  if (bytes == 0) return;
  int error = AskHook(hook_, IoStep::kReserve, path_);
  if (error == 0 && ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes)) != 0) error = errno;
  if (error == 0 || error == EOPNOTSUPP || error == ENOSYS || error == EINTR) return;
  ThrowRuntime("{}: cannot reserve {} bytes: {}", path_.string(), bytes, std::strerror(error));
}

void DurableFile::WriteAt(uint64_t offset, std::span<const std::byte> bytes) {
  if (const int error = AskHook(hook_, IoStep::kWrite, path_)) Fail("write", path_, error);
  while (!bytes.empty()) {
    const ssize_t wrote = ::pwrite(fd_.get(), bytes.data(), std::min(bytes.size(), kWriteBytes),
                                   static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) Fail("write", path_, errno);
    if (wrote == 0) Fail("write", path_, ENOSPC);
    offset += static_cast<uint64_t>(wrote);
    bytes = bytes.subspan(static_cast<size_t>(wrote));
  }
}

void DurableFile::Finish() {
  ZEROPLAN_CHECK(bool{fd_}, "{} is finished already", path_.string());
  if (const int error = AskHook(hook_, IoStep::kSync, path_)) Fail("fsync", path_, error);
  // Repeated after a signal only. After a failed write-back the kernel drops the dirty pages, and a
  // second fsync would say that all is well.
  while (::fsync(fd_.get()) != 0) {
    if (errno != EINTR) Fail("fsync", path_, errno);
  }
  if (const int error = AskHook(hook_, IoStep::kClose, path_)) Fail("close", path_, error);
  if (const int error = fd_.Close()) Fail("close", path_, error);
}

void RenamePath(const fs::path& from, const fs::path& to, IoHook* hook) {
  int error = AskHook(hook, IoStep::kRename, to);
  if (error == 0 && ::rename(from.c_str(), to.c_str()) != 0) error = errno;
  if (error != 0) {
    ThrowRuntime("{}: cannot rename to {}: {}", from.string(), to.string(), std::strerror(error));
  }
}

void SyncFolder(const fs::path& folder, IoHook* hook) {
  if (const int error = AskHook(hook, IoStep::kSyncFolder, folder)) Fail("fsync", folder, error);
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) Fail("open", folder, errno);
  // Some network file systems keep names durable on their own and refuse fsync of a folder.
  if (::fsync(fd.get()) != 0 && errno != EINVAL && errno != EOPNOTSUPP) {
    Fail("fsync", folder, errno);
  }
}

void MakeFolders(const fs::path& folder, IoHook* hook) {
  std::error_code ignored;
  if (folder.empty() || fs::is_directory(folder, ignored)) return;
  const fs::path parent = folder.parent_path();
  if (parent != folder) MakeFolders(parent, hook);
  if (!folder.filename().empty()) MakeFolder(folder, hook);  // empty: "a/" after "a"
}

void WriteFileAtomically(const fs::path& path, std::string_view text, IoHook* hook) {
  TemporaryFile temporary(path);
  DurableFile file = DurableFile::Create(temporary.path(), hook);
  file.WriteAt(0, std::as_bytes(std::span(text)));
  file.Finish();
  temporary.Commit(hook);
}

TemporaryFile::TemporaryFile(fs::path target)
    : target_(std::move(target)),
      path_(ParentFolder(target_) / fmt::format(".{}.tmp", target_.filename().string())) {}

TemporaryFile::~TemporaryFile() {
  if (!committed_) ::unlink(path_.c_str());
}

void TemporaryFile::Commit(IoHook* hook) {
  RenamePath(path_, target_, hook);
  committed_ = true;
  SyncFolder(ParentFolder(target_), hook);
}

}  // namespace zeroplan
