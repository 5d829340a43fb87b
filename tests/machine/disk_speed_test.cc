// A disk's speed is of this machine, whatever it is: it can only be held to be sane.
#include "machine/disk_speed.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "core/base/error.h"
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

}  // namespace
}  // namespace zeroplan
