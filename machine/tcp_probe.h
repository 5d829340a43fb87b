// Whether one host reaches another over TCP, how long a round trip takes and how many bytes a
// second go through: a server that answers whoever knows a token, and its clients. Everything is
// bounded in time and bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace zeroplan {

// The same in all processes that probe each other; anybody else's connection is closed.
using ProbeToken = std::array<char, 32>;

// A port that a server was asked to listen at.
struct ProbePort {
  int asked = 0;    // 0: any that is free
  int port = 0;     // where it listens; 0: it does not
  std::string why;  // it does not: "Address already in use"
};

// Listens on all interfaces, IPv4 and IPv6, and serves in threads of its own until it ends.
class ProbeServer {
 public:
  // `name`: what it answers, so that a client knows whom it reached. `seconds`: how long a peer may
  // take for its next bytes.
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

// The addresses of a host, as digits, in the resolver's order, at most four. None, and `why` says
// why, where it has none. May take seconds.
std::vector<std::string> ResolveHost(const std::string& host, std::string& why);

struct ProbeTarget {
  std::string address;  // digits
  int port = 0;
  uint32_t name = 0;  // of the server that has to answer
};
struct ProbeReach {
  enum class State : uint8_t {
    kReached,
    kSilent,    // no answer in time: packets are dropped
    kRefused,   // connection refused
    kFailed,    // another error of the system, such as no route
    kStranger,  // who listens there does not know the token
    kOther      // another of the servers answered
  } state = State::kFailed;
  std::string why;     // "" where it was reached
  uint32_t other = 0;  // of kOther: its name
};
// Tries all of them, many at once, each for `seconds`. In the order of the targets.
std::vector<ProbeReach> ReachAll(const std::vector<ProbeTarget>& targets, const ProbeToken& token,
                                 double seconds);

struct ProbeLimits {
  double wait_seconds = 3;                  // for a connection, or a peer's next bytes
  double window_seconds = 0.4;              // that bytes are counted in, the first quarter left out
  uint64_t most_bytes = uint64_t{1} << 30;  // of a stream
  int streams = 4;                          // connections side by side
  int round_trips = 50;
};
struct LinkSpeed {
  std::string why;                // "": it was measured; else what failed
  double round_trip_seconds = 0;  // of one byte: the median
  // To the server and from it, all streams together. 0: it connects, but nothing came through.
  double bytes_per_second = 0, bytes_per_second_back = 0;
};
LinkSpeed MeasureLinkSpeed(const ProbeTarget& target, const ProbeToken& token,
                           const ProbeLimits& limits = {});

}  // namespace zeroplan
