// The file arena of a rank: an unlinked file on the NVMe disk, deleted with its owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace zeroplan {

class SwapFile {
 public:
  SwapFile() = default;
  // Creates a file of exactly `bytes` in folder `dir`, reserves its disk blocks, and unlinks it.
  // Throws Error(kUsage) if the folder is not given, missing or not writable, Error(kRuntime) if
  // the disk is full; the message names the folder.
  SwapFile(const std::string& dir, uint64_t bytes, int rank);
  SwapFile(SwapFile&& other) noexcept { swap(other); }
  SwapFile& operator=(SwapFile&& other) noexcept {
    SwapFile taken(static_cast<SwapFile&&>(other));
    swap(taken);
    return *this;
  }
  ~SwapFile();

  uint64_t bytes() const { return bytes_; }

  // Transfer the whole span, or throw Error(kRuntime) naming the file and the reason. Threads may
  // transfer different bytes at once, because neither call uses a file position. REQUIRES: [offset,
  // offset + span) is within the file.
  void Read(uint64_t offset, std::span<std::byte> out) const;
  void Write(uint64_t offset, std::span<const std::byte> in) const;

  void FillWithPattern() const;
  uint64_t PatternHighWater() const;

 private:
  void swap(SwapFile& other) noexcept;

  int fd_ = -1;
  uint64_t bytes_ = 0;
  std::string path_;  // its name before it was unlinked
};

}  // namespace zeroplan
