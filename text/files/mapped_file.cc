#include "text/files/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/limits.h"
#include "core/base/long_work.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

constexpr size_t kCopyUpToBytes = 16 << 10;

}  // namespace

MappedFile MappedFile::Open(const std::filesystem::path& path) {
  CheckFileName(path);
  // O_NONBLOCK: opening a pipe by mistake must fail below, not wait for a writer.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) ThrowUsage("{}: cannot open: {}", path.string(), std::strerror(errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) {
    ThrowUsage("{}: cannot stat: {}", path.string(), std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) ThrowUsage("{}: not a regular file", path.string());

  MappedFile file;
  file.size_ = static_cast<size_t>(info.st_size);
  if (file.size_ == 0) return file;
  if (file.size_ <= kCopyUpToBytes) {
    file.copy_ = std::make_unique<std::byte[]>(file.size_);
    file.data_ = file.copy_.get();
    size_t done = 0;
    while (done < file.size_) {
      const ssize_t got = ::read(fd.get(), file.copy_.get() + done, file.size_ - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) ThrowUsage("{}: cannot read: {}", path.string(), std::strerror(errno));
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    file.size_ = done;  // it may have shrunk since fstat
    return file;
  }
  void* address = ::mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) {
    file.size_ = 0;
    ThrowUsage("{}: cannot map {} bytes: {}", path.string(), info.st_size, std::strerror(errno));
  }
  file.data_ = static_cast<const std::byte*>(address);
  file.range_ = MappedRange(file.data_, file.size_, path);
  return file;
}

// `first` and `last` are multiples of a page, or past the end.
void MappedFile::Advise(uint64_t first, uint64_t last, int advice) const noexcept {
  last = std::min<uint64_t>(last, size_);
  if (copy_ != nullptr || first >= last) return;
  // Advice that is refused is no failure.
  ::madvise(const_cast<std::byte*>(data_) + first, last - first, advice);
}

void MappedFile::Prefetch(uint64_t offset, uint64_t bytes) const noexcept {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  Advise(offset / page * page, bytes > size_ ? size_ : offset + bytes, MADV_WILLNEED);
}

void MappedFile::DropResident(uint64_t offset, uint64_t bytes) const noexcept {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t end = offset + bytes;
  Advise((offset + page - 1) / page * page, end >= size_ ? size_ : end / page * page,
         MADV_DONTNEED);
}

void MappedFile::Release() noexcept {
  range_ = MappedRange();
  if (data_ != nullptr && copy_ == nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  copy_.reset();
  data_ = nullptr;
  size_ = 0;
}

MappedFile::~MappedFile() { Release(); }

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      range_(std::move(other.range_)),
      copy_(std::move(other.copy_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    Release();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    range_ = std::move(other.range_);
    copy_ = std::move(other.copy_);
  }
  return *this;
}

// Nodes are never freed, so that a handler may walk the list at any moment; one that is no longer
// used has no bytes, and is used again.
struct MappedRange::Node {
  std::atomic<uintptr_t> begin = 0;
  std::atomic<size_t> bytes = 0;
  std::atomic<const char*> path = nullptr;
  Node* next = nullptr;
};

struct MappedRanges {
  using Node = MappedRange::Node;

  static Node* Add(const std::byte* data, size_t bytes, const std::filesystem::path& path) {
    const std::lock_guard lock(mutex);
    const bool is_new = free.empty();
    Node* node = is_new ? new Node : free.back();
    if (!is_new) free.pop_back();
    std::free(const_cast<char*>(node->path.exchange(::strdup(Escaped(path.string()).c_str()))));
    node->begin = reinterpret_cast<uintptr_t>(data);
    node->bytes = bytes;
    if (is_new) {
      node->next = first;
      first = node;
    }
    return node;
  }
  static void Remove(Node* node) {
    const std::lock_guard lock(mutex);
    node->bytes = 0;
    free.push_back(node);
  }
  // The file at that address; nullptr if there is none.
  static const char* PathAt(uintptr_t address) {
    for (const Node* node = first; node != nullptr; node = node->next) {
      if (address - node->begin < node->bytes) return node->path;
    }
    return nullptr;
  }

  static inline std::atomic<Node*> first = nullptr;
  static inline std::mutex mutex;
  static inline std::vector<Node*> free;  // under mutex
};

namespace {

// Calls nothing but what a signal handler may call.
void OnBusError(int signal, siginfo_t* info, void*) {
  const char* path = MappedRanges::PathAt(reinterpret_cast<uintptr_t>(info->si_addr));
  if (path == nullptr) {
    ::signal(signal, SIG_DFL);  // which the faulting instruction, run again, meets
    return;
  }
  constexpr char kBegin[] = "zeroplan: ";
  constexpr char kEnd[] =
      ": was cut short while it is read, or its disk cannot read it any more; nothing is saved of "
      "what came after the last checkpoint\n";
  const iovec parts[] = {{const_cast<char*>(kBegin), sizeof kBegin - 1},
                         {const_cast<char*>(path), std::strlen(path)},
                         {const_cast<char*>(kEnd), sizeof kEnd - 1}};
  [[maybe_unused]] const ssize_t written = ::writev(STDERR_FILENO, parts, 3);
  ::_exit(static_cast<int>(ExitCode::kRuntime));
}

void InstallOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    if (::sigaction(SIGBUS, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
    action = {};
    action.sa_sigaction = OnBusError;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, nullptr);
  });
}

}  // namespace

MappedRange::MappedRange(const std::byte* data, size_t bytes, const std::filesystem::path& path)
    : node_(MappedRanges::Add(data, bytes, path)) {
  InstallOnce();
}

MappedRange::~MappedRange() {
  if (node_ != nullptr) MappedRanges::Remove(node_);
}

MappedRange::MappedRange(MappedRange&& other) noexcept
    : node_(std::exchange(other.node_, nullptr)) {}

MappedRange& MappedRange::operator=(MappedRange&& other) noexcept {
  std::swap(node_, other.node_);
  return *this;
}

ChecksumStream::ChecksumStream() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state_);
}

ChecksumStream::~ChecksumStream() { XXH3_freeState(state_); }

void ChecksumStream::Add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_, bytes.data(), bytes.size());
}

void ChecksumStream::Add(const MappedFile& file, uint64_t offset, uint64_t bytes) {
  constexpr uint64_t kAtOnce = uint64_t{4} << 20;
  for (uint64_t done = 0; done < bytes; done += kAtOnce) {
    ThrowIfInterrupted();
    const uint64_t part = std::min(kAtOnce, bytes - done);
    file.Prefetch(offset + done, 2 * kAtOnce);
    Add(file.bytes().subspan(offset + done, part));
    file.DropResident(offset + done, part);
  }
}

Checksum ChecksumStream::Get() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_);
  return {hash.high64, hash.low64};
}

}  // namespace zeroplan
