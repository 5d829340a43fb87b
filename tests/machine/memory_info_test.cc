#include "machine/memory_info.h"

#include <doctest/doctest.h>

#include <fstream>

#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

TEST_CASE("what the kernel says of memory") {
  const TempDir folder;
  const std::string file = folder.path("meminfo");
  std::ofstream(file) << "MemTotal:       1000 kB\nMemAvailable:    400 kB\nActive(file): 7 kB\n"
                         "HugePages_Total:      16\nOdd: kB\n";
  CHECK(MemoryInfo("MemTotal", file) == 1000 * 1024);
  CHECK(MemoryInfo("MemAvailable", file) == 400 * 1024);
  CHECK(MemoryInfo("HugePages_Total", file) == 16);  // pages
  CHECK_FALSE(MemoryInfo("Mem", file));
  CHECK_FALSE(MemoryInfo("Total", file));
  CHECK_FALSE(MemoryInfo("Odd", file));
  CHECK_FALSE(MemoryInfo("MemTotal", folder.path("none")));
}

TEST_CASE("what the kernel says of a node's memory") {
  const TempDir folder;
  const std::string file = folder.path("meminfo");
  std::ofstream(file) << "Node 0 MemTotal:       600 kB\nNode 0 HugePages_Free:     3\n";
  CHECK(MemoryInfo("MemTotal", file) == 600 * 1024);
  CHECK(MemoryInfo("HugePages_Free", file) == 3);
  CHECK_FALSE(MemoryInfo("MemAvailable", file));
}

TEST_CASE("this machine has memory") { CHECK(MemoryInfo("MemTotal").value_or(0) > (64 << 20)); }

}  // namespace
}  // namespace zeroplan
