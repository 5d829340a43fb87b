#include "core/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/long_work.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// write(2) moves at most about 2 GiB a call.
constexpr size_t kWriteBytes = size_t{1} << 30;

int AskHook(IoHook* hook, IoStep step, const fs::path& path) {
  return hook == nullptr ? 0 : hook->Before(step, path);
}

bool IsTransient(int error) {
  return error == EAGAIN || error == EIO || error == ESTALE || error == ETIMEDOUT;
}

std::string Describe(std::string_view what, const fs::path& path, int error) {
  return fmt::format("{}: cannot {}: {}", path.string(), what, std::strerror(error));
}

[[noreturn]] void Fail(std::string_view what, const fs::path& path, int error) {
  const std::string message = Describe(what, path, error);
  if (IsTransient(error)) throw TransientIoError(ExitCode::kRuntime, message);
  throw Error(ExitCode::kRuntime, message);
}

constexpr std::array kPauses = {std::chrono::milliseconds(50), std::chrono::milliseconds(250),
                                std::chrono::milliseconds(1000)};

void MakeFolder(const fs::path& folder, IoHook* hook) {
  const int error = WithIoRetries("make the folder", folder, [&] {
    if (const int asked = AskHook(hook, IoStep::kMakeFolder, folder)) return asked;
    return ::mkdir(folder.c_str(), 0777) == 0 ? 0 : errno;
  });
  if (error == 0) {
    SyncFolder(ParentFolder(folder), hook);
    return;
  }
  std::error_code ignored;
  if (error == EEXIST && fs::is_directory(folder, ignored)) return;
  Fail("make the folder", folder, error);
}

}  // namespace

int WithIoRetries(std::string_view what, const fs::path& path,
                  const std::function<int()>& attempt) {
  int error = attempt();
  for (size_t again = 0; again < kPauses.size() && IsTransient(error); ++again) {
    LogWarning("{}; trying again", Describe(what, path, error));
    std::this_thread::sleep_for(kPauses[again]);
    error = attempt();
  }
  return error;
}

fs::path ParentFolder(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

DurableFile::DurableFile(fs::path path, IoHook* hook, UniqueFd fd)
    : path_(std::move(path)), hook_(hook), fd_(std::move(fd)) {}

DurableFile DurableFile::Create(const fs::path& path, IoHook* hook) {
  UniqueFd fd;
  const int error = WithIoRetries("create", path, [&] {
    if (const int asked = AskHook(hook, IoStep::kCreate, path)) return asked;
    // What lies there goes first, so that nobody's link leads the writing elsewhere.
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return errno;
    fd = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    return fd ? 0 : errno;
  });
  if (error != 0) Fail("create", path, error);
  return DurableFile(path, hook, std::move(fd));
}

void DurableFile::Reserve(uint64_t bytes) {
  if (bytes == 0) return;
  const std::string what = fmt::format("reserve {} bytes", bytes);
  const int error = WithIoRetries(what, path_, [&] {
    if (const int asked = AskHook(hook_, IoStep::kReserve, path_)) return asked;
    return ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  });
  if (error == 0 || error == EOPNOTSUPP || error == ENOSYS || error == EINTR) return;
  Fail(what, path_, error);
}

void DurableFile::WriteAt(uint64_t offset, std::span<const std::byte> bytes) {
  const int error = WithIoRetries("write", path_, [&] {
    if (const int asked = AskHook(hook_, IoStep::kWrite, path_)) return asked;
    while (!bytes.empty()) {
      const ssize_t wrote = ::pwrite(fd_.get(), bytes.data(), std::min(bytes.size(), kWriteBytes),
                                     static_cast<off_t>(offset));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return errno;
      if (wrote == 0) return ENOSPC;
      offset += static_cast<uint64_t>(wrote);
      bytes = bytes.subspan(static_cast<size_t>(wrote));
    }
    return 0;
  });
  if (error != 0) Fail("write", path_, error);
}

void DurableFile::Finish() {
  ZEROPLAN_CHECK(bool{fd_}, "{} is finished already", path_.string());
  if (const int error = AskHook(hook_, IoStep::kSync, path_)) Fail("fsync", path_, error);
  // Repeated after a signal only.
  while (::fsync(fd_.get()) != 0) {
    if (errno != EINTR) Fail("fsync", path_, errno);
  }
  if (const int error = AskHook(hook_, IoStep::kClose, path_)) Fail("close", path_, error);
  if (const int error = fd_.Close()) Fail("close", path_, error);
}

void RenamePath(const fs::path& from, const fs::path& to, IoHook* hook) {
  const std::string what = fmt::format("rename to {}", to.string());
  const int error = WithIoRetries(what, from, [&] {
    if (const int asked = AskHook(hook, IoStep::kRename, to)) return asked;
    return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  });
  if (error != 0) Fail(what, from, error);
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
  const StopSignalsBlocked blocked;  // a command that hears none ends behind it, not within
  TemporaryFile temporary(path);
  DurableFile file = DurableFile::Create(temporary.path(), hook);
  file.WriteAt(0, std::as_bytes(std::span(text)));
  file.Finish();
  temporary.Commit(hook);
}

namespace {

void WriteThrough(const fs::path& path, std::string_view text) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd) Fail("write", path, errno);
  while (!text.empty()) {
    const ssize_t wrote = ::write(fd.get(), text.data(), std::min(text.size(), kWriteBytes));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) Fail("write", path, wrote < 0 ? errno : ENOSPC);
    text.remove_prefix(static_cast<size_t>(wrote));
  }
  if (const int error = fd.Close()) Fail("write", path, error);
}

}  // namespace

void ReplaceFile(const fs::path& path, std::string_view text) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  const bool regular = fs::is_regular_file(status) || !fs::exists(status);
  // Behind a symbolic link lies what is to be replaced.
  const fs::path target = regular ? fs::weakly_canonical(path, error) : fs::path();
  if (target.empty() || error || ::access(ParentFolder(target).c_str(), W_OK | X_OK) != 0) {
    return WriteThrough(path, text);
  }
  WriteFileAtomically(target, text, nullptr);
  if (fs::exists(status)) fs::permissions(target, status.permissions(), error);
}

fs::path TemporaryPath(const fs::path& target) {
  return ParentFolder(target) / fmt::format(".{}.tmp", target.filename().string());
}

TemporaryFile::TemporaryFile(fs::path target)
    : target_(std::move(target)), path_(TemporaryPath(target_)) {}

TemporaryFile::~TemporaryFile() {
  if (!committed_) ::unlink(path_.c_str());
}

void TemporaryFile::Commit(IoHook* hook) {
  RenamePath(path_, target_, hook);
  committed_ = true;
  SyncFolder(ParentFolder(target_), hook);
}

int UniqueFd::Close() noexcept {
  if (fd_ < 0) return 0;
  // Not repeated on EINTR: Linux has closed the descriptor by then, and another thread may own its
  // number already.
  const int result = ::close(Release());
  return result == 0 || errno == EINTR ? 0 : errno;
}

namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string CacheFolder() {
  if (std::string folder = Variable("ZEROPLAN_CACHE_DIR"); !folder.empty()) return folder;
  if (std::string base = Variable("XDG_CACHE_HOME"); !base.empty()) return base + "/zeroplan";
  if (std::string home = Variable("HOME"); !home.empty()) return home + "/.cache/zeroplan";
  return "";
}

}  // namespace zeroplan
