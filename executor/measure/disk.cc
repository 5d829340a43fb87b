#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/units.h"
#include "executor/measure/measure_host.h"

namespace zeroplan {
namespace {

constexpr int kThreads = 4;  // ranks swap at the same time
constexpr uint64_t kBlock = uint64_t{8} << 20;
constexpr uint64_t kPage = 4096;
constexpr long kTmpfsMagic = 0x01021994, kRamfsMagic = 0x858458f6;  // <linux/magic.h>

using Block = std::unique_ptr<char, void (*)(void*)>;

// Random: disks and file systems that compress or leave zeros out would look too fast.
Block RandomBlock() {
  Block block(static_cast<char*>(std::aligned_alloc(kPage, kBlock)), std::free);
  if (!block) ThrowRuntime("no memory for {} to measure the disk with", FormatBytes(kBlock));
  std::mt19937_64 random(1);
  for (uint64_t at = 0; at < kBlock; at += 8) {
    const uint64_t word = random();
    std::memcpy(block.get() + at, &word, 8);
  }
  return block;
}

// A file that is gone once it is closed.
class MeasuredFile {
 public:
  explicit MeasuredFile(const std::string& folder) : path_(folder + "/zeroplan-disk-XXXXXX") {
    fd_ = mkostemp(path_.data(), O_CLOEXEC);
    if (fd_ < 0) {
      ThrowUsage("--nvme-path: cannot create {}: {}; name a folder that this user may write to",
                 path_, std::strerror(errno));
    }
    // A second look at the same file, past the page cache; the name is needed until then.
    const int direct = open(path_.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
    unlink(path_.c_str());
    if (direct < 0) return;
    close(std::exchange(fd_, direct));
    direct_ = true;
  }
  ~MeasuredFile() { close(fd_); }
  MeasuredFile(const MeasuredFile&) = delete;
  MeasuredFile& operator=(const MeasuredFile&) = delete;

  bool direct() const { return direct_; }

  void Reserve(uint64_t bytes) {
    const int error = posix_fallocate(fd_, 0, static_cast<off_t>(bytes));
    if (error == ENOSPC) {
      ThrowUsage("--nvme-path: no room for a file of {} at {}; name a folder with more",
                 FormatBytes(bytes), path_);
    }
  }
  void Transfer(bool write, char* block, uint64_t offset) const {
    for (uint64_t done = 0; done < kBlock;) {
      const auto at = static_cast<off_t>(offset + done);
      const ssize_t moved = write ? pwrite(fd_, block + done, kBlock - done, at)
                                  : pread(fd_, block + done, kBlock - done, at);
      if (moved < 0 && errno == EINTR) continue;
      if (moved <= 0) {
        ThrowRuntime("cannot {} {}: {}", write ? "write" : "read", path_,
                     moved < 0 ? std::strerror(errno) : "it ends too early");
      }
      done += static_cast<uint64_t>(moved);
    }
  }
  void WriteOut() const {
    if (fdatasync(fd_) != 0) ThrowRuntime("cannot write out {}: {}", path_, std::strerror(errno));
  }
  void DropCache() const { posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED); }

 private:
  std::string path_;
  int fd_ = -1;
  bool direct_ = false;
};

// Runs all blocks, every thread its own, and returns the seconds.
double Run(const MeasuredFile& file, bool write, std::vector<Block>& blocks, uint64_t bytes) {
  std::vector<std::exception_ptr> failures(blocks.size());
  const auto begin = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < blocks.size(); ++t) {
      threads.emplace_back([&, t] {
        try {
          for (uint64_t at = t * kBlock; at < bytes; at += blocks.size() * kBlock) {
            file.Transfer(write, blocks[t].get(), at);
          }
        } catch (...) {
          failures[t] = std::current_exception();
        }
      });
    }
  }
  if (write) file.WriteOut();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return seconds;
}

}  // namespace

std::optional<DiskRates> MeasureDisk(const std::string& folder, uint64_t bytes) {
  ZEROPLAN_CHECK(bytes >= kThreads * kBlock && bytes % (kThreads * kBlock) == 0);
  struct stat info {};
  if (stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    ThrowUsage("--nvme-path: \"{}\" is not a folder; create it or name another", folder);
  }
  struct statfs system {};
  if (statfs(folder.c_str(), &system) == 0 &&
      (system.f_type == kTmpfsMagic || system.f_type == kRamfsMagic)) {
    return std::nullopt;
  }
  MeasuredFile file(folder);
  file.Reserve(bytes);
  std::vector<Block> blocks;
  blocks.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) blocks.push_back(RandomBlock());
  DiskRates rates;
  rates.bytes = bytes;
  rates.direct = file.direct();
  rates.threads = kThreads;
  rates.write = static_cast<double>(bytes) / Run(file, true, blocks, bytes);
  file.DropCache();
  rates.read = static_cast<double>(bytes) / Run(file, false, blocks, bytes);
  return rates;
}

double DiskFreeBytes(const std::string& folder) {
  struct statvfs system {};
  if (statvfs(folder.c_str(), &system) != 0) return 0;
  return static_cast<double>(system.f_bavail) * static_cast<double>(system.f_frsize);
}

}  // namespace zeroplan
