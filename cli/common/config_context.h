// What a command line says to the reader of a DeepSpeed config.
#pragma once

#include <cstdint>

#include "cli/common/common_options.h"
#include "core/config/deepspeed_reader.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// All but the model's layers and whether the reader is strict. Throws as InSequences (resolve.h).
ReadContext ConfigContext(const BatchOptions& options, const HardwareProfile& hardware, int gpus,
                          int64_t seq_len);

}  // namespace zeroplan
