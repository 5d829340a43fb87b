// What messages say of where a process is.
#include "executor/process/host_text.h"

#include <doctest/doctest.h>

#include <string>

#include "executor/process/connection.h"
#include "machine/network_state.h"
#include "tests/has.h"

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

}  // namespace
}  // namespace zeroplan
