// A ProcessGroup over TCP: a star with rank 0 in the middle.
//
// A thread of each process serves its connections, so that failures are reported whatever the other
// threads do. A failure is detected when a connection closes (a killed process: at once), is silent
// for `silence_limit` (a lost host, a stopped process) or breaks the protocol, and when a rank
// misses a collective's limit although that thread of it lives. Rank 0 tells all; if rank 0 is
// lost, each rank detects it by itself.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "executor/process/process_group.h"

namespace zeroplan {

struct TcpGroupOptions {
  std::chrono::milliseconds meet_limit{120'000};  // for all ranks to arrive
  // During the meeting: true ends it with Error(kInterrupted), within a second. Null: never.
  std::function<bool()> stop_requested;
  std::chrono::milliseconds silence_limit{20'000};  // the longest silence of a rank
  // Time in a collective from the first rank's arrival to the last one's, unless SetDeadline() sets
  // another. A limit that is too short ends runs whose ranks are merely uneven; one that is too
  // long keeps a hung run.
  std::chrono::milliseconds collective_limit{600'000};
  // Time for rank 0 to report which rank failed first.
  std::chrono::milliseconds verdict_limit{2'000};
  // Time for the other ranks to leave once this one is done.
  std::chrono::milliseconds leave_limit{10'000};
  // Above 0: a process that still exists this long after it learned of the run's failure prints it
  // and ends with kRuntime, in whatever call its main thread is stuck. For commands, not for tests
  // in one process.
  std::chrono::milliseconds exit_when_stuck{0};
};

class TcpGroup : public ProcessGroup {
 public:
  // Returns when all ranks have met. Otherwise throws as Meet does (rendezvous.h). REQUIRES:
  // world_size is 2 or more. Takes ownership of place.listen_fd.
  explicit TcpGroup(const ProcessPlace& place, const TcpGroupOptions& options = {});
  // Leaves: at once if the run has failed, else with a goodbye, which is no failure unless others
  // call a collective after it. Rank 0 waits for the others, up to leave_limit. A rank that leaves
  // because of an error calls Fail() before.
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
