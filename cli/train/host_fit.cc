#include "cli/train/host_fit.h"

#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/lowering/lower.h"

namespace zeroplan {
namespace {

struct Change {
  std::string text;
  std::function<void(TrainSetup&)> apply;
};

// Smallest first: what costs least speed.
std::vector<Change> Changes(const TrainSetup& setup) {
  std::vector<Change> changes;
  if (setup.recompute.kind == RecomputeKind::kNone) {
    changes.push_back(
        {"--checkpointing selective", [](TrainSetup& s) { s.recompute = kSelectiveRecompute; }});
  }
  if (setup.recompute.kind != RecomputeKind::kFull) {
    changes.push_back(
        {"--checkpointing full", [](TrainSetup& s) { s.recompute = FullRecompute(); }});
  }
  for (int64_t micro = setup.batch.micro_batch / 2; micro >= 1; micro /= 2) {
    changes.push_back(
        {fmt::format("--micro-batch {} with --checkpointing full", micro), [micro](TrainSetup& s) {
           s.batch.micro_batch = micro;
           s.recompute = FullRecompute();
         }});
  }
  changes.push_back(
      {"--stage 3 --offload-optimizer nvme --offload-param nvme --checkpointing full "
       "--micro-batch 1",
       [](TrainSetup& s) {
         s.zero.stage = 3;
         s.zero.offload_optimizer.device = OffloadDevice::kNvme;
         s.zero.offload_param.device = OffloadDevice::kNvme;
         s.recompute = FullRecompute();
         s.batch.micro_batch = 1;
       }});
  return changes;
}

}  // namespace

uint64_t HostBytesOfRun(const Program& program) {
  uint64_t bytes = 0;
  for (Space space : {Space::kDevice, Space::kPinned, Space::kPageable}) {
    bytes += program.arena_bytes[static_cast<size_t>(space)];
  }
  return CheckedMul(bytes, static_cast<uint64_t>(program.setup.batch.world_size),
                    "memory of all ranks");
}

void CheckFitsHost(const Program& program, uint64_t available_bytes) {
  const uint64_t needed = HostBytesOfRun(program);
  if (needed <= available_bytes) return;
  std::string fix = "no smaller choice fits; fewer ranks (--gpus) or a smaller model might";
  for (const Change& change : Changes(program.setup)) {
    TrainSetup setup = program.setup;
    change.apply(setup);
    const uint64_t bytes = HostBytesOfRun(Lower(program.model, program.layout.tensors, setup));
    if (bytes > available_bytes) continue;
    fix = fmt::format("{} fits with {}", change.text, FormatBytes(bytes));
    break;
  }
  throw Error(
      ExitCode::kNothingFits,
      fmt::format("host memory short by {}: {} rank{} of this plan need {}, this machine has {} "
                  "free; {}",
                  FormatBytes(needed - available_bytes), program.setup.batch.world_size,
                  program.setup.batch.world_size == 1 ? "" : "s", FormatBytes(needed),
                  FormatBytes(available_bytes), fix));
}

void CheckOffloadFitsHost(const Program& program, int ranks, uint64_t available_bytes) {
  const uint64_t of_rank = program.arena_bytes[static_cast<size_t>(Space::kPinned)] +
                           program.arena_bytes[static_cast<size_t>(Space::kPageable)];
  const uint64_t needed =
      CheckedMul(of_rank, static_cast<uint64_t>(ranks), "host memory of a host's ranks");
  if (needed <= available_bytes) return;
  throw Error(ExitCode::kNothingFits,
              fmt::format("host memory short by {}: {} rank{} here need {}, this machine has {} "
                          "free; offload less (--offload-ratio) or to nvme, or use more hosts",
                          FormatBytes(needed - available_bytes), ranks, ranks == 1 ? "" : "s",
                          FormatBytes(needed), FormatBytes(available_bytes)));
}

uint64_t AvailableHostBytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    uint64_t kibibytes = 0;
    if (key == "MemAvailable:" && file >> kibibytes) return kibibytes * 1024;
    file.ignore(256, '\n');
  }
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace zeroplan
