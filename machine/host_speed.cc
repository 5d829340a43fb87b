#include "machine/host_speed.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/thread.h"
#include "core/base/timing.h"
#include "core/base/units.h"
#include "machine/host_state.h"

namespace zeroplan {
namespace {

constexpr int kThreads = 4;  // ranks swap at the same time
constexpr uint64_t kBlock = uint64_t{8} << 20;
constexpr uint64_t kSmallBlock = uint64_t{1} << 20;  // where time is limited
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
  explicit MeasuredFile(const DiskQuestion& question)
      : option_(question.option), path_(question.folder + "/zeroplan-disk-XXXXXX") {
    fd_ = mkostemp(path_.data(), O_CLOEXEC);
    if (fd_ < 0) {
      ThrowUsage("{}: cannot create {}: {}; name a folder that this user may write to", option_,
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
      ThrowUsage("{}: no room for a file of {} at {}; name a folder with more", option_,
                 FormatBytes(bytes), path_);
    }
  }
  void Transfer(bool write, char* block, uint64_t bytes, uint64_t offset) const {
    for (uint64_t done = 0; done < bytes;) {
      const auto at = static_cast<off_t>(offset + done);
      const ssize_t moved = write ? pwrite(fd_, block + done, bytes - done, at)
                                  : pread(fd_, block + done, bytes - done, at);
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
  std::string option_, path_;
  int fd_ = -1;
  bool direct_ = false;
};

using Clock = std::chrono::steady_clock;
struct Pass {
  uint64_t block = 0;  // bytes
  double limit = 0;    // seconds
  bool write = false, write_each_out = false;
};

struct Passed {
  uint64_t bytes = 0;
  double seconds = 0;
};

// Every thread moves blocks of its own, the t-th blocks t, t + threads, ... below those that `most`
// says it may; `most` is then how many it did.
Passed Run(const MeasuredFile& file, const Pass& pass, std::vector<Block>& buffers,
           std::vector<uint64_t>& most) {
  std::vector<std::exception_ptr> failures(buffers.size());
  const Clock::time_point begin = Clock::now();
  {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < buffers.size(); ++t) {
      threads.push_back(StartThread("the disk's speed", [&, t] {
        try {
          uint64_t done = 0;
          for (; done < most[t] && SecondsSince(begin) < pass.limit; ++done) {
            file.Transfer(pass.write, buffers[t].get(), pass.block,
                          (t + done * buffers.size()) * pass.block);
            if (pass.write_each_out) file.WriteOut();
          }
          most[t] = done;
        } catch (...) {
          failures[t] = std::current_exception();
        }
      }));
    }
  }
  if (pass.write && !pass.write_each_out) file.WriteOut();
  const double seconds = SecondsSince(begin);
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return {std::accumulate(most.begin(), most.end(), uint64_t{0}) * pass.block, seconds};
}

}  // namespace

std::optional<DiskRates> MeasureDisk(const DiskQuestion& question) {
  const uint64_t bytes = question.bytes;
  ZEROPLAN_CHECK(bytes >= kThreads * kBlock && bytes % (kThreads * kBlock) == 0);
  struct stat info {};
  if (stat(question.folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    ThrowUsage("{}: \"{}\" is not a folder; create it or name another", question.option,
               question.folder);
  }
  struct statfs system {};
  if (statfs(question.folder.c_str(), &system) == 0 &&
      (system.f_type == kTmpfsMagic || system.f_type == kRamfsMagic)) {
    return std::nullopt;
  }
  MeasuredFile file(question);
  file.Reserve(bytes);
  std::vector<Block> buffers;
  buffers.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) buffers.push_back(RandomBlock());
  const bool limited = std::isfinite(question.seconds);
  const uint64_t block = limited ? kSmallBlock : kBlock;
  std::vector<uint64_t> blocks(kThreads, bytes / block / kThreads);
  DiskRates rates;
  rates.direct = file.direct();
  rates.threads = kThreads;
  const Passed written =
      Run(file, {block, question.seconds, true, limited && !file.direct()}, buffers, blocks);
  rates.bytes = written.bytes;
  rates.write = static_cast<double>(written.bytes) / written.seconds;
  file.DropCache();
  const Passed read = Run(file, {block, question.seconds, false, false}, buffers, blocks);
  rates.read = static_cast<double>(read.bytes) / read.seconds;
  return rates;
}

double DiskFreeBytes(const std::string& folder) {
  struct statvfs system {};
  if (statvfs(folder.c_str(), &system) != 0) return 0;
  return static_cast<double>(system.f_bavail) * static_cast<double>(system.f_frsize);
}

namespace {

constexpr uint64_t kMib = uint64_t{1} << 20;
constexpr int kRounds = 4;  // of each loop; the first warms up

struct FreeMemory {
  void operator()(float* memory) const noexcept { std::free(memory); }
};

// `count` arrays of `elements` together. Each begins elsewhere in its page than the one before:
// loads right behind stores to the same place of another page wait for them (Intel, Optimization
// Reference Manual, 4-Kbyte aliasing).
struct Arrays {
  static constexpr size_t kSkew = 17 * 64 / sizeof(float);

  Arrays(size_t count, size_t elements)
      : stride(AlignUp(elements, 2 * kMib / sizeof(float)) + kSkew) {
    const uint64_t bytes = AlignUp(count * stride * sizeof(float), 2 * kMib);
    memory.reset(static_cast<float*>(std::aligned_alloc(2 * kMib, bytes)));
    if (memory) madvise(memory.get(), bytes, MADV_HUGEPAGE);
  }
  float* operator[](size_t i) const { return memory.get() + i * stride; }

  size_t stride;
  std::unique_ptr<float, FreeMemory> memory;  // null: not to be had
};

// A thread's parts of the arrays.
struct Part {
  float *p, *m, *v, *g;
  size_t elements;

  void Fill() const {
    std::fill_n(p, elements, 0.0f);
    std::fill_n(m, elements, 0.0f);
    std::fill_n(v, elements, 1.0f);
    std::fill_n(g, elements, 2.0f);
  }
  void Triad(float scale) const {
    float* __restrict out = p;
    const float* __restrict x = v;
    const float* __restrict y = g;
    for (size_t i = 0; i < elements; ++i) out[i] = x[i] + scale * y[i];
  }
  // AdamW's reads and writes, with arithmetic that no processor waits for: unlike the triad it
  // writes only what it has read.
  void Adam(float rate) const {
    float* __restrict param = p;
    float* __restrict first = m;
    float* __restrict second = v;
    const float* __restrict gradient = g;
    for (size_t i = 0; i < elements; ++i) {
      first[i] = 0.9f * first[i] + 0.1f * gradient[i];
      second[i] = 0.999f * second[i] + 0.001f * gradient[i] * gradient[i];
      param[i] -= rate * first[i] * second[i];
    }
  }
};

}  // namespace

MemoryRates MeasureMemory(uint64_t bytes, int threads) {
  ZEROPLAN_CHECK(bytes >= kMib && threads >= 1);
  const size_t share = bytes / (4 * sizeof(float)) / static_cast<size_t>(threads);
  const size_t elements = share * static_cast<size_t>(threads);
  const Arrays arrays(4, elements);
  if (!arrays.memory) return {};

  // Thread 0 is this one, and holds the watch.
  std::barrier sync(threads);
  const auto work = [&](int thread) {
    const size_t begin = share * static_cast<size_t>(thread);
    const Part part = {arrays[0] + begin, arrays[1] + begin, arrays[2] + begin, arrays[3] + begin,
                       share};
    part.Fill();
    std::array<std::vector<double>, 2> seconds;  // triad, Adam
    for (int round = 0; round < 2 * kRounds; ++round) {
      const bool adam = round >= kRounds;
      sync.arrive_and_wait();
      const auto start = std::chrono::steady_clock::now();
      adam ? part.Adam(1e-3f) : part.Triad(static_cast<float>(round));
      sync.arrive_and_wait();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (round % kRounds > 0) seconds[adam].push_back(took.count());
    }
    return seconds;
  };
  std::vector<std::jthread> others;
  bool complete = true;
  for (int thread = 1; thread < threads; ++thread) {
    try {
      others.emplace_back([&work, thread] { work(thread); });
    } catch (const std::system_error&) {
      complete = false;
      sync.arrive_and_drop();  // nobody waits for a thread that is not there
    }
  }
  std::array<std::vector<double>, 2> seconds = work(0);
  others.clear();
  // Read back: the loops are no dead stores.
  if (!complete || arrays[0][0] >= kRounds * 2.0f || arrays[1][0] <= 0) return {};
  const auto moved = [&](double bytes_an_element, std::vector<double> took) {
    return static_cast<double>(elements) * bytes_an_element / Median(std::move(took));
  };
  return {moved(12, std::move(seconds[0])), moved(28, std::move(seconds[1]))};
}

uint64_t MemoryBytes(int threads) {
  // 128 MiB a core: a server's last-level cache, which a machine of few of its cores may have to
  // itself, has some hundred.
  const uint64_t wanted =
      std::clamp<uint64_t>(static_cast<uint64_t>(threads) * 128 * kMib, 256 * kMib, 4096 * kMib);
  if (const auto available = MemoryInfo("MemAvailable")) {
    return std::max(kMib, std::min(wanted, *available / 8));
  }
  return wanted;
}

}  // namespace zeroplan
