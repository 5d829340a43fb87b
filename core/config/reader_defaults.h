// What a key that is left out of a DeepSpeed config comes to: DeepSpeed's defaults, where the
// fields of zero_config.h have zeroplan's own.
#pragma once

#include "core/config/zero_config.h"

namespace zeroplan {

inline ZeroConfig ReaderZeroDefaults(int stage) {
  ZeroConfig zero;
  zero.stage = stage;
  zero.reduce_bucket_elements = 500'000'000;
  zero.allgather_bucket_elements = 500'000'000;
  zero.overlap_comm = stage == 3;
  zero.prefetch_bucket_elements = 50'000'000;
  zero.param_persistence_threshold = 100'000;
  zero.model_persistence_threshold = kUnlimited;
  zero.max_live_parameters = 1'000'000'000;
  zero.max_reuse_distance = 1'000'000'000;
  zero.offload_param.max_in_cpu_elements = 1'000'000'000;
  zero.sub_group_elements = 1'000'000'000;
  return zero;
}

// Sizes on kAuto come to DeepSpeed's defaults.
inline void FillReaderSizes(ZeroConfig& zero) {
  const ZeroConfig defaults = ReaderZeroDefaults(zero.stage);
  const auto fill = [](uint64_t& size, uint64_t otherwise) {
    if (size == kAuto) size = otherwise;
  };
  fill(zero.reduce_bucket_elements, defaults.reduce_bucket_elements);
  fill(zero.prefetch_bucket_elements, defaults.prefetch_bucket_elements);
  fill(zero.max_live_parameters, defaults.max_live_parameters);
}

}  // namespace zeroplan
