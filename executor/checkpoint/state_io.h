// Sources and sinks of checkpointed state, tensor by tensor, independent of stage, offload and rank
// count. The engine cuts a rank's shards into ranges of tensors; padding never leaves the engine.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/error.h"
#include "core/program/program.h"

namespace zeroplan {

// fp32 elements [begin, begin + count) of a tensor (index into ParamLayout::tensors), flattened
// row-major, including padded vocabulary rows.
struct TensorRange {
  int tensor = 0;
  StateKind state = StateKind::kMaster;
  uint64_t begin = 0;
  uint64_t count = 0;
};

// Thread-safe, because all ranks read concurrently.
class StateSource {
 public:
  virtual ~StateSource() = default;
  // Fills `out` (range.count floats). Throws Error if the range is missing.
  virtual void Read(const TensorRange& range, std::span<float> out) const = 0;
};

// One per rank; called from that rank's thread only.
class StateSink {
 public:
  virtual ~StateSink() = default;
  virtual void Write(const TensorRange& range, std::span<const float> values) = 0;
};

// The sink of ranks without shards: rank 1 and up at stage 0, where rank 0 holds everything.
class NothingSink : public StateSink {
 public:
  void Write(const TensorRange& range, std::span<const float>) override {
    ZEROPLAN_CHECK(false, "a rank without shards writes tensor {}", range.tensor);
  }
};

}  // namespace zeroplan
