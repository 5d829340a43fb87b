// What messages say of where a process is.
#include "executor/process/host_text.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "executor/process/connection.h"
#include "machine/network_state.h"
#include "tests/executor/process/launched.h"
#include "tests/has.h"
#include "tests/patience.h"
#include "tests/temp_dir.h"
#include "tests/two_hosts.h"

namespace zeroplan {
namespace {

TEST_CASE("loopback is nowhere else, and a network's address comes with its interface") {
  for (const char* address : {"127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1", ""}) {
    CHECK(OnHostText(address).empty());
  }
  CHECK(OtherEndText(-1).empty());
  std::string why;
  CHECK(WayText(*Resolve("127.0.0.1", 1, why)).empty());
  // An address of documentation (RFC 5737), which no host has.
  CHECK(Has(OnHostText("192.0.2.1"), "(192.0.2.1, an interface that is not known)"));
  for (const NetworkInterface& interface : QueryNetworkState().interfaces) {
    for (const std::string& address : interface.addresses) {
      if (interface.loopback || address.find(':') != std::string::npos) continue;
      CHECK(Has(OnHostText(address), "(" + address + ", " + interface.name + ")"));
      CHECK(Has(OnHostText("::ffff:" + address), ", " + interface.name + ")"));
      CHECK(Has(WayText(*Resolve(address, 1, why)), ", by its "));
    }
  }
}

TEST_CASE("a rank that is lost is named with its host and the interface that led there") {
  const TwoHosts hosts;
  if (!hosts.why_not().empty()) {
    MESSAGE("skipped: ", hosts.why_not());
    return;
  }
  const TempDir folder;
  const std::string ssh = folder.path() + "/ssh";
  std::ofstream(ssh) << "#!/bin/sh\ncase $1 in\n" << hosts.ssh_cases() << "esac\n";
  chmod(ssh.c_str(), 0755);
  Launched run({"hosts", "10.77.0.1:1,10.77.0.2:1", ssh, std::to_string(kNoLimit.count())},
               {"die", "1"});
  CHECK(run.End() == 4);
  CAPTURE(run.text());
  CHECK(Has(run.text(), "rank 1: lost (connection closed), at 10.77.0.2, by this host's zpa\n"));
}

}  // namespace
}  // namespace zeroplan
