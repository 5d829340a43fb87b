// A ProcessGroup over TCP: a star with rank 0 in the middle.
//
// A thread of each process serves its connections, so that bad news arrives whatever the others do.
// It is noticed when a connection closes (a killed process: at once), says nothing for
// `silence_limit` (a lost host, a stopped process) or breaks the protocol, and when a rank does not
// come to a collective in time, though that thread of it lives; rank 0 tells all, and if rank 0 is
// lost, each notices by itself.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "executor/process/process_group.h"

namespace zeroplan {

struct TcpGroupOptions {
  std::chrono::milliseconds meet_limit{120'000};  // for all ranks to come
  // While they meet: true ends it with Error(kInterrupted), within a second. Null: never.
  std::function<bool()> stop_requested;
  std::chrono::milliseconds silence_limit{20'000};  // without a word from a rank
  // In a collective for the last rank to come after the first one, until SetDeadline() says
  // otherwise. Too short ends runs whose ranks are merely uneven; too long leaves a hung run
  // hanging.
  std::chrono::milliseconds collective_limit{600'000};
  // For rank 0 to say who failed first.
  std::chrono::milliseconds verdict_limit{2'000};
  // For the other ranks to leave once this one is done.
  std::chrono::milliseconds leave_limit{10'000};
  // Above 0: a process that is still there this long after it learned of the run's failure prints
  // it and ends with kRuntime, in whatever call its main thread is stuck. For commands, not for
  // tests of one process.
  std::chrono::milliseconds exit_when_stuck{0};
};

class TcpGroup : public ProcessGroup {
 public:
  // Returns when all ranks have met. Throws as Meet does (rendezvous.h) if they do not. REQUIRES:
  // world_size is 2 or more. Takes place.listen_fd over.
  explicit TcpGroup(const ProcessPlace& place, const TcpGroupOptions& options = {});
  // Leaves: goes at once if the run has failed, else says goodbye, which is no failure unless
  // others call a collective after it. Rank 0 stays for the others, up to leave_limit. Whoever
  // leaves because of an error calls Fail() before.
  ~TcpGroup() override;

  const ProcessPlace& place() const override;
  void Barrier() override;
  void Broadcast(std::span<std::byte> bytes) override;
  std::vector<std::string> AllGather(const std::string& text) override;
  void SetDeadline(std::chrono::seconds limit, const std::string& purpose) override;
  void Fail(const std::string& message) noexcept override;
  void FailWith(ExitCode code, const std::string& message) noexcept override;
  bool failed() const noexcept override;
  std::string failure() const override;
  bool rank_0_says_it() const noexcept override;
  ExitCode failure_code() const noexcept override;
  std::string host_address() const override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroplan
