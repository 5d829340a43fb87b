// Runs the parts of a measurement one after the other: reports the running part and its time, and
// isolates one part's failure from the others.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "executor/measure/measurement.h"
#include "executor/process/process_group.h"

namespace zeroplan {

class PartRunner {
 public:
  using Say = std::function<void(const std::string&)>;
  // Adds its results to its argument.
  using Measure = std::function<void(MachineMeasurement&)>;

  // `result` must outlive it. Calls `say` with "gemm: matrix products" and later "gemm: 12.3 s".
  PartRunner(MachineMeasurement& result, Say say) : result_(result), say_(std::move(say)) {}

  // Lists parts that `measure` finishes in `measured`. If it throws, the result stays unchanged,
  // and `failed` and the error name the part. Errors of the command's usage (any code but kRuntime)
  // pass unchanged.
  void Run(const std::string& name, const std::string& what, const Measure& measure);
  // The same, but the other parts go on; returns false if it failed.
  bool Try(const std::string& name, const std::string& what, const Measure& measure);

 private:
  MachineMeasurement& result_;
  Say say_;
};

// Every rank's number, by rank, on every rank. All ranks call it.
std::vector<double> GatherNumbers(ProcessGroup& group, double own);

// The number of ranks of each host. All ranks call it. Throws Error(kUsage) if hosts have different
// numbers, or if ranks of a host are not consecutive.
int RanksOfAHost(ProcessGroup& group);

// A group of the first ranks of a run, while the others wait in Follow.

// All ranks of `parent` make one with the same number of members. Members use it like any group and
// call Dismiss at the end; the others call Follow, which returns once the members did. Every
// collective is one AllGather of the parent, so a failure reaches the others too.
class SubGroup : public ProcessGroup {
 public:
  // REQUIRES: 1 <= members <= parent.world_size(). `parent` must outlive it.
  SubGroup(ProcessGroup& parent, int members);

  bool is_member() const { return parent_.rank() < members_; }
  void Dismiss();
  void Follow();

  const ProcessPlace& place() const override { return place_; }
  void Barrier() override;
  void Broadcast(std::span<std::byte> bytes) override;
  std::vector<std::string> AllGather(const std::string& text) override;

  void Fail(const std::string& message) noexcept override { parent_.Fail(message); }
  void FailWith(ExitCode code, const std::string& message) noexcept override {
    parent_.FailWith(code, message);
  }
  ExitCode failure_code() const noexcept override { return parent_.failure_code(); }
  bool failed() const noexcept override { return parent_.failed(); }
  std::string failure() const override { return parent_.failure(); }

 private:
  ProcessGroup& parent_;
  const int members_;
  ProcessPlace place_;
};

// One rank's attention measurements as text for another rank.

// The rows of `found`, or the reason why its attention failed.
std::string AttentionText(const MachineMeasurement& found);

// Parses the rows again, to the bit. Throws Error(kRuntime) with the reason if there is one, and if
// `text` is not from AttentionText.
std::vector<AttentionRate> AttentionOfText(const std::string& text);

}  // namespace zeroplan
