#include "cli/common/config_context.h"

#include "cli/common/resolve.h"

namespace zeroplan {

ReadContext ConfigContext(const BatchOptions& options, const HardwareProfile& hardware, int gpus,
                          int64_t seq_len) {
  const BatchOptions batch = InSequences(options, seq_len, gpus);
  ReadContext context;
  context.world_size = gpus;
  context.seq_len = seq_len;
  context.micro_batch = batch.micro_batch;
  context.grad_accum = batch.grad_accum;
  context.global_batch = batch.global_batch;
  context.dtype = batch.dtype;
  context.grad_accum_dtype = batch.grad_accum_dtype;
  context.communication_dtype = batch.communication_dtype;
  context.has_bf16 = hardware.gpu.bf16;
  return context;
}

}  // namespace zeroplan
