#include "executor/process/single_process.h"

namespace zeroplan {

void SingleProcess::FailWith(ExitCode code, const std::string& message) noexcept {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  failed_ = true;
  code_ = code;
  try {
    failure_ = message;  // no rank in front: there is but one
  } catch (...) {        // out of memory: failed, without words
  }
}

bool SingleProcess::failed() const noexcept {
  const std::lock_guard lock(mutex_);
  return failed_;
}

std::string SingleProcess::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

ExitCode SingleProcess::failure_code() const noexcept {
  const std::lock_guard lock(mutex_);
  return code_;
}

}  // namespace zeroplan
