// File descriptors, zeroplan's cache folder, and writing files so that a reader, even after a loss
// of power, sees all of a file or nothing of it: write under a temporary name, fsync, rename, fsync
// the folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"

namespace zeroplan {

// Owner of a file descriptor. Move-only. The destructor closes it and ignores errors of close;
// callers that need the error call Close.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Close(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    const int fd = other.Release();
    Close();
    fd_ = fd;
    return *this;
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  // Returns 0 or the errno of close. The descriptor is gone either way.
  int Close() noexcept;

 private:
  int fd_ = -1;
};

// The steps of a save that touch the file system.
enum class IoStep : uint8_t {
  kMakeFolder,
  kCreate,
  kReserve,
  kWrite,
  kSync,
  kClose,
  kRename,
  kSyncFolder,
  kRemove
};

// Lets a test fail or stop a save at any step. nullptr stands for "no hook" everywhere.
class IoHook {
 public:
  virtual ~IoHook() = default;
  // Called before each step, possibly from several threads. 0: go on; else the errno to fail with.
  virtual int Before(IoStep step, const std::filesystem::path& path) = 0;
};

// A failure that another attempt may not meet: EAGAIN, EIO, ESTALE, ETIMEDOUT, as when a network
// file system is briefly unavailable.
class TransientIoError : public Error {
 public:
  using Error::Error;
};

// Calls `attempt`, which returns its errno, 0 on success. Repeats it up to three times for the
// errnos of TransientIoError, with a warning ("PATH: cannot WHAT: ...") and a longer pause each
// time. Returns the last errno.
//
// Used for creating, writing, renaming and reading files and for making folders. A failed fsync is
// never repeated: after a failed write-back the kernel drops the dirty pages, and a second fsync
// would report success.
int WithIoRetries(std::string_view what, const std::filesystem::path& path,
                  const std::function<int()>& attempt);

// A file being written. Every failure is an Error(kRuntime) that names the path and the system's
// reason. Destroying it unfinished closes the descriptor and leaves the file to the owner of the
// folder.
class DurableFile {
 public:
  // A new file. Removes first what exists at `path`, even a symbolic link.
  static DurableFile Create(const std::filesystem::path& path, IoHook* hook = nullptr);

  // Reserves disk space for `bytes` bytes now, so that a full disk shows before the work of a save.
  // Passes on file systems that cannot reserve: their writes report it.
  void Reserve(uint64_t bytes);
  // Thread-safe for ranges that do not overlap.
  void WriteAt(uint64_t offset, std::span<const std::byte> bytes);
  // fsync and close. REQUIRES: not finished yet.
  void Finish();

  const std::filesystem::path& path() const { return path_; }

 private:
  DurableFile(std::filesystem::path path, IoHook* hook, UniqueFd fd);

  std::filesystem::path path_;
  IoHook* hook_ = nullptr;
  UniqueFd fd_;
};

// rename(2): replaces `to` in one step.
void RenamePath(const std::filesystem::path& from, const std::filesystem::path& to, IoHook* hook);
// fsync of a folder: makes its names durable.
void SyncFolder(const std::filesystem::path& folder, IoHook* hook);
// mkdir of `folder` and of its parents as needed, each with its parent's fsync. An existing folder
// is no error.
void MakeFolders(const std::filesystem::path& folder, IoHook* hook);
// Replaces `path` by a file that holds `text`: a reader sees the old or the new text.
void WriteFileAtomically(const std::filesystem::path& path, std::string_view text, IoHook* hook);
// Replaces the contents of `path`, or of the target of a link there, by `text`. Writes files as
// WriteFileAtomically does, keeping their permissions; writes in place to devices and pipes, and to
// a file in a folder where no other may be made.
void ReplaceFile(const std::filesystem::path& path, std::string_view text);
// The folder that holds `path`; "." for a bare name.
std::filesystem::path ParentFolder(const std::filesystem::path& path);

// ".NAME.tmp" in the same folder.
std::filesystem::path TemporaryPath(const std::filesystem::path& target);
// The name under which a file is written before it replaces its target: TemporaryPath. The name is
// fixed, so that the next attempt overwrites the leftover of a killed one. The destructor removes
// the file unless it was committed, so that a failed attempt does not keep the disk full.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::filesystem::path target);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& target() const { return target_; }
  // Replaces the target, durably. REQUIRES: the file at path() is finished.
  void Commit(IoHook* hook);

 private:
  std::filesystem::path target_;
  std::filesystem::path path_;
  bool committed_ = false;
};

// The folder where zeroplan caches facts about this machine: $ZEROPLAN_CACHE_DIR, else
// $XDG_CACHE_HOME/zeroplan, else ~/.cache/zeroplan; empty (cache nothing) if none of these
// variables is set. The folder need not exist.
std::string CacheFolder();

}  // namespace zeroplan
