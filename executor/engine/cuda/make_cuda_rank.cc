// The rank of a process, on the GPU that is its own.
#include <memory>

#include "core/base/error.h"
#include "executor/engine/cuda/cuda_rank.h"
#include "executor/engine/local_ranks.h"

namespace zeroplan {
namespace {

// The GPU of this process: its rank's among those of the host, or the only one it may see.
int ChooseDevice(const ProcessPlace& place) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    ThrowRuntime("rank {}: there is no GPU to train on: {}; --backend cpu runs without", place.rank,
                 status == cudaSuccess ? "none is visible" : cudaGetErrorString(status));
  }
  if (count == 1) return 0;
  if (place.local_rank >= count) {
    ThrowRuntime("rank {}: is rank {} of its host, which has {} GPUs; use at most {} ranks a host",
                 place.rank, place.local_rank, count, count);
  }
  return place.local_rank;
}

}  // namespace

std::unique_ptr<LocalRanks> MakeCudaRanks(const Program& program, const EngineOptions& options) {
  const ProcessPlace place = options.group == nullptr ? ProcessPlace{} : options.group->place();
  ZEROPLAN_CHECK(place.world_size == program.setup.batch.world_size,
                 "{} processes for a program of {} ranks", place.world_size,
                 program.setup.batch.world_size);
  ZEROPLAN_CHECK(options.random_order_seed == 0, "random orders are the CPU backend's");
  return std::make_unique<LocalRanks>(place.rank, 1, LocalRanks::Threads::kCallers, [&](int) {
    return std::make_unique<CudaRank>(program, options, ChooseDevice(place));
  });
}

}  // namespace zeroplan
