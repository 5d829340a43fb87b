// The file arena of a rank: a nameless file on the NVMe disk, gone when its owner is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace zeroplan {

class SwapFile {
 public:
  SwapFile() = default;
  // Creates a file of exactly `bytes` in folder `dir`, its disk blocks reserved, and unlinks it.
  // Throws Error(kUsage) if the folder is not given, not there or not writable, Error(kRuntime) if
  // the disk has no room; the message names the folder.
  SwapFile(const std::string& dir, uint64_t bytes, int rank);
  SwapFile(SwapFile&& other) noexcept { swap(other); }
  SwapFile& operator=(SwapFile&& other) noexcept {
    SwapFile taken(static_cast<SwapFile&&>(other));
    swap(taken);
    return *this;
  }
  ~SwapFile();

  uint64_t bytes() const { return bytes_; }

  // Move all of the span, or throw Error(kRuntime) naming the file and the reason. Threads may move
  // different bytes at once: neither has a position in the file. REQUIRES: [offset, offset + span)
  // lies within the file.
  void Read(uint64_t offset, std::span<std::byte> out) const;
  void Write(uint64_t offset, std::span<const std::byte> in) const;

  void FillWithPattern() const;
  uint64_t PatternHighWater() const;

 private:
  void swap(SwapFile& other) noexcept;

  int fd_ = -1;
  uint64_t bytes_ = 0;
  std::string path_;  // as it was named while it had a name
};

}  // namespace zeroplan
