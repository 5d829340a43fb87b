// One TCP connection between two ranks: frames out of a buffer, frames into one, nothing blocks.
//
// A frame is the payload's length (4 bytes), a type (1 byte) and the payload, in the byte order of
// the machine: a run's hosts are of one kind.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/unique_fd.h"

namespace zeroplan {

using SteadyTime = std::chrono::steady_clock::time_point;

enum class FrameType : uint8_t {
  kHello,    // rank to rank 0: who it is
  kJoined,   // rank 0: known, wait for the others
  kRefused,  // rank 0: why not
  kStart,    // rank 0: all are here
  kPart,     // rank to rank 0: its part of a collective
  kResult,   // rank 0: what the parts made
  kAlive,    // nothing to say
  kFailed,   // rank to rank 0: it has failed; rank 0 to all: the run has
  kGoodbye   // leaves in order
};

struct Frame {
  FrameType type;
  std::string payload;
};

class Connection {
 public:
  static constexpr size_t kMaxPayload = 64u << 20;
  // Of somebody who has not said who they are.
  static constexpr size_t kMaxHello = 1024;

  Connection() = default;
  // `socket` is connected.
  explicit Connection(UniqueFd socket, size_t max_payload = kMaxPayload);

  int fd() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  void Close() { socket_.Close(); }
  void set_max_payload(size_t bytes) { max_payload_ = bytes; }

  void Queue(FrameType type, std::string_view payload = {});
  bool wants_to_send() const { return !out_.empty(); }
  // Sends and receives what can be without waiting. Closes itself when the other side is gone or
  // sends what is no frame; what had come before is still there for Next().
  void Pump();
  std::optional<Frame> Next();
  // When something last came.
  SteadyTime heard() const { return heard_; }
  void set_heard(SteadyTime time) { heard_ = time; }

 private:
  void Send();
  void Receive();

  UniqueFd socket_;
  size_t max_payload_ = kMaxPayload;
  std::string in_, out_;
  size_t taken_ = 0;  // bytes of in_ that Next() gave out
  SteadyTime heard_;
};

}  // namespace zeroplan
