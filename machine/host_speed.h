// How fast a folder's disk writes and reads, and the bandwidth of this host's memory.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace zeroplan {

struct DiskRates {
  double read = 0, write = 0;  // bytes a second
  uint64_t bytes = 0;          // of the file
  bool direct = false;         // past the page cache; else it was written out and dropped
  int threads = 0;
};

struct DiskQuestion {
  std::string folder;
  uint64_t bytes = 0;  // of the file, at most; a multiple of 32 MiB
  // Each way, at most, and what the blocks under way still take. With a limit blocks are smaller,
  // and where the page cache cannot be passed each is written out before the next.
  double seconds = std::numeric_limits<double>::infinity();
  std::string option = "⟦nvme_path⟧";  // that names the folder, for messages
};

// Writes a file in the folder and reads it back, from several threads, past the page cache where
// the file system allows it; the file is gone afterwards, also if the process is killed. Nothing if
// the folder is in memory (tmpfs). Throws Error(kUsage) naming option, folder and fix if it is not
// a folder to write to or has no room, Error(kRuntime) if reading or writing fails.
std::optional<DiskRates> MeasureDisk(const DiskQuestion& question);

// Bytes that this user may still write there; 0 if it cannot be told.
double DiskFreeBytes(const std::string& folder);

// Bytes a second that loops over this host's memory move, in fp32.
struct MemoryRates {
  // a[i] = b[i] + s * c[i], 12 bytes an element (McCalpin 1995, STREAM triad): host.triad_bandwidth
  // of a profile.
  double triad = 0;
  // AdamW's update of a parameter, its two moments and a gradient, 28 bytes: host.adam_bandwidth.
  double adam = 0;
};
// What plans with offload on this machine need where nobody ran 'zeroplan hw measure', in about
// half a second, on `threads` threads: the median of several rounds over arrays of `bytes`
// together, each thread over what it touched first. All 0 if memory or threads cannot be had.
// REQUIRES: bytes of at least 1 MiB, threads >= 1.
MemoryRates MeasureMemory(uint64_t bytes, int threads);

// Bytes for MeasureMemory: several times what the caches of that many cores hold, and at most an
// eighth of the memory that is free.
uint64_t MemoryBytes(int threads);

}  // namespace zeroplan
