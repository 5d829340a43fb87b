// A ProcessGroup over TCP: a star with rank 0 in the middle.
//
// A thread of each process serves its connections, so that bad news arrives whatever the others do.
// It is noticed when a connection closes (a killed process: at once) or says nothing for
// `silence_limit` (a lost host); rank 0 tells all, and if rank 0 is lost, each notices by itself.
#pragma once

#include <chrono>
#include <memory>

#include "executor/process/process_group.h"

namespace zeroplan {

struct TcpGroupOptions {
  std::chrono::milliseconds meet_limit{120'000};    // for all ranks to come
  std::chrono::milliseconds silence_limit{20'000};  // without a word from a rank
  // For the other ranks to leave once this one is done.
  std::chrono::milliseconds leave_limit{10'000};
  // Above 0: a process that is still there so long after it learned of the run's failure prints it
  // and ends with kRuntime, in whatever call its main thread is stuck. For commands, not for tests
  // of one process.
  std::chrono::milliseconds exit_when_stuck{0};
};

class TcpGroup : public ProcessGroup {
 public:
  // Returns when all ranks have met. Throws Error(kRuntime) if they do not. REQUIRES: world_size is
  // 2 or more. Takes place.listen_fd over.
  explicit TcpGroup(const ProcessPlace& place, const TcpGroupOptions& options = {});
  // Leaves: goes at once if the run has failed, else says goodbye, which is no failure unless
  // others call a collective after it. Rank 0 stays for the others, up to leave_limit. Whoever
  // leaves because of an error calls Fail() before.
  ~TcpGroup() override;

  const ProcessPlace& place() const override;
  void Barrier() override;
  void Broadcast(std::span<std::byte> bytes) override;
  std::vector<std::string> AllGather(const std::string& text) override;
  void Fail(const std::string& message) noexcept override;
  void FailWith(ExitCode code, const std::string& message) noexcept override;
  bool failed() const noexcept override;
  std::string failure() const override;
  ExitCode failure_code() const noexcept override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroplan
