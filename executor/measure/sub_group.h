// The first ranks of a run as a group of their own, while the others follow.
#pragma once

#include <string>
#include <vector>

#include "executor/process/process_group.h"

namespace zeroplan {

// All ranks of `parent` make one with the same number of members. Members use it as any group and
// call Dismiss at the end; the others call Follow, which returns once the members did. Every
// collective is one AllGather of the parent, so the others are held up by a failure as everybody.
class SubGroup : public ProcessGroup {
 public:
  // REQUIRES: 1 <= members <= parent.world_size(). `parent` outlives it.
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

}  // namespace zeroplan
