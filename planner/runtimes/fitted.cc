#include "planner/runtimes/fitted.h"

namespace zeroplan {
namespace {

// The one row of stage 0: 1.7 GiB. The rows of stages 1 and 2 without offload: 2.0 to 2.1. Before
// the first step less is loaded: the rows of stage 3 on several GPUs, whose shards pass through the
// host then, are 2.6 to 2.9 with shards of 1.2 to 1.55 GiB.
constexpr uint64_t kHostStage0 = 1'825'000'000;
constexpr uint64_t kHost = 2'180'000'000;
constexpr uint64_t kHostInit = 1'450'000'000;

// The rows of one GPU: 1.68 to 1.75 GiB, but for the four of gpt2-10b and those of 1.77 (up
// to 2.04). NCCL with several: 0.37 GiB where gradients are all-reduced (stages 0 to 2: 2.05 GiB in
// all), 0.08 at stage 3, which gathers and reduce-scatters (1.77 to 1.78).
constexpr uint64_t kContext = 1'815'000'000;
constexpr uint64_t kNcclAllReduce = 385'000'000;
constexpr uint64_t kNcclShards = 85'000'000;

}  // namespace

uint64_t HostBaseBytes(int stage, TorchPhase phase) {
  if (phase == TorchPhase::kInit) return kHostInit;
  return stage == 0 ? kHostStage0 : kHost;
}

uint64_t ContextBytes(int stage, int gpus) {
  if (gpus == 1) return kContext;
  return kContext + (stage == 3 ? kNcclShards : kNcclAllReduce);
}

}  // namespace zeroplan
