#pragma once

#include <cstdint>
#include <utility>

#include "executor/kernels/cuda/attention/attention_plans.h"
#include "executor/kernels/cuda/cuda_launch.h"
#include "tests/executor/cuda/gpu_runner.h"

namespace zeroplan::kernel_test {

// Tests' launches of attention run on own fused kernels for its lifetime, or on plain ones where
// those do not take the launch.
class OwnLaunch {
 public:
  // `shared_bytes`: a block has no more.
  explicit OwnLaunch(bool deterministic = false, int shared_bytes = INT32_MAX)
      : plans_(0, deterministic, /*library=*/false) {
    plans_.LimitSharedBytes(shared_bytes);
    usual_ = std::exchange(TestLaunch().attention, &plans_);
  }
  ~OwnLaunch() { TestLaunch().attention = usual_; }
  OwnLaunch(const OwnLaunch&) = delete;
  OwnLaunch& operator=(const OwnLaunch&) = delete;

 private:
  AttentionPlans plans_;
  AttentionPlans* usual_;
};

}  // namespace zeroplan::kernel_test
