// The group of a run that is one process: nobody to wait for.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "executor/process/process_group.h"

namespace zeroplan {

class SingleProcess : public ProcessGroup {
 public:
  const ProcessPlace& place() const override { return place_; }
  void Barrier() override { ThrowIfFailed(); }
  void Broadcast(std::span<std::byte>) override { ThrowIfFailed(); }
  std::vector<std::string> AllGather(const std::string& text) override {
    ThrowIfFailed();
    return {text};
  }
  void Fail(const std::string& message) noexcept override {
    FailWith(ExitCode::kRuntime, message);
  }
  void FailWith(ExitCode code, const std::string& message) noexcept override;
  bool failed() const noexcept override;
  std::string failure() const override;
  ExitCode failure_code() const noexcept override;

 private:
  const ProcessPlace place_;
  mutable std::mutex mutex_;
  bool failed_ = false;
  std::string failure_;
  ExitCode code_ = ExitCode::kRuntime;
};

}  // namespace zeroplan
