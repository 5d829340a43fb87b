#include "text/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/error.h"
#include "core/base/files.h"

namespace zeroplan {
namespace {

constexpr size_t kCopyUpToBytes = 16 << 10;

}  // namespace

MappedFile MappedFile::Open(const std::filesystem::path& path) {
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

}  // namespace zeroplan
