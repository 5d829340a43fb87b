#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "executor/process/launcher.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

std::string WhyNot(const std::string& text) {
  return ErrorOf(ExitCode::kUsage, [&] { ParseHosts(text, "--hosts"); });
}

TEST_CASE("hosts of the command line") {
  const auto hosts =
      ParseHosts("node1:8, me@node-2.cluster:4,[fe80::1%eth0]:2,10.0.0.7:1", "--hosts");
  CHECK(hosts == std::vector<HostShare>{
                     {"node1", 8}, {"me@node-2.cluster", 4}, {"fe80::1%eth0", 2}, {"10.0.0.7", 1}});
  CHECK(hosts[1].address() == "node-2.cluster");
  CHECK(hosts[2].address() == "fe80::1%eth0");
  CHECK(RanksOf(hosts) == 15);
}

TEST_CASE("hosts that are none are named, with the fix") {
  CHECK(Has(WhyNot("node1"), "--hosts: 'node1' is not HOST:GPUS; use for example node1:8"));
  CHECK(Has(WhyNot(""), "'' is not HOST:GPUS"));
  CHECK(Has(WhyNot("a:8,"), "'' is not HOST:GPUS"));
  CHECK(Has(WhyNot("a:0"), "'0' is no number of ranks for a"));
  CHECK(Has(WhyNot("a:8x"), "'8x' is no number of ranks for a"));
  CHECK(Has(WhyNot("a:-1"), "'-1' is no number of ranks for a"));
  CHECK(Has(WhyNot("a:99999999999"), "is no number of ranks for a"));
  CHECK(Has(WhyNot("a:1,b:2,a:3"), "a is named twice"));
  CHECK(Has(WhyNot("fe80::1:8"), "needs brackets around an IPv6 address"));
  CHECK(Has(WhyNot("-oProxyCommand=x:8"), "'-oProxyCommand=x' is no host's name"));
  CHECK(Has(WhyNot("a b:8"), "'a b' is no host's name"));
  CHECK(Has(WhyNot("$(reboot):8"), "is no host's name"));
  CHECK(Has(WhyNot("a\x1b[2J:8"), "'a?[2J' is no host's name"));
  CHECK(Has(WhyNot("fe80::1]:8"), "has ] without ["));
}

TEST_CASE("hosts of a file, with its lines in errors") {
  const TempDir dir;
  const std::string path = dir.path() + "/hosts";
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  const auto why = [&] { return ErrorOf(ExitCode::kUsage, [&] { ReadHostFile(path); }); };
  write("# ours\r\nnode1 slots=8\r\n\n  node2\tslots=4  # half of it\n");
  CHECK(ReadHostFile(path) == std::vector<HostShare>{{"node1", 8}, {"node2", 4}});
  write("node1 slots=8\nnode2\n");
  CHECK(Has(why(), path + ":2: 'node2' is not 'HOST slots=GPUS'"));
  write("node1 slots=8 max_slots=9\n");
  CHECK(Has(why(), path + ":1: '8 max_slots=9' is no number of ranks for node1"));
  write("node1 slots=8\n\nnode1 slots=8\n");
  CHECK(Has(why(), path + ":3: node1 is named twice"));
  write("# none\n");
  CHECK(Has(why(), path + ": names no host"));
  std::filesystem::remove(path);
  CHECK(Has(why(), path + ": cannot read: No such file or directory"));
}

}  // namespace
}  // namespace zeroplan
