// Limits of control groups, from folders that look as the kernel's.
#include "machine/control_group.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/machine/fake_root.h"

namespace zeroplan {
namespace {

TEST_CASE("control groups: version 2, its own limit and those above it") {
  const FakeRoot root("0::/job/step\n");
  const std::string mount = "sys/fs/cgroup/";
  root.Write(mount + "memory.stat", "");
  root.Write(mount + "job/step/memory.max", "max\n");
  root.Write(mount + "job/step/memory.high", "max\n");
  CHECK_FALSE(QueryControlGroupMemory(root.path()));

  root.Write(mount + "job/memory.max", "8000000000\n");
  root.Write(mount + "job/memory.current", "5000000000\n");
  root.Write(mount + "job/memory.stat",
             "anon 1000000000\ninactive_file 3000000000\nactive_file 500000000\n");
  auto memory = QueryControlGroupMemory(root.path());
  REQUIRE(memory);
  CHECK(memory->limit_bytes == 8'000'000'000);
  CHECK(memory->available_bytes == 6'500'000'000);  // 8 less 5, of which 3.5 are file caches
  CHECK(memory->limiting == root.path() / mount / "job/memory.max");

  root.Write(mount + "job/step/memory.high", "7000000000\n");
  root.Write(mount + "job/step/memory.current", "100\n");
  memory = QueryControlGroupMemory(root.path());
  CHECK(memory->limit_bytes == 7'000'000'000);
  CHECK(memory->available_bytes == 6'500'000'000);
  root.Write(mount + "job/step/memory.high", "6000000000\n");
  memory = QueryControlGroupMemory(root.path());
  CHECK(memory->available_bytes == 5'999'999'900);
  CHECK(memory->limiting == root.path() / mount / "job/step/memory.high");
  // More in use than a limit that was lowered.
  root.Write(mount + "job/memory.max", "1000\n");
  CHECK(QueryControlGroupMemory(root.path())->available_bytes == 0);
}

TEST_CASE("control groups: version 1, and a container that sees its group as the mount") {
  const FakeRoot root("5:cpu,cpuacct:/job\n4:hugetlb,memory:/job/step\n1:name=systemd:/x\n0::/\n");
  const std::string mount = "sys/fs/cgroup/memory/";
  root.Write(mount + "memory.limit_in_bytes", "9223372036854771712\n");
  CHECK_FALSE(QueryControlGroupMemory(root.path()));
  root.Write(mount + "memory.limit_in_bytes", "2000\n");
  root.Write(mount + "memory.usage_in_bytes", "500\n");
  root.Write(mount + "memory.stat", "inactive_file 1\ntotal_inactive_file 100\n");
  const auto memory = QueryControlGroupMemory(root.path());
  REQUIRE(memory);
  CHECK(memory->limit_bytes == 2000);
  CHECK(memory->available_bytes == 1600);
  root.Write(mount + "job/step/memory.limit_in_bytes", "1500\n");
  CHECK(QueryControlGroupMemory(root.path())->available_bytes == 1500);
}

TEST_CASE("control groups: processor time, the smallest quota of both versions") {
  const FakeRoot root("0::/job/step\n");
  const std::string mount = "sys/fs/cgroup/";
  root.Write(mount + "job/step/cpu.max", "max 100000\n");
  CHECK_FALSE(QueryControlGroupCpus(root.path()));
  root.Write(mount + "job/cpu.max", "250000 100000\n");
  auto cpus = QueryControlGroupCpus(root.path());
  REQUIRE(cpus);
  CHECK(cpus->processors == 2.5);
  CHECK(cpus->limiting == root.path() / mount / "job/cpu.max");
  root.Write(mount + "job/step/cpu.max", "50000 100000\n");
  CHECK(QueryControlGroupCpus(root.path())->processors == 0.5);

  const FakeRoot old("5:cpu,cpuacct:/job\n4:memory:/job\n");
  old.Write(mount + "cpu/cpu.cfs_quota_us", "-1\n");
  old.Write(mount + "cpu/cpu.cfs_period_us", "100000\n");
  CHECK_FALSE(QueryControlGroupCpus(old.path()));
  old.Write(mount + "cpu/job/cpu.cfs_quota_us", "400000\n");
  CHECK_FALSE(QueryControlGroupCpus(old.path()));  // half of a setting says nothing
  old.Write(mount + "cpu/job/cpu.cfs_period_us", "100000\n");
  cpus = QueryControlGroupCpus(old.path());
  REQUIRE(cpus);
  CHECK(cpus->processors == 4);
}

}  // namespace
}  // namespace zeroplan
