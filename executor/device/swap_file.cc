#include "executor/device/swap_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/units.h"
#include "executor/device/arena.h"

namespace zeroplan {
namespace {

void CheckFolder(const std::string& dir, uint64_t bytes) {
  if (dir.empty()) {
    ThrowUsage(
        "this plan swaps {} to disk but no folder is given: set "
        "zero_optimization.offload_optimizer.nvme_path (or offload_param.nvme_path)",
        FormatBytes(bytes));
  }
  struct stat info {};
  if (stat(dir.c_str(), &info) != 0) {
    ThrowUsage("nvme_path \"{}\": {}; create the folder or name another", dir,
               std::strerror(errno));
  }
  if (!S_ISDIR(info.st_mode)) {
    ThrowUsage("nvme_path \"{}\" is not a folder; name the folder that swap files go to", dir);
  }
}

// Reserves disk blocks now, so that a full disk is found before the first step and not in the
// middle.
int Reserve(int fd, uint64_t bytes) {
  const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (error != EOPNOTSUPP && error != EINVAL) return error;
  return ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

constexpr uint64_t kPatternBlock = 1u << 16;

}  // namespace

SwapFile::SwapFile(const std::string& dir, uint64_t bytes, int rank) : bytes_(bytes) {
  CheckFolder(dir, bytes);
  path_ = fmt::format("{}/zeroplan-swap-rank{}-XXXXXX", dir, rank);
  fd_ = mkostemp(path_.data(), O_CLOEXEC);
  if (fd_ < 0) {
    ThrowUsage(
        "cannot create the swap file {}: {}; nvme_path must be a folder that this user may "
        "write to",
        path_, std::strerror(errno));
  }
  unlink(path_.c_str());
  if (const int error = Reserve(fd_, bytes); error != 0) {
    close(std::exchange(fd_, -1));  // the destructor does not run for a constructor that throws
    ThrowRuntime(
        "cannot reserve {} bytes ({}) for the swap file {}: {}; free disk space or name "
        "another folder as nvme_path",
        bytes, FormatBytes(bytes), path_, std::strerror(error));
  }
}

SwapFile::~SwapFile() {
  if (fd_ >= 0) close(fd_);
}

void SwapFile::swap(SwapFile& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  path_.swap(other.path_);
}

void SwapFile::Read(uint64_t offset, std::span<std::byte> out) const {
  ZEROPLAN_CHECK(offset <= bytes_ && out.size() <= bytes_ - offset, "read outside the swap file");
  while (!out.empty()) {
    const ssize_t done = pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) {
      ThrowRuntime("cannot read {} bytes at {} of the swap file {}: {}", out.size(), offset, path_,
                   std::strerror(errno));
    }
    if (done == 0) ThrowRuntime("the swap file {} ends at byte {} of {}", path_, offset, bytes_);
    out = out.subspan(static_cast<size_t>(done));
    offset += static_cast<uint64_t>(done);
  }
}

void SwapFile::Write(uint64_t offset, std::span<const std::byte> in) const {
  ZEROPLAN_CHECK(offset <= bytes_ && in.size() <= bytes_ - offset, "write outside the swap file");
  while (!in.empty()) {
    const ssize_t done = pwrite(fd_, in.data(), in.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    // A write that takes nothing and reports nothing would loop for ever; POSIX leaves it to us.
    if (done <= 0) {
      ThrowRuntime("cannot write {} bytes at {} of the swap file {}: {}", in.size(), offset, path_,
                   std::strerror(done < 0 ? errno : ENOSPC));
    }
    in = in.subspan(static_cast<size_t>(done));
    offset += static_cast<uint64_t>(done);
  }
}

void SwapFile::FillWithPattern() const {
  std::vector<std::byte> block(std::min(kPatternBlock, bytes_));
  for (uint64_t at = 0; at < bytes_; at += block.size()) {
    const std::span part(block.data(), std::min<uint64_t>(block.size(), bytes_ - at));
    FillPattern(part, at);
    Write(at, part);
  }
}

uint64_t SwapFile::PatternHighWater() const {
  std::vector<std::byte> block(std::min(kPatternBlock, bytes_));
  for (uint64_t end = bytes_; end > 0;) {
    const uint64_t begin = end - std::min<uint64_t>(block.size(), end);
    const std::span part(block.data(), end - begin);
    Read(begin, part);
    if (const uint64_t changed = PatternEnd(part, begin); changed > 0) return begin + changed;
    end = begin;
  }
  return 0;
}

}  // namespace zeroplan
