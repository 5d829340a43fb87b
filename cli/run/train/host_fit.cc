#include "cli/run/train/host_fit.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "core/base/units.h"
#include "core/program/step_order.h"
#include "core/settings/settings.h"
#include "machine/detect.h"
#include "machine/host_state.h"
#include "planner/estimate/choices.h"
#include "planner/footprint.h"

namespace zeroplan {
namespace {

struct Change {
  std::string options;
  std::function<void(TrainSetup&)> apply;
};

// What is recomputed changes alone; of which layers, and what is offloaded, stays.
void SetKind(RecomputeKind kind, RecomputeConfig& recompute) {
  recompute.kind = kind;
  recompute.every = kind == RecomputeKind::kFull ? std::max(1, recompute.every) : 0;
}

// Smallest first: what costs least speed.
std::vector<Change> Changes(const TrainSetup& setup, const ChoiceOrigin& origin) {
  std::vector<Change> changes;
  for (const RecomputeKind kind :
       {RecomputeKind::kSelective, RecomputeKind::kProducts, RecomputeKind::kFull}) {
    if (setup.recompute.kind >= kind) continue;
    changes.push_back({fmt::format("--checkpointing {}", RecomputeName(kind)),
                       [kind](TrainSetup& s) { SetKind(kind, s.recompute); }});
  }
  for (int64_t micro = setup.batch.micro_batch / 2; micro >= 1; micro /= 2) {
    changes.push_back(
        {fmt::format("--micro-batch {} --checkpointing full", micro), [micro](TrainSetup& s) {
           s.batch.micro_batch = micro;
           SetKind(RecomputeKind::kFull, s.recompute);
         }});
  }
  std::string on_disk =
      "--stage 3 --offload-optimizer nvme --offload-param nvme --checkpointing full "
      "--micro-batch 1";
  // Disks take all of the optimizer.
  if (setup.zero.offload_optimizer.ratio < 1) on_disk += " --offload-ratio 1";
  const bool has_folder = !setup.zero.offload_optimizer.nvme_path.empty();
  if (origin.kind == ChoiceOrigin::Kind::kOptions && !has_folder) on_disk += " --nvme-path DIR";
  changes.push_back({on_disk, [](TrainSetup& s) {
                       s.zero.stage = 3;
                       s.zero.offload_optimizer.device = OffloadDevice::kNvme;
                       s.zero.offload_optimizer.ratio = 1;
                       s.zero.offload_param.device = OffloadDevice::kNvme;
                       SetKind(RecomputeKind::kFull, s.recompute);
                       s.batch.micro_batch = 1;
                     }});
  return changes;
}

std::string Proposal(const ChoiceOrigin& origin, const Change& change, const TrainSetup& setup,
                     uint64_t bytes) {
  switch (origin.kind) {
    case ChoiceOrigin::Kind::kOptions:
      return fmt::format("{} fits with {}", change.options, FormatBytes(bytes));
    case ChoiceOrigin::Kind::kConfig:
      return fmt::format("{} fits with {} if changed to {} and micro-batch {}", origin.file,
                         FormatBytes(bytes), SetupLabel(setup), setup.batch.micro_batch);
    case ChoiceOrigin::Kind::kPlan:
      return fmt::format("plan again with {}, which fits with {}", change.options,
                         FormatBytes(bytes));
  }
  return "";
}

std::string NothingSmaller(const ChoiceOrigin& origin) {
  const std::string remedy = "fewer ranks (--gpus) or a smaller model";
  return origin.kind == ChoiceOrigin::Kind::kPlan
             ? fmt::format("no smaller choice fits; plan again for {}", remedy)
             : fmt::format("no smaller choice fits; {} might", remedy);
}

std::optional<Shortage> HostShortage(const Footprint& footprint, uint64_t available_bytes) {
  const std::vector<Shortage> shortages = Check(footprint, {.host_bytes = available_bytes});
  return shortages.empty() ? std::nullopt : std::optional(shortages.front());
}

Cluster ThisHost(const Program& program, int ranks) {
  Cluster cluster;
  cluster.gpus = program.setup.batch.world_size;
  cluster.gpus_per_node = ranks;
  return cluster;
}

Footprint OnThisCpu(const Program& program, int ranks) {
  return OnCpuBackend(FootprintOf(program, ThisHost(program, ranks)), ranks);
}

[[noreturn]] void ThrowShort(int ranks, const Shortage& shortage, const HostRoom& available,
                             const std::string& fix) {
  throw Error(
      ExitCode::kNothingFits,
      fmt::format("host memory short by {}: {} rank{} of this plan need{} {}, {} {} free; {}",
                  FormatBytes(shortage.short_by()), ranks, ranks == 1 ? "" : "s",
                  ranks == 1 ? "s" : "", FormatBytes(shortage.needs), available.whose,
                  FormatBytes(shortage.has), fix));
}

}  // namespace

void CheckFitsHost(const Program& program, const LowerOptions& lower, const ChoiceOrigin& origin,
                   int ranks, const HostRoom& available) {
  const std::optional<Shortage> shortage = HostShortage(OnThisCpu(program, ranks), available.bytes);
  if (!shortage) return;
  std::string fix = NothingSmaller(origin);
  if (lower.async_save) {
    LowerOptions waiting = lower;
    waiting.async_save = false;
    const Footprint footprint =
        OnThisCpu(Lower(program.model, program.layout.tensors, program.setup, waiting), ranks);
    if (!HostShortage(footprint, available.bytes)) {
      ThrowShort(ranks, *shortage, available,
                 fmt::format("{}--async-save off, so that steps wait for saves, fits with {}",
                             origin.kind == ChoiceOrigin::Kind::kPlan ? "plan again with " : "",
                             FormatBytes(footprint.host.total())));
    }
  }
  for (const Change& change : Changes(program.setup, origin)) {
    TrainSetup setup = program.setup;
    change.apply(setup);
    const Footprint footprint =
        OnThisCpu(Lower(program.model, program.layout.tensors, setup, lower), ranks);
    if (HostShortage(footprint, available.bytes)) continue;
    fix = Proposal(origin, change, setup, footprint.host.total());
    break;
  }
  ThrowShort(ranks, *shortage, available, fix);
}

bool FitsHost(const Program& program, Backend backend, int ranks, const HostRoom& available) {
  const Footprint footprint = backend == Backend::kCpu
                                  ? OnThisCpu(program, ranks)
                                  : FootprintOf(program, ThisHost(program, ranks));
  return !HostShortage(footprint, available.bytes);
}

void CheckOffloadFitsHost(const Program& program, const ChoiceOrigin& origin, int ranks,
                          const HostRoom& available) {
  const std::optional<Shortage> shortage =
      HostShortage(FootprintOf(program, ThisHost(program, ranks)), available.bytes);
  if (!shortage) return;
  const TrainSetup& setup = program.setup;
  const bool by_config = origin.kind == ChoiceOrigin::Kind::kConfig;
  std::vector<std::string> less;
  if (setup.recompute.offload.device != OffloadDevice::kNone) {
    less.push_back(fmt::format("offload activations of fewer layers ({})",
                               by_config
                                   ? "_zeroplan.offload_activation_layers"
                                   : NameFields(FieldName(setting::offload_activation_layers))));
  }
  if (setup.zero.offload_optimizer.device != OffloadDevice::kNone ||
      setup.zero.offload_param.device != OffloadDevice::kNone) {
    less.push_back(fmt::format(
        "offload less ({}) or to nvme{}",
        by_config ? "offload_optimizer.ratio" : NameFields(FieldName(setting::offload_ratio)),
        by_config ? " in the config" : ""));
  }
  less.emplace_back("use more hosts");
  std::string fix = fmt::format("{}", fmt::join(less, ", or "));
  if (origin.kind == ChoiceOrigin::Kind::kPlan) fix = "plan again with --host-memory, and " + fix;
  if (SavesFromCopy(program)) {
    fix = fmt::format("{}--async-save off, of {} less a rank, or {}",
                      origin.kind == ChoiceOrigin::Kind::kPlan ? "plan again with " : "",
                      FormatBytes(SaveCopyBytes(program)), fix);
  }
  throw Error(
      ExitCode::kNothingFits,
      fmt::format("host memory short by {}: {} rank{} here need {}, {} {} free; {}",
                  FormatBytes(shortage->short_by()), ranks, ranks == 1 ? "" : "s",
                  FormatBytes(shortage->needs), available.whose, FormatBytes(shortage->has), fix));
}

namespace {

uint64_t FreeHostBytes() {
  if (const auto available = MemoryInfo("MemAvailable")) return *available;
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

std::string WhoseGroup(const ControlGroupMemory& group, const char* less = "") {
  return fmt::format("the control group's limit of {} ({}){} leaves",
                     FormatBytes(group.limit_bytes), group.limiting.string(), less);
}

}  // namespace

HostRoom AvailableHostMemory(const std::optional<uint64_t>& reserve_bytes) {
  HostRoom room{FreeHostBytes()};
  const auto group = QueryControlGroupMemory();
  Cluster host;
  if (const auto all = static_cast<uint64_t>(QueryHost().memory_bytes); all > 0) {
    host.host_capacity_bytes = all;
    host.host_reserve_bytes = reserve_bytes.value_or(HostReserveBytes(all));
    const uint64_t capacity = *CapacityOf(host).host_bytes;
    if (capacity < room.bytes) {
      room.bytes = capacity;
      if (group && group->limit_bytes == all)
        room.whose = WhoseGroup(*group, ", less the host reserve,");
    }
  }
  if (group && group->available_bytes < room.bytes) {
    room = {group->available_bytes, WhoseGroup(*group)};
  }
  return room;
}

void CheckThreads(int threads, int ranks) {
  constexpr int kMostOfAnyHost = 1024;
  const int processors = static_cast<int>(std::thread::hardware_concurrency());
  const int most = std::max(kMostOfAnyHost, 16 * processors);
  if (threads * ranks <= most) return;
  ThrowUsage("--threads: {} for each of {} ranks are {} threads, on {} processors; use at most {}",
             threads, ranks, threads * ranks, processors, std::max(most / ranks, 1));
}

}  // namespace zeroplan
