// train_batch_size = micro_batch * grad_accum * world_size, with any of the three sizes open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/config/zero_config.h"

namespace zeroplan {

// What the config and the command line say together; nullopt: open.
struct BatchSizes {
  std::optional<int64_t> global_batch, micro_batch, grad_accum;
};

// Any two sizes give the third, which must come out whole; one batch size alone means no
// accumulation; none means micro-batch 1 without accumulation. Accumulation alone is an error.
// `where` starts the message: "ds.json:3: ". REQUIRES: the sizes are positive. Throws Error(kUsage)
// otherwise.
BatchSpec ResolveBatch(const BatchSizes& sizes, int world_size, int64_t seq_len,
                       const std::string& where);

}  // namespace zeroplan
