// One TCP connection between two ranks: frames out of a buffer, frames into one, nothing blocks.
//
// A frame is the payload's length (4 bytes), a type (1 byte) and the payload, in the byte order of
// the machine: a run's hosts are of one kind.
#pragma once

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

}  // namespace zeroplan
