// The processes of one training run, one a GPU: their places, and a control channel between them.
//
// The channel is TCP through rank 0. It transports data that is exchanged once (NCCL's id,
// checkpoint file lists), barriers around files, and failures: a rank that fails tells rank 0,
// which tells all. Training data never uses it.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace zeroplan {

// A process's place in its run.
struct ProcessPlace {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // index among the ranks of this host: its GPU
  int local_world_size = 1;
  std::string address;    // rank 0's host, or several, separated by commas; empty with one rank
  int port = 0;           // the port at which rank 0 listens
  std::string run_token;  // equal in all processes of a run, different in other runs; "": unknown
  std::string secret;     // known to the run's processes alone; "": there is none
  int listen_fd = -1;     // rank 0: a socket that listens at `port` already; -1: none
};

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual const ProcessPlace& place() const = 0;
  int rank() const { return place().rank; }
  int world_size() const { return place().world_size; }

  // All ranks call these in the same order, from one thread each. They block until every rank has
  // called, and throw Error(failure_code()) with the first failed rank's message once the run has
  // failed.
  virtual void Barrier() = 0;
  // Sends rank 0's bytes to all: input on rank 0, output on the others (same size everywhere).
  virtual void Broadcast(std::span<std::byte> bytes) = 0;
  // Every rank's text, by rank, on every rank.
  virtual std::vector<std::string> AllGather(const std::string& text) = 0;

  // Sets this rank's present activity, such as "saving step 40", and how long the others may wait
  // for it in a collective before the run fails, naming the missing ranks. Valid until the next
  // call, 30 days at most; a long phase begins with one. All ranks set the same values. From the
  // thread of the collectives.
  virtual void SetDeadline(std::chrono::seconds /*limit*/, const std::string& /*purpose*/) {}

  // Tells every rank that this one has failed, and the reason. Never blocks for long, never throws.
  // Only the first message of a run counts.
  virtual void Fail(const std::string& message) noexcept = 0;
  // The same with an exit code for all ranks; Fail() means kRuntime.
  virtual void FailWith(ExitCode, const std::string& message) noexcept { Fail(message); }
  // True once any rank has failed or vanished; cheap, any thread. A training loop polls it while it
  // waits for its GPU.
  virtual bool failed() const noexcept = 0;
  // The first failed rank's message, "rank 3: ..."; empty without a failure.
  virtual std::string failure() const = 0;
  // True if rank 0 is alive and has that message, so that no other rank needs to print it.
  virtual bool rank_0_says_it() const noexcept { return false; }
  // The exit code of a process after that failure.
  virtual ExitCode failure_code() const noexcept { return ExitCode::kRuntime; }

  // A numeric address at which the run's other hosts reach this host's processes; one of several,
  // if the host has several.
  virtual std::string host_address() const { return "127.0.0.1"; }

  // Once the run has failed, throws the same error as the collectives.
  void ThrowIfFailed() const {
    if (failed()) throw Error(failure_code(), failure());
  }
};

// The group of a run that is one process.
class SingleProcess : public ProcessGroup {
 public:
  const ProcessPlace& place() const override { return place_; }
  void Barrier() override {}
  void Broadcast(std::span<std::byte>) override {}
  std::vector<std::string> AllGather(const std::string& text) override { return {text}; }
  // The caller reports its own failure.
  void Fail(const std::string&) noexcept override {}
  bool failed() const noexcept override { return false; }
  std::string failure() const override { return {}; }

 private:
  ProcessPlace place_;
};

// Tells every rank that this one has failed with `cause`, as FailWith does.
inline void FailOf(ProcessGroup& group, const std::exception_ptr& cause) noexcept {
  try {
    std::rethrow_exception(cause);
  } catch (const Error& error) {
    group.FailWith(error.code(), error.what());
  } catch (const std::exception& error) {
    group.Fail(error.what());
  } catch (...) {
    group.Fail("an unknown failure");
  }
}

// No rank fails alone: an exception of one is thrown on all.

// Returns fn(). An exception of it becomes the run's failure, unless the run has failed before; an
// Error is rethrown as the run's first failure, with that one's exit code, on every rank.
template <typename Fn>
auto SpreadFailure(ProcessGroup& group, Fn&& fn) {
  try {
    return std::forward<Fn>(fn)();
  } catch (const Error& error) {
    if (group.world_size() == 1) throw;
    group.FailWith(error.code(), error.what());
    group.ThrowIfFailed();
    throw;
  } catch (const std::exception& error) {  // a bug, or no memory: reported on its own rank
    group.Fail(error.what());
    throw;
  }
}

}  // namespace zeroplan
