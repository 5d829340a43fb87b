// One TCP connection between two ranks: frames out of a buffer, frames into one, nothing blocks.
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
  kHello,      // rank to rank 0: who it is (handshake.h)
  kJoined,     // rank 0: known, wait for the others
  kRefused,    // rank 0: why not
  kStart,      // rank 0: all are here
  kPart,       // rank to rank 0: its part of a collective
  kResult,     // rank 0: what the parts made
  kAlive,      // rank to rank 0: what it is at; else nothing to say
  kFailed,     // rank to rank 0: it has failed; rank 0 to all: the run has (star_frames.h)
  kGoodbye,    // leaves in order
  kChallenge,  // rank 0: prove that you know the secret
  kProof       // rank to rank 0: that it does
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
  // The longest message of somebody who has not shown who they are.
  static constexpr size_t kMaxHello = 4096;

  Connection() = default;
  // `socket` is connected.
  explicit Connection(UniqueFd socket, size_t max_payload = kMaxPayload);

  int fd() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  void Close() { socket_.Close(); }
  void set_max_payload(size_t bytes) { max_payload_ = bytes; }

  void Queue(FrameType type, std::string_view payload = {});
  void Queue(SharedFrame frame);
  bool wants_to_send() const { return open() && !out_.empty(); }
  // Sends what can be without waiting.
  void Flush();
  // Sends and receives what can be without waiting. Closes itself when the other side is gone or
  // sends something that is no frame; frames that came before are still there for Next().
  void Pump();
  std::optional<Frame> Next();
  // When something last came.
  SteadyTime heard() const { return heard_; }
  void set_heard(SteadyTime time) { heard_ = time; }

 private:
  bool Send();  // false: the other side takes nothing any more
  void Receive();

  UniqueFd socket_;
  size_t max_payload_ = kMaxPayload;
  std::string in_;
  size_t taken_ = 0;  // bytes of in_ that Next() gave out
  std::deque<SharedFrame> out_;
  size_t sent_ = 0;  // bytes of the first of out_
  SteadyTime heard_;
};

// Which of many connections have something to do: the cost of a turn is that of those, not of all.

// Over epoll. A descriptor leaves it by being closed.
class Poller {
 public:
  Poller();  // throws Error(kRuntime)

  // `id` is what Wait names it by.
  void Add(int fd, uint64_t id);
  // Whether room to send counts as something to do.
  void WantToSend(int fd, uint64_t id, bool wants);
  // The ids with something to do, none after `limit`, or when a signal came. The list is good until
  // the next call.
  const std::vector<uint64_t>& Wait(std::chrono::milliseconds limit);

 private:
  UniqueFd epoll_;
  std::vector<uint64_t> ready_;
};

// Addresses and sockets: what the rendezvous needs of the system.

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// Null, and `why` says why, if the host has no address. Asks the system's resolver, which may take
// seconds.
Addresses Resolve(const std::string& host, int port, std::string& why);

// The hosts of ProcessPlace::address.
std::vector<std::string> SplitHosts(const std::string& address);

// Begins to connect. A closed one, and `why`, where that fails at once.
UniqueFd BeginToConnect(const addrinfo& address, std::string& why);
// Why a socket that has become writable is not connected; "" if it is.
std::string WhyNotConnected(int fd);

// The host at the other end, as digits.
std::string PeerAddress(int fd);
// Whether digits (or "") lead nowhere but to the host itself.
bool IsLoopbackText(std::string_view address);
// The host at this end, as those at the others know it: 127.0.0.1 or ::1 if they are all on it, ""
// without an open connection.
std::string OwnAddress(const std::vector<Connection>& connections);

// A socket that listens at `address`:`port`; a port of 0 takes a free one, which `port` then is.
//
// `address` is the host's own and decides the interface: nobody reaches the socket through others.
// With `other_hosts`, addresses of the loopback interface do not count (many systems give a host's
// own name one). Where no address is left that this host has (it is behind address translation),
// or `address` is a list, it listens on all interfaces. Throws Error(kRuntime) naming the port and
// the fix.
UniqueFd Listen(const std::string& address, bool other_hosts, int& port);

// The limit of open files, which the connections of a large run exceed.

// Raises this process's soft limit so that `more` files can be opened besides those that are, up to
// the hard limit. Returns how many more can be: `more` or less.
int RaiseOpenFileLimit(int more);

// The same, and Error(kRuntime) naming `what`, the limit and `ulimit -n` where it does not suffice.
void NeedOpenFiles(int more, const char* what);

}  // namespace zeroplan
