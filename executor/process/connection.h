// One TCP connection between two ranks: frames in and out through buffers, without blocking.
//
// A frame is the payload's length (4 bytes), a type (1 byte) and the payload, in the byte order of
// the machine: a run's hosts are of one kind.
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/files.h"

namespace zeroplan {

using SteadyTime = std::chrono::steady_clock::time_point;

enum class FrameType : uint8_t {
  kHello,      // rank to rank 0: identifies itself (handshake.h)
  kJoined,     // rank 0: accepted, wait for the others
  kRefused,    // rank 0: refused, with the reason
  kStart,      // rank 0: all ranks have joined
  kPart,       // rank to rank 0: its part of a collective
  kResult,     // rank 0: the result of the parts
  kAlive,      // rank to rank 0: a sign of life, with the rank's activity
  kFailed,     // rank to rank 0: it has failed; rank 0 to all: the run has (star_frames.h)
  kGoodbye,    // leaves in an orderly way
  kChallenge,  // rank 0: asks for a proof of the secret
  kProof       // rank to rank 0: the proof
};

struct Frame {
  FrameType type;
  std::string payload;
};

// A frame's bytes, for any number of connections.
using SharedFrame = std::shared_ptr<const std::string>;
SharedFrame MakeFrame(FrameType type, std::string_view payload);

class Connection {
 public:
  static constexpr size_t kMaxPayload = 64u << 20;
  // The longest message of a peer that is not authenticated.
  static constexpr size_t kMaxHello = 4096;

  Connection() = default;
  // `socket` must be connected.
  explicit Connection(UniqueFd socket, size_t max_payload = kMaxPayload);

  int fd() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  void Close() { socket_.Close(); }
  void set_max_payload(size_t bytes) { max_payload_ = bytes; }

  void Queue(FrameType type, std::string_view payload = {});
  void Queue(SharedFrame frame);
  bool wants_to_send() const { return open() && !out_.empty(); }
  // Sends as much as possible without waiting.
  void Flush();
  // Sends and receives as much as possible without waiting. Closes the connection when the peer is
  // gone or sends something that is no frame; Next() still returns earlier frames.
  void Pump();
  std::optional<Frame> Next();
  // The time of the last received data.
  SteadyTime heard() const { return heard_; }
  void set_heard(SteadyTime time) { heard_ = time; }

 private:
  bool Send();  // false: the peer accepts no more data
  void Receive();

  UniqueFd socket_;
  size_t max_payload_ = kMaxPayload;
  std::string in_;
  size_t taken_ = 0;  // bytes of in_ that Next() has returned
  std::deque<SharedFrame> out_;
  size_t sent_ = 0;  // sent bytes of the first frame in out_
  SteadyTime heard_;
};

// Finds the connections that are ready among many: a round costs time for those only.

// Uses epoll. Closing a descriptor removes it.
class Poller {
 public:
  Poller();  // throws Error(kRuntime)

  // `id`: the name that Wait returns.
  void Add(int fd, uint64_t id);
  // Whether a descriptor also counts as ready when it can send.
  void WantToSend(int fd, uint64_t id, bool wants);
  // The ids that are ready; empty after `limit`, or on a signal. The list is valid until the next
  // call.
  const std::vector<uint64_t>& Wait(std::chrono::milliseconds limit);

 private:
  UniqueFd epoll_;
  std::vector<uint64_t> ready_;
};

// Addresses and sockets: the rendezvous' interface to the system.

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// Null if the host has no address; `why` has the reason. Queries the system's resolver, which may
// take seconds.
Addresses Resolve(const std::string& host, int port, std::string& why);

// The hosts of ProcessPlace::address.
std::vector<std::string> SplitHosts(const std::string& address);

// Starts to connect. If that fails at once, returns a closed descriptor and sets `why`.
UniqueFd BeginToConnect(const addrinfo& address, std::string& why);
// The reason why a socket that has become writable is not connected; "" if it is.
std::string WhyNotConnected(int fd);

// The host at the other end, as a numeric address.
std::string PeerAddress(int fd);
// Whether a numeric address (or "") only reaches the host itself.
bool IsLoopbackText(std::string_view address);
// This host's address as the others know it: 127.0.0.1 or ::1 if they are all on it, "" without an
// open connection.
std::string OwnAddress(const std::vector<Connection>& connections);

// A socket that listens at `address`:`port`; port 0 chooses a free one, and sets `port`.
//
// `address` is the host's own and selects the interface: the socket is not reachable through
// others. With `other_hosts`, addresses of the loopback interface do not count (many systems give a
// host's own name one). If no address is left that this host has (it is behind address
// translation), or `address` is a list, it listens on all interfaces. Throws Error(kRuntime) naming
// the port and the fix.
UniqueFd Listen(const std::string& address, bool other_hosts, int& port);

// The limit of open files, which the connections of a large run exceed.

// Raises this process's soft limit, up to the hard limit, so that `more` files can be opened in
// addition to the open ones. Returns how many more can be: at most `more`.
int RaiseOpenFileLimit(int more);

// The same, but throws Error(kRuntime) naming `what`, the limit and `ulimit -n` if it does not
// suffice.
void NeedOpenFiles(int more, const char* what);

}  // namespace zeroplan
