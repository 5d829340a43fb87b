// A disk's speed is of this machine, whatever it is: it can only be held to be sane.
#include "machine/host_speed.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>

#include "core/base/error.h"
#include "machine/detect.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

constexpr uint64_t kMib = uint64_t{1} << 20;

TEST_CASE("disk rates are positive and the file is gone") {
  const TempDir folder;
  const auto rates = MeasureDisk({.folder = folder.path(), .bytes = 64 * kMib});
  CHECK(std::filesystem::is_empty(folder.path()));
  if (!rates) return;  // the temporary folder is in memory
  CHECK(rates->bytes == 64 * kMib);
  for (const double rate : {rates->read, rates->write}) {
    CHECK(std::isfinite(rate));
    CHECK(rate > 1e5);
  }
  CHECK(DiskFreeBytes(folder.path()) > 0);
}

TEST_CASE("with a limit of time less may be written, and no more is read than was") {
  const TempDir folder;
  const auto rates = MeasureDisk({.folder = folder.path(), .bytes = 4096 * kMib, .seconds = 0.05});
  CHECK(std::filesystem::is_empty(folder.path()));
  if (!rates) return;
  CHECK(rates->bytes >= 4 * kMib);  // a block of each thread
  CHECK(rates->bytes % kMib == 0);
  CHECK(rates->read > 1e5);
  CHECK(rates->write > 1e5);
}

TEST_CASE("a folder that is none is named") {
  const std::string option = "--dir";
  for (const std::string folder : {"/nowhere/at/all", "/proc/self/status"}) {
    std::string message;
    try {
      MeasureDisk({.folder = folder, .bytes = 32 * kMib, .option = option});
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kUsage);
      message = error.what();
    }
    CHECK(message.starts_with("--dir: "));
    CHECK(message.find(folder) != std::string::npos);
  }
}

TEST_CASE("loops over more than the caches give what memory can") {
  const int threads = QueryHost().cores;
  const auto begin = std::chrono::steady_clock::now();
  const MemoryRates rates = MeasureMemory(MemoryBytes(threads), threads);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  MESSAGE("triad on ", threads, " threads: ", rates.triad / 1e9, " GB/s, Adam ", rates.adam / 1e9,
          " GB/s in ", took.count(), " s");
  for (const double rate : {rates.triad, rates.adam}) {
    CHECK(rate > 1e5);  // a busy machine is slow, wrong units are far below
    CHECK(rate < 20e12);
  }
}

TEST_CASE("any number of threads works, also more than there are cores") {
  for (const int threads : {1, 2, 3, 17}) {
    CAPTURE(threads);
    const MemoryRates rates = MeasureMemory(uint64_t{8} << 20, threads);
    CHECK(rates.triad > 1e5);
    CHECK(rates.adam > 1e5);
  }
}

TEST_CASE("what is measured over exceeds the caches, within bounds") {
  CHECK(MemoryBytes(1) <= uint64_t{256} << 20);
  CHECK(MemoryBytes(1) >= uint64_t{1} << 20);
  CHECK(MemoryBytes(64) >= MemoryBytes(1));
  CHECK(MemoryBytes(1000) <= uint64_t{4096} << 20);
}

}  // namespace

}  // namespace zeroplan
