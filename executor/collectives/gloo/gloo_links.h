// Messages between the processes of a run over Gloo's TCP transport: one connection for each pair.
//
// Gloo only transports bytes: the ranks compute sums, in their own order.
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
  // A message under way. It may be destroyed once Await has returned, and its memory freed.
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

  // Every process of `group`, which must outlive this, calls it at once. Throws Error(kRuntime) if
  // not all arrive within `limit_seconds` (0: waits for ever), and the group's failure once it has
  // one. Connections use the hosts' addresses in the group; GLOO_SOCKET_IFNAME in the environment
  // names an interface instead.
  GlooLinks(ProcessGroup& group, double limit_seconds);
  ~GlooLinks();
  GlooLinks(const GlooLinks&) = delete;
  GlooLinks& operator=(const GlooLinks&) = delete;

  // The host of each rank; equal for ranks of one host.
  const std::vector<std::string>& hosts() const;

  // All calls from one thread. `number`, used once by each pair, matches the two ranks' messages.
  // Neither blocks; both throw the errors of Await. REQUIRES: bytes > 0, and the same at both ends.
  [[nodiscard]] Message Send(int to, uint64_t number, const std::byte* data, uint64_t bytes);
  [[nodiscard]] Message Receive(int from, uint64_t number, std::byte* data, uint64_t bytes);
  // Returns when the message is complete: received, or its memory no longer needed. Throws the
  // group's failure, Error(kRuntime) naming the rank whose connection is lost, or the cause passed
  // to Abort. Does nothing for an empty message.
  void Await(Message& message);

  // Releases all waiting calls, now and later. Any thread; never blocks for long.
  void Abort(const std::exception_ptr& cause) noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroplan
