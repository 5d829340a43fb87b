#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "cli/doctor/checks.h"
#include "core/base/units.h"
#include "planner/report/report_text.h"

namespace zeroplan {

namespace {

Finding ProcessorFinding(const HostState& host) {
  if (host.online == 0 || host.allowed == 0) {
    return {"processors", CheckState::kUnknown, "the kernel does not say"};
  }
  constexpr const char* kCost =
      "updates of offloaded states, tokenizing, saves and the CPU backend have the less";
  if (host.quota && host.quota->processors < host.allowed) {
    return {"processors", CheckState::kCosts,
            fmt::format("time of {:.3g} of {} ({})", host.quota->processors, host.online,
                        host.quota->limiting.string()),
            kCost, "docker: --cpus; Kubernetes: limits of cpu; else that file"};
  }
  if (host.allowed < host.online) {
    return {"processors", CheckState::kCosts,
            fmt::format("affinity leaves {} of {}", host.allowed, host.online), kCost,
            "without taskset; srun: --cpus-per-task; docker: --cpuset-cpus"};
  }
  return {"processors", CheckState::kOk, fmt::format("all {}", host.online)};
}

Finding NumaFinding(const MachineFacts& facts) {
  const std::vector<NumaNode>& nodes = facts.host.nodes;
  if (nodes.empty()) return {"numa", CheckState::kUnknown, "the kernel does not say"};
  if (nodes.size() == 1) return {"numa", CheckState::kOk, "one node of memory"};
  std::vector<std::string> parts;
  for (const NumaNode& node : nodes) {
    std::vector<unsigned> gpus;
    for (const GpuState& gpu : facts.gpus.gpus) {
      if (gpu.visible && gpu.numa_node == node.id) gpus.push_back(gpu.index);
    }
    parts.push_back(fmt::format("node {}: {} processors, {}{}{}", node.id, node.processors,
                                FormatBytes(node.memory_bytes),
                                gpus.empty() ? "" : fmt::format(", GPU {}", fmt::join(gpus, ", ")),
                                node.used ? "" : ", not for this process"));
  }
  const auto used =
      std::count_if(nodes.begin(), nodes.end(), [](const NumaNode& node) { return node.used; });
  const std::string fact =
      fmt::format("{} nodes of memory; {}", nodes.size(), fmt::join(parts, "; "));
  if (used == 1) return {"numa", CheckState::kOk, fact};
  return {"numa", CheckState::kCosts, fact,
          "zeroplan binds no rank to the node of its GPU: copies and updates of offloaded states "
          "may go from node to node (how much slower was not measured)",
          "with a launcher, a rank at a time: numactl --cpunodebind N --membind N"};
}

Finding MemoryFinding(const HostState& host) {
  if (host.memory_bytes == 0) {
    return {"memory", CheckState::kUnknown, "the kernel does not say"};
  }
  std::string fact = FormatBytes(host.memory_bytes);
  if (host.available_bytes > 0) fact += fmt::format(", {} free", FormatBytes(host.available_bytes));
  if (host.group && host.group->limit_bytes < host.memory_bytes) {
    return {"memory", CheckState::kCosts,
            fmt::format("{}; the control group's limit is {} and leaves {} ({})", fact,
                        FormatBytes(host.group->limit_bytes),
                        FormatBytes(host.group->available_bytes), host.group->limiting.string()),
            "offload has no more than that; past it the kernel ends a run without a word (137)",
            "docker: --memory; srun: --mem; Kubernetes: limits of memory; else that file"};
  }
  return {"memory", CheckState::kOk, fact};
}

Finding TransparentFinding(const HostState& host) {
  const std::string& chosen = host.transparent_huge_pages;
  if (chosen.empty()) {
    return {"transparent_huge_pages", CheckState::kUnknown, "the kernel does not say"};
  }
  if (chosen != "never") {
    return {"transparent_huge_pages", CheckState::kOk, chosen + ": host memory gets large pages"};
  }
  return {"transparent_huge_pages", CheckState::kCosts, "never",
          "offloaded states lie in pages of 4 KiB: more of them to lock and to look up (how much "
          "slower was not measured)",
          "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"};
}

Finding HugeFinding(const HostState& host) {
  if (host.huge_page_bytes == 0) {
    return {"huge_pages", CheckState::kUnknown, "the kernel does not say"};
  }
  if (host.huge_pages == 0) {
    return {"huge_pages", CheckState::kOk, "none set aside; zeroplan needs none"};
  }
  const uint64_t bytes = host.huge_pages * host.huge_page_bytes;
  return {"huge_pages", CheckState::kCosts,
          fmt::format("{} set aside ({} free) in {} pages", FormatBytes(bytes),
                      FormatBytes(host.free_huge_pages * host.huge_page_bytes), host.huge_pages),
          "zeroplan does not use them: that memory is lost to offload",
          "sudo sysctl vm.nr_hugepages=0, if nothing else wants them"};
}

constexpr const char* kLockedFix =
    "ulimit -l unlimited, by memlock in /etc/security/limits.conf; docker: --ulimit memlock=-1";

constexpr const char* kWslCost =
    "Windows limits what GPUs' drivers page-lock (pinned memory, for offload) to a part of the "
    "machine's memory; past it train leaves what is offloaded pageable, which is slower, and says "
    "so";
constexpr const char* kWslFix =
    "hw measure finds the limit and plan keeps to it; Linux without Windows has none";

Finding LockedFinding(const HostState& host) {
  if (!host.locked_limit) {
    return {"locked_memory", CheckState::kUnknown, "the kernel does not say"};
  }
  const bool unlimited = *host.locked_limit == std::numeric_limits<uint64_t>::max();
  if (host.wsl) {
    return {"locked_memory", CheckState::kCosts,
            fmt::format("WSL2; {}", unlimited ? "ulimit -l sets no limit"
                                              : fmt::format("ulimit -l is {}",
                                                            FormatBytes(*host.locked_limit))),
            kWslCost, kWslFix};
  }
  if (unlimited) return {"locked_memory", CheckState::kOk, "no limit"};
  const std::string limit = FormatBytes(*host.locked_limit);
  if (host.may_pass_locked_limit) {
    return {"locked_memory", CheckState::kOk,
            fmt::format("a limit of {}, which this user may pass (CAP_IPC_LOCK)", limit)};
  }
  return {
      "locked_memory", CheckState::kCosts, fmt::format("a limit of {}", limit),
      "NCCL over InfiniBand fails to register its buffers, and on the CPU backend a pinned arena "
      "past it (offload) may be swapped out; what a run on GPUs pins the driver locks without "
      "asking for that limit",
      kLockedFix};
}

// What the driver says of its own.
Finding LockedByDriver(const HostState& host, const PinnedFacts& pinned, std::string fact) {
  const std::string locked = FormatBytes(pinned.locked_bytes);
  if (!pinned.refusal.empty()) {
    return {"pinned_memory", CheckState::kCosts,
            fmt::format("{}the driver page-locks {}, then says: {}", fact, locked, pinned.refusal),
            host.wsl ? kWslCost
                     : "past that, train leaves what is offloaded pageable, which is slower, and "
                       "says so",
            fmt::format("--pinned-limit {} tells plan; hw measure keeps it in the profile",
                        pinned.locked_bytes)};
  }
  if (pinned.locked_bytes < pinned.asked_bytes) {
    return {"pinned_memory", CheckState::kOk,
            fmt::format("{}the driver page-locked {} of them in the time it was given, and refused "
                        "none",
                        fact, locked)};
  }
  return {"pinned_memory", CheckState::kOk, fact + "the driver page-locks all of them"};
}

// Whether the memory that the plan pins is there.
Finding PinnedFinding(const MachineFacts& facts) {
  const HostState& host = facts.host;
  if (!facts.plan) {
    const PinnedFacts& pinned = *facts.pinned;
    return LockedByDriver(host, pinned,
                          fmt::format("asked for {}: ", FormatBytes(pinned.asked_bytes)));
  }
  const PinnedPlan& plan = *facts.plan;
  const uint64_t bytes = plan.host_bytes();
  if (bytes == 0) return {"pinned_memory", CheckState::kOk, plan.file + " pins none"};
  std::string fact = fmt::format("{} pins {}", plan.file, FormatBytes(bytes));
  if (plan.ranks > 1) {
    fact += fmt::format(" in each host, {} for each of {} ranks", FormatBytes(plan.rank_bytes),
                        plan.ranks);
  }
  uint64_t room = host.available_bytes;
  if (host.group) room = std::min(room, host.group->available_bytes);
  if (host.available_bytes == 0) {
    return {"pinned_memory", CheckState::kUnknown, fact + "; what is free is not known"};
  }
  fact += fmt::format("; {} are free", FormatBytes(room));
  if (bytes > room) {
    return {"pinned_memory", CheckState::kMissing, fact,
            "memory that is not there cannot be locked: train refuses the plan here",
            fmt::format("end what holds memory, raise the container's limit, or plan with "
                        "--host-memory {}",
                        room)};
  }
  if (plan.on_gpus && facts.pinned) return LockedByDriver(host, *facts.pinned, fact + "; ");
  if (plan.on_gpus && host.wsl) {
    return {"pinned_memory", CheckState::kCosts, fact + ", under WSL2", kWslCost, kWslFix};
  }
  if (plan.on_gpus) {
    return {"pinned_memory", CheckState::kOk,
            fact + ", and the driver locks them whatever ulimit -l is"};
  }
  const bool limited = host.locked_limit && *host.locked_limit < bytes;
  if (!limited || host.may_pass_locked_limit) {
    return {"pinned_memory", CheckState::kOk, fact + ", and they can be locked"};
  }
  return {"pinned_memory", CheckState::kCosts,
          fmt::format("{}, but only {} can be locked (ulimit -l)", fact,
                      FormatBytes(*host.locked_limit)),
          "arenas past that may be swapped out; the run goes on", kLockedFix};
}

Finding SharedFinding(const MachineFacts& facts) {
  const HostState& host = facts.host;
  // What NCCL's guide asks of containers: --shm-size=1g.
  constexpr uint64_t kWanted = uint64_t{1} << 30;
  constexpr const char* kCost =
      "NCCL keeps buffers of GPUs without peer access there, and ends a run where they find no "
      "room";
  constexpr const char* kFix = "docker: --shm-size=1g; else sudo mount -o remount,size=2G /dev/shm";
  const auto gpus = std::count_if(facts.gpus.gpus.begin(), facts.gpus.gpus.end(),
                                  [](const GpuState& gpu) { return gpu.visible; });
  if (!host.shared_bytes) {
    return {"shared_memory", gpus > 1 ? CheckState::kMissing : CheckState::kCosts,
            "there is no /dev/shm", kCost, kFix};
  }
  const std::string fact = fmt::format("/dev/shm of {}, {} free", FormatBytes(*host.shared_bytes),
                                       FormatBytes(*host.shared_free_bytes));
  if (*host.shared_free_bytes >= kWanted) return {"shared_memory", CheckState::kOk, fact};
  if (gpus < 2) {
    return {"shared_memory", CheckState::kOk, fact + "; several GPUs would want 1 GiB"};
  }
  return {"shared_memory", CheckState::kCosts, fact, kCost, kFix};
}

}  // namespace

std::vector<Finding> HostFindings(const MachineFacts& facts) {
  const HostState& host = facts.host;
  std::vector<Finding> findings = {ProcessorFinding(host), NumaFinding(facts),
                                   MemoryFinding(host),    TransparentFinding(host),
                                   HugeFinding(host),      LockedFinding(host)};
  if (facts.plan || facts.pinned) findings.push_back(PinnedFinding(facts));
  findings.push_back(SharedFinding(facts));
  return findings;
}

namespace {

Finding DiskFinding(const DiskFacts& disk) {
  using State = DiskFacts::State;
  constexpr const char* kCost = "--save, --metrics and swap files (--nvme-path) cannot be there";
  const std::string free = FormatBytes(disk.free_bytes);
  switch (disk.state) {
    case State::kRefused: {
      // "--dir: what is wrong; what to do".
      const size_t semicolon = disk.why.rfind("; ");
      const bool has_fix = semicolon != std::string::npos;
      return {"disk", CheckState::kMissing, disk.why.substr(0, semicolon), kCost,
              has_fix ? disk.why.substr(semicolon + 2) : "name another folder with --dir"};
    }
    case State::kFailed:
      return {"disk", CheckState::kMissing, fmt::format("{}: {}", disk.folder, disk.why), kCost,
              "sudo dmesg may say why; --dir names another folder"};
    case State::kSilent:
      return {"disk", CheckState::kUnknown, fmt::format("{}: {}", disk.folder, disk.why),
              "saves may take long, or hang",
              "hw measure --only disk --nvme-path DIR waits longer"};
    case State::kInMemory:
      return {"disk", CheckState::kCosts,
              fmt::format("{} is in memory (tmpfs), {} free", disk.folder, free),
              "what is saved or swapped there takes host memory, and is gone after a restart",
              "--dir names a folder on a disk"};
    case State::kMeasured:
      break;
  }
  // A checkpoint's master weights and both moments in fp32.
  constexpr double kStateBytes = 12e9;
  const DiskRates& rates = *disk.rates;
  return {
      "disk", CheckState::kOk,
      fmt::format("{}: writes {}/s, reads {}/s ({} by {} threads, {}); {} free", disk.folder,
                  FormatBytes(static_cast<uint64_t>(rates.write)),
                  FormatBytes(static_cast<uint64_t>(rates.read)), FormatBytes(rates.bytes),
                  rates.threads,
                  rates.direct ? "O_DIRECT" : "through the page cache: no O_DIRECT there", free),
      fmt::format("a checkpoint of 1B parameters (12 GB) takes {} to write at that speed, {} "
                  "to read",
                  FormatSeconds(kStateBytes / rates.write),
                  FormatSeconds(kStateBytes / rates.read)),
      ""};
}

Finding ProfileFinding(const MachineFacts& facts) {
  const ProfileFacts& profile = facts.profile;
  using State = ProfileFacts::State;
  constexpr const char* kMeasure =
      "zeroplan hw measure -o mine.json (about two minutes, idle machine)";
  // docs/performance.md, "Predicted and measured".
  constexpr const char* kGuesses =
      "step times are predicted from a built-in profile: on H200s 50 runs without offload were up "
      "to 13 % off and one with it 42 %, from a measured one 40 runs at most 10 %";
  switch (profile.state) {
    case State::kNoGpus:
      if (!facts.driver_failed.empty()) {
        return {"profile", CheckState::kUnknown,
                "not looked for, as the driver cannot be asked for its GPUs"};
      }
      if (facts.gpus.is_off) {
        return {"profile", CheckState::kUnknown, "not looked for: ZEROPLAN_NO_DETECT is set"};
      }
      return {"profile", CheckState::kOk,
              "there is no GPU here; plans use the built-in profile that --hw names"};
    case State::kUsed:
      return {"profile", CheckState::kOk,
              fmt::format("measured on {} ({}); plan, estimate and train take it", profile.when,
                          profile.file)};
    case State::kStale:
      return {"profile", CheckState::kCosts, profile.note, kGuesses, kMeasure};
    case State::kAbsent:
      break;
  }
  if (profile.built_in.empty()) {
    return {"profile", CheckState::kMissing,
            "not measured; " +
                (profile.gpu_note.empty() ? "no built-in profile fits" : profile.gpu_note),
            "plan, estimate and train do not know how fast this machine is", kMeasure};
  }
  return {"profile", CheckState::kCosts,
          fmt::format("not measured; plans take the built-in {}", profile.built_in), kGuesses,
          kMeasure};
}

}  // namespace

std::vector<Finding> StoredFindings(const MachineFacts& facts) {
  return {DiskFinding(facts.disk), ProfileFinding(facts)};
}

std::vector<FindingGroup> AllFindings(const MachineFacts& facts) {
  return {{"Programs and libraries", ExecutorFindings(facts)},
          {"GPUs", GpuFindings(facts)},
          {"Host", HostFindings(facts)},
          {"Disk and profile", StoredFindings(facts)}};
}

const char* CheckStateName(CheckState state) {
  switch (state) {
    case CheckState::kOk:
      return "ok";
    case CheckState::kCosts:
      return "costs";
    case CheckState::kMissing:
      return "missing";
    case CheckState::kUnknown:
      break;
  }
  return "unknown";
}

}  // namespace zeroplan
