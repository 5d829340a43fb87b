// Probes over this host's loopback interface. How fast it is has no verdict here.
#include "machine/tcp_probe.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "core/base/files.h"

namespace zeroplan {
namespace {

constexpr double kNoHurry = 3600;

ProbeToken TokenOf(char fill) {
  ProbeToken token;
  token.fill(fill);
  return token;
}

// A socket that listens on loopback and whose port is `port`.
UniqueFd Listener(int& port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof at;
  REQUIRE(bind(fd.get(), reinterpret_cast<sockaddr*>(&at), bytes) == 0);
  REQUIRE(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &bytes) == 0);
  port = ntohs(at.sin_port);
  return fd;
}

TEST_CASE("a server is reached by its token and name, at each of its ports") {
  int taken = 0;
  const UniqueFd other = Listener(taken);
  REQUIRE(listen(other.get(), 1) == 0);
  const ProbeServer server(TokenOf('a'), 7, {0, taken, 0}, kNoHurry);
  REQUIRE(server.ports().size() == 3);
  CHECK(server.ports()[0].port > 0);
  CHECK(server.ports()[1].port == 0);  // somebody else's
  CHECK_FALSE(server.ports()[1].why.empty());
  const auto state = [&](int port, uint32_t name, char token) {
    return ReachAll({{"127.0.0.1", port, name}}, TokenOf(token), kNoHurry).front().state;
  };
  CHECK(state(server.ports()[0].port, 7, 'a') == ProbeReach::State::kReached);
  CHECK(state(server.ports()[2].port, 7, 'a') == ProbeReach::State::kReached);
  CHECK(state(server.ports()[0].port, 8, 'a') == ProbeReach::State::kOther);
  CHECK(state(server.ports()[0].port, 7, 'b') == ProbeReach::State::kStranger);
}

TEST_CASE("a port where nobody listens refuses, and an address that is none fails") {
  int port = 0;
  const UniqueFd bound = Listener(port);  // bound, but it does not listen
  const auto reached =
      ReachAll({{"127.0.0.1", port, 0}, {"node1", port, 0}}, TokenOf('a'), kNoHurry);
  CHECK(reached[0].state == ProbeReach::State::kRefused);
  CHECK(reached[0].why == "Connection refused");
  CHECK(reached[1].state == ProbeReach::State::kFailed);
  CHECK_FALSE(reached[1].why.empty());
}

TEST_CASE("who accepts and says nothing is no server") {
  int port = 0;
  const UniqueFd mute = Listener(port);
  REQUIRE(listen(mute.get(), 4) == 0);
  // The kernel accepts for it; nothing answers however long one waits.
  CHECK(ReachAll({{"127.0.0.1", port, 0}}, TokenOf('a'), 0.05).front().state ==
        ProbeReach::State::kStranger);
}

TEST_CASE("round trips and rates are measured, within the bytes that are allowed") {
  const ProbeServer server(TokenOf('a'), 1, {0}, kNoHurry);
  ProbeLimits limits;
  limits.wait_seconds = kNoHurry;
  limits.window_seconds = kNoHurry;  // the bytes are what ends it
  limits.most_bytes = 8 << 20;
  const LinkSpeed speed =
      MeasureLinkSpeed({"127.0.0.1", server.ports()[0].port, 1}, TokenOf('a'), limits);
  CHECK(speed.why.empty());
  CHECK(speed.round_trip_seconds > 0);
  CHECK(speed.bytes_per_second > 0);
  CHECK(speed.bytes_per_second_back > 0);
  const LinkSpeed stranger =
      MeasureLinkSpeed({"127.0.0.1", server.ports()[0].port, 1}, TokenOf('b'), limits);
  CHECK_FALSE(stranger.why.empty());
}

TEST_CASE("addresses of a host: digits stand for themselves, and what is no host has none") {
  std::string why;
  CHECK(ResolveHost("127.0.0.1", why) == std::vector<std::string>{"127.0.0.1"});
  CHECK(ResolveHost("no host", why).empty());
  CHECK_FALSE(why.empty());
}

}  // namespace
}  // namespace zeroplan
