// The sink of ranks without shards: rank 1 and up at stage 0, where rank 0 holds everything.
#pragma once

#include "core/base/error.h"
#include "executor/checkpoint/state_io.h"

namespace zeroplan {

class NothingSink : public StateSink {
 public:
  void Write(const TensorRange& range, std::span<const float>) override {
    ZEROPLAN_CHECK(false, "a rank without shards writes tensor {}", range.tensor);
  }
};

}  // namespace zeroplan
