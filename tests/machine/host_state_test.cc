// A host's set-up, from folders that look as the kernel's, and limits of this process.
#include "machine/host_state.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/resource.h>

#include <fstream>
#include <limits>
#include <string>

#include "machine/gpu_state.h"
#include "tests/machine/fake_root.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

TEST_CASE("a planted host is read as it is") {
  const FakeRoot root("0::/job\n");
  root.Write("proc/meminfo",
             "MemTotal:       1000 kB\nMemAvailable:    400 kB\nHugePages_Total:      16\n"
             "HugePages_Free:       10\nHugepagesize:       2048 kB\n");
  root.Write("proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
  root.Write("sys/fs/cgroup/job/memory.max", "500000\n");
  root.Write("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  root.Write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  root.Write("sys/devices/system/cpu/online", "0-2,5\n");
  root.Write("sys/devices/system/node/node1/cpulist", "4096-4099\n");
  root.Write("sys/devices/system/node/node0/cpulist", "0-1023\n");
  root.Write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       600 kB\n");
  root.Write("sys/devices/system/node/has_cpu", "0-1\n");
  const auto device = [&](const std::string& name, const char* vendor, const char* kind) {
    root.Write("sys/bus/pci/devices/" + name + "/vendor", vendor);
    root.Write("sys/bus/pci/devices/" + name + "/class", kind);
  };
  device("0000:3b:00.0", "0x10de\n", "0x030200\n");
  device("0000:3b:00.1", "0x10de\n", "0x040300\n");  // its sound
  device("0000:00:02.0", "0x8086\n", "0x030000\n");
  root.Write("proc/version", "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@x)\n");
  const HostState host = QueryHostState(root.path());
  CHECK(host.wsl);
  CHECK(host.online == 4);
  REQUIRE(host.quota);
  CHECK(host.quota->processors == 1.5);
  REQUIRE(host.nodes.size() == 2);
  CHECK(host.nodes[0].id == 0);
  CHECK(host.nodes[0].processors == 1024);
  CHECK(host.nodes[0].memory_bytes == 600 * 1024);
  CHECK(host.nodes[0].used);
  CHECK(host.nodes[1].processors == 4);
  CHECK_FALSE(host.nodes[1].used);
  CHECK(host.memory_bytes == 1000 * 1024);
  CHECK(host.available_bytes == 400 * 1024);
  REQUIRE(host.group);
  CHECK(host.group->limit_bytes == 500000);
  CHECK(host.transparent_huge_pages == "never");
  CHECK(host.huge_pages == 16);
  CHECK(host.free_huge_pages == 10);
  CHECK(host.huge_page_bytes == 2048 * 1024);
  CHECK(host.may_pass_locked_limit);
  CHECK_FALSE(host.shared_bytes);
  CHECK(host.nvidia_devices == 1);
}

TEST_CASE("what a host does not tell is not known") {
  const FakeRoot root("");
  const HostState host = QueryHostState(root.path());
  CHECK(host.online == 0);
  CHECK(host.nodes.empty());
  CHECK(host.memory_bytes == 0);
  CHECK(host.transparent_huge_pages.empty());
  CHECK_FALSE(host.may_pass_locked_limit);
  CHECK_FALSE(host.quota);
  CHECK_FALSE(host.group);
}

TEST_CASE("limits and affinity are those of this process") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_MEMLOCK, &before) == 0);
  rlimit lower = before;
  lower.rlim_cur = 65536;
  REQUIRE(setrlimit(RLIMIT_MEMLOCK, &lower) == 0);
  CHECK(QueryHostState().locked_limit == 65536);
  REQUIRE(setrlimit(RLIMIT_MEMLOCK, &before) == 0);

  cpu_set_t all, one;
  REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(QueryHostState().allowed == 1);
  REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
  CHECK(QueryHostState().allowed == CPU_COUNT(&all));
}

TEST_CASE("a lane of PCIe moves what the specification says") {
  CHECK(PcieLaneBandwidth(3) * 16 == doctest::Approx(15.75).epsilon(0.001));
  CHECK(PcieLaneBandwidth(5) * 16 == doctest::Approx(63.02).epsilon(0.001));
  CHECK(PcieLaneBandwidth(1) == 0.25);
  CHECK(PcieLaneBandwidth(0) == 0);
}

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
