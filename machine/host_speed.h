// Measures the write and read speed of a folder's disk, and the bandwidth of this host's memory.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace zeroplan {

struct DiskRates {
  double read = 0, write = 0;  // bytes a second
  uint64_t bytes = 0;          // size of the file
  bool direct = false;         // bypassed the page cache; else the file was written out and dropped
  int threads = 0;
};

struct DiskQuestion {
  std::string folder;
  uint64_t bytes = 0;  // size of the file, at most; a multiple of 32 MiB
  // Limit for each direction, plus the blocks under way. With a limit blocks are smaller, and if
  // the page cache cannot be bypassed each is written out before the next.
  double seconds = std::numeric_limits<double>::infinity();
  std::string option = "⟦nvme_path⟧";  // the option that names the folder, for messages
};

// Writes a file in the folder and reads it back, from several threads, bypassing the page cache if
// the file system allows it; the file disappears afterwards, even if the process is killed. Nothing
// if the folder is in memory (tmpfs). Throws Error(kUsage) naming option, folder and fix if it is
// not a writable folder or has no room, Error(kRuntime) if reading or writing fails.
std::optional<DiskRates> MeasureDisk(const DiskQuestion& question);

// Bytes that this user may still write there; 0 if unknown.
double DiskFreeBytes(const std::string& folder);

// Bytes a second moved by loops over this host's memory, in fp32.
struct MemoryRates {
  // a[i] = b[i] + s * c[i], 12 bytes an element (McCalpin 1995, STREAM triad): host.triad_bandwidth
  // of a profile.
  double triad = 0;
  // AdamW's update of a parameter, its two moments and a gradient, 28 bytes: host.adam_bandwidth.
  double adam = 0;
};
// Measures the rates that plans with offload need on this machine if 'zeroplan hw measure' was not
// run, in about half a second, on `threads` threads: the median of several rounds over arrays of
// `bytes` together, each thread over the part that it touched first. All 0 if memory or threads are
// not available. REQUIRES: bytes of at least 1 MiB, threads >= 1.
MemoryRates MeasureMemory(uint64_t bytes, int threads);

// Bytes for MeasureMemory: several times the caches of that many cores, and at most an eighth of
// the free memory.
uint64_t MemoryBytes(int threads);

}  // namespace zeroplan
