// The group of a run that is one process.
#pragma once

#include "executor/process/process_group.h"

namespace zeroplan {

class SingleProcess : public ProcessGroup {
 public:
  const ProcessPlace& place() const override { return place_; }
  void Barrier() override {}
  void Broadcast(std::span<std::byte>) override {}
  std::vector<std::string> AllGather(const std::string& text) override { return {text}; }
  // Its failure is the caller's own to report.
  void Fail(const std::string&) noexcept override {}
  bool failed() const noexcept override { return false; }
  std::string failure() const override { return {}; }

 private:
  ProcessPlace place_;
};

}  // namespace zeroplan
