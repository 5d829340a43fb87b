// Measures whether one host reaches another over TCP, its round trip time and its bytes a second: a
// server that answers clients which know a token, and its clients. Everything is bounded in time
// and bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace zeroplan {

// Equal in all processes that probe each other; other connections are closed.
using ProbeToken = std::array<char, 32>;

// A port at which a server should listen.
struct ProbePort {
  int asked = 0;    // the request; 0: any free port
  int port = 0;     // the port at which it listens; 0: it does not
  std::string why;  // the reason if it does not: "Address already in use"
};

// Listens on all interfaces, IPv4 and IPv6, and serves in threads of its own until its destruction.
class ProbeServer {
 public:
  // `name`: the server's answer, by which a client checks whom it reached. `seconds`: a peer's
  // limit for its next bytes.
  ProbeServer(const ProbeToken& token, uint32_t name, const std::vector<int>& ports,
              double seconds);
  ~ProbeServer();
  ProbeServer(const ProbeServer&) = delete;
  ProbeServer& operator=(const ProbeServer&) = delete;

  const std::vector<ProbePort>& ports() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The numeric addresses of a host, in the resolver's order, at most four. Empty if it has none, and
// `why` has the reason. May take seconds.
std::vector<std::string> ResolveHost(const std::string& host, std::string& why);

struct ProbeTarget {
  std::string address;  // numeric
  int port = 0;
  uint32_t name = 0;  // the expected server's
};
struct ProbeReach {
  enum class State : uint8_t {
    kReached,
    kSilent,    // no answer in time: packets are dropped
    kRefused,   // connection refused
    kFailed,    // another error of the system, such as no route
    kStranger,  // the listener does not know the token
    kOther      // another of the servers answered
  } state = State::kFailed;
  std::string why;     // "" if it was reached
  uint32_t other = 0;  // kOther: the name of that server
};
// Probes all targets, many at once, each for `seconds`. Results are in the order of the targets.
std::vector<ProbeReach> ReachAll(const std::vector<ProbeTarget>& targets, const ProbeToken& token,
                                 double seconds);

struct ProbeLimits {
  double wait_seconds = 3;      // for a connection, or a peer's next bytes
  double window_seconds = 0.4;  // time in which bytes are counted, the first quarter left out
  uint64_t most_bytes = uint64_t{1} << 30;  // limit of a stream
  int streams = 4;                          // concurrent connections
  int round_trips = 50;
};
struct LinkSpeed {
  std::string why;                // "": it was measured; else the failure
  double round_trip_seconds = 0;  // median, of one byte
  // To the server and back, all streams together. 0: it connects, but no bytes arrived.
  double bytes_per_second = 0, bytes_per_second_back = 0;
};
LinkSpeed MeasureLinkSpeed(const ProbeTarget& target, const ProbeToken& token,
                           const ProbeLimits& limits = {});

}  // namespace zeroplan
