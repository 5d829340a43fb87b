// Messages between the processes of a run over Gloo's TCP transport: a connection between each two.
//
// Gloo carries bytes and nothing else: what is summed is summed by the ranks, in their own order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "executor/process/process_group.h"

namespace zeroplan {

class GlooLinks {
 public:
  // One that is under way. It may go once Await has returned, and so may its memory.
  class Message {
   public:
    Message() = default;
    Message(Message&&) noexcept = default;
    Message& operator=(Message&&) noexcept = default;
    ~Message();
    explicit operator bool() const { return buffer_ != nullptr; }

   private:
    friend class GlooLinks;
    struct Buffer;
    struct Delete {
      void operator()(Buffer* buffer) const noexcept;
    };
    std::unique_ptr<Buffer, Delete> buffer_;
  };

  // Every process of `group`, which outlives it, calls this at once. Throws Error(kRuntime) where
  // not all have come within `limit_seconds` (0: waits for ever), and the group's failure once it
  // has one. Connections go by the hosts' addresses in the group; GLOO_SOCKET_IFNAME in the
  // environment names an interface instead.
  GlooLinks(ProcessGroup& group, double limit_seconds);
  ~GlooLinks();
  GlooLinks(const GlooLinks&) = delete;
  GlooLinks& operator=(const GlooLinks&) = delete;

  // By rank; the same for ranks of one host.
  const std::vector<std::string>& hosts() const;

  // All from one thread. Two ranks' messages meet by `number`, which each pair uses once. Neither
  // blocks; both throw as Await. REQUIRES: bytes > 0, and the same at both ends.
  [[nodiscard]] Message Send(int to, uint64_t number, const std::byte* data, uint64_t bytes);
  [[nodiscard]] Message Receive(int from, uint64_t number, std::byte* data, uint64_t bytes);
  // Returns once the message is through: received, or its memory no longer needed. Throws the
  // group's failure, Error(kRuntime) naming the rank whose connection is lost, or what Abort was
  // called with. Does nothing for none.
  void Await(Message& message);

  // Lets go whoever waits, now and later. Any thread; never blocks for long.
  void Abort(const std::exception_ptr& cause) noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroplan
