#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "cli/doctor/checks.h"
#include "core/base/units.h"

namespace zeroplan {
namespace {

using ComputeMode = GpuState::ComputeMode;
using Gpus = std::vector<GpuState>;

Gpus Visible(const GpuStates& states) {
  Gpus visible;
  for (const GpuState& gpu : states.gpus) {
    if (gpu.visible) visible.push_back(gpu);
  }
  return visible;
}

// "GPU 0, 1: 400 W of 700 W; GPU 3: 300 W of 700 W": what `say` says of each that it does not pass
// over, equal texts together. "" if it passes over all.
using Say = std::function<std::optional<std::string>(const GpuState&)>;
std::string OfEach(const Gpus& gpus, const Say& say) {
  std::vector<std::pair<std::string, std::vector<unsigned>>> groups;
  for (const GpuState& gpu : gpus) {
    const std::optional<std::string> text = say(gpu);
    if (!text) continue;
    const auto same = std::find_if(groups.begin(), groups.end(),
                                   [&](const auto& group) { return group.first == *text; });
    if (same != groups.end()) {
      same->second.push_back(gpu.index);
    } else {
      groups.push_back({*text, {gpu.index}});
    }
  }
  std::vector<std::string> parts;
  parts.reserve(groups.size());
  for (const auto& [text, indices] : groups) {
    parts.push_back(fmt::format("GPU {}: {}", fmt::join(indices, ", "), text));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

// For nvidia-smi -i.
std::string Indices(const Gpus& gpus, const std::function<bool(const GpuState&)>& takes) {
  std::vector<unsigned> indices;
  for (const GpuState& gpu : gpus) {
    if (takes(gpu)) indices.push_back(gpu.index);
  }
  return fmt::format("{}", fmt::join(indices, ","));
}

Finding DriverFinding(const MachineFacts& facts) {
  const GpuStates& gpus = facts.gpus;
  const int devices = facts.host.nvidia_devices;
  if (!facts.driver_failed.empty()) {
    return {"driver", CheckState::kMissing,
            "NVIDIA's driver cannot be asked: " + facts.driver_failed,
            "training on GPUs would wait for it, too; nothing is known of GPUs here",
            "nvidia-smi, and sudo dmesg | grep -i nvrm, say more; restart the machine"};
  }
  if (gpus.is_off) {
    return {"driver", CheckState::kUnknown, "not asked: ZEROPLAN_NO_DETECT is set",
            "plan and estimate do not see this machine's GPUs, train --backend auto takes the CPU",
            "unset ZEROPLAN_NO_DETECT"};
  }
  if (gpus.answers) {
    return {"driver", CheckState::kOk,
            fmt::format("driver {}, {} GPU{}", gpus.driver.empty() ? "not known" : gpus.driver,
                        gpus.gpus.size(), gpus.gpus.size() == 1 ? "" : "s")};
  }
  if (gpus.library) {
    return {"driver", CheckState::kMissing,
            fmt::format("libnvidia-ml.so.1 is there, but does not answer: {}",
                        gpus.why.empty() ? "it does not say why" : gpus.why),
            "training runs on the CPU backend alone",
            "nvidia-smi; after an update of the driver, restart; in a container, --gpus all"};
  }
  if (devices > 0) {
    return {
        "driver", CheckState::kMissing,
        fmt::format("none, and {} NVIDIA GPU{} on the PCI bus", devices, devices == 1 ? "" : "s"),
        "training runs on the CPU backend alone; plans need --hw",
        "install NVIDIA's driver; in a container, --gpus all"};
  }
  return {"driver", CheckState::kMissing, "none, and no NVIDIA GPU on the PCI bus",
          "training runs on the CPU backend alone; plans are for the machine that --hw names",
          "none on this machine"};
}

Finding ListFinding(const Gpus& gpus, const MachineFacts& facts) {
  const std::string fact = OfEach(gpus, [](const GpuState& gpu) {
    std::string text = fmt::format("{}, {}", gpu.name, FormatBytes(gpu.memory_bytes));
    if (gpu.compute_major && gpu.compute_minor) {
      text += fmt::format(", compute capability {}.{}", *gpu.compute_major, *gpu.compute_minor);
    }
    return std::optional(text);
  });
  if (gpus.size() < facts.gpus.gpus.size()) {
    return {"gpus", CheckState::kCosts,
            fmt::format("{}; {} more that CUDA_VISIBLE_DEVICES leaves out", fact,
                        facts.gpus.gpus.size() - gpus.size()),
            "they are not used", "unset CUDA_VISIBLE_DEVICES"};
  }
  const bool mixed = std::any_of(gpus.begin(), gpus.end(),
                                 [&](const GpuState& gpu) { return gpu.name != gpus[0].name; });
  if (mixed) {
    return {"gpus", CheckState::kCosts, fact,
            "ranks run in step: all are planned, and run, as the slowest and smallest",
            "CUDA_VISIBLE_DEVICES with the indices of one kind"};
  }
  return {"gpus", CheckState::kOk, fact};
}

Finding ArchitectureFinding(const Gpus& gpus, const MachineFacts& facts) {
  const LibraryFacts& libraries = facts.executor.libraries;
  const auto known = [](const GpuState& gpu) { return gpu.compute_major && gpu.compute_minor; };
  if (!libraries.cuda || !std::all_of(gpus.begin(), gpus.end(), known)) {
    return {"architecture", CheckState::kUnknown,
            libraries.cuda ? "the driver does not tell the GPUs' compute capability"
                           : "this build has no code for GPUs to compare with"};
  }
  const std::string without = OfEach(gpus, [&](const GpuState& gpu) -> std::optional<std::string> {
    if (HasCodeFor(libraries.architectures, *gpu.compute_major, *gpu.compute_minor)) return {};
    return fmt::format("compute capability {}.{}", *gpu.compute_major, *gpu.compute_minor);
  });
  if (!without.empty()) {
    const GpuState& gpu = gpus[0];
    return {"architecture", CheckState::kMissing,
            fmt::format("{}; this build has code for {}", without, libraries.architectures),
            "kernels do not start there",
            fmt::format("cmake --preset release -DCMAKE_CUDA_ARCHITECTURES={}{}-real, and build",
                        *gpu.compute_major, *gpu.compute_minor)};
  }
  const std::string old = OfEach(gpus, [](const GpuState& gpu) -> std::optional<std::string> {
    constexpr int kAmpere = 8;
    if (*gpu.compute_major >= kAmpere) return {};
    return fmt::format("compute capability {}.{}", *gpu.compute_major, *gpu.compute_minor);
  });
  if (!old.empty()) {
    return {"architecture", CheckState::kCosts, old,
            "cuDNN's fused attention and bf16 start at 8.0: fp16, and attention by plain kernels, "
            "many times slower",
            "none: newer GPUs"};
  }
  return {"architecture", CheckState::kOk,
          fmt::format("this build has code for them ({})", libraries.architectures)};
}

Finding EccFinding(const Gpus& gpus) {
  const auto off = [](const GpuState& gpu) { return gpu.ecc.has_value() && !*gpu.ecc; };
  if (std::any_of(gpus.begin(), gpus.end(), off)) {
    return {"ecc", CheckState::kCosts,
            OfEach(gpus,
                   [&](const GpuState& gpu) {
                     return off(gpu) ? std::optional<std::string>("off") : std::nullopt;
                   }),
            "a flipped bit of memory goes unnoticed into the weights",
            fmt::format("sudo nvidia-smi -i {} -e 1, then restart; GDDR memory then holds some "
                        "percent less",
                        Indices(gpus, off))};
  }
  const bool on = std::all_of(gpus.begin(), gpus.end(),
                              [](const GpuState& gpu) { return gpu.ecc.value_or(false); });
  if (on) return {"ecc", CheckState::kOk, "on"};
  return {"ecc", CheckState::kUnknown, "the driver does not say; many GPUs have none"};
}

Finding MigFinding(const Gpus& gpus) {
  const auto on = [](const GpuState& gpu) { return gpu.mig.value_or(false); };
  if (std::none_of(gpus.begin(), gpus.end(), on)) {
    return {"mig", CheckState::kOk, "the driver reports no GPU as divided (MIG)"};
  }
  return {
      "mig", CheckState::kCosts,
      OfEach(gpus,
             [&](const GpuState& gpu) {
               return on(gpu) ? std::optional<std::string>("divided (MIG)") : std::nullopt;
             }),
      "CUDA sees a slice of it, while plans without --hw count the whole GPU",
      fmt::format("sudo nvidia-smi -i {} -mig 0, or plan with --gpu-memory", Indices(gpus, on))};
}

Finding PowerFinding(const Gpus& gpus) {
  const auto known = [](const GpuState& gpu) {
    return gpu.limit_watts.has_value() && gpu.default_limit_watts.has_value();
  };
  const auto lowered = [&](const GpuState& gpu) {
    return known(gpu) && *gpu.limit_watts < *gpu.default_limit_watts;
  };
  if (!std::all_of(gpus.begin(), gpus.end(), known)) {
    return {"power_limit", CheckState::kUnknown, "the driver does not say"};
  }
  const std::string fact = OfEach(gpus, [&](const GpuState& gpu) {
    return std::optional(
        fmt::format("{:.0f} W of {:.0f} W by default", *gpu.limit_watts, *gpu.default_limit_watts));
  });
  if (std::none_of(gpus.begin(), gpus.end(), lowered)) {
    return {"power_limit", CheckState::kOk, fact};
  }
  const auto first = std::find_if(gpus.begin(), gpus.end(), lowered);
  return {"power_limit", CheckState::kCosts, fact,
          "kernels at the limit of power, large products above all, run at lower clocks than plans "
          "of a built-in profile count with",
          fmt::format("sudo nvidia-smi -i {} -pl {:.0f}; or hw measure, which measures with it",
                      Indices(gpus, lowered), *first->default_limit_watts)};
}

double LinkBandwidth(int generation, int width) { return PcieLaneBandwidth(generation) * width; }

Finding PcieFinding(const Gpus& gpus) {
  const auto known = [](const GpuState& gpu) {
    return gpu.pcie_generation && gpu.most_pcie_generation && gpu.pcie_width && gpu.most_pcie_width;
  };
  if (!std::all_of(gpus.begin(), gpus.end(), known)) {
    return {"pcie", CheckState::kUnknown, "the driver does not say"};
  }
  // GPUs at rest lower the generation, not the width: P0 to P2 are those of work.
  const auto rests = [](const GpuState& gpu) {
    constexpr int kWorks = 2;
    return gpu.performance_state.value_or(kWorks + 1) > kWorks;
  };
  const auto narrow = [](const GpuState& gpu) { return *gpu.pcie_width < *gpu.most_pcie_width; };
  const auto slow = [&](const GpuState& gpu) {
    return *gpu.pcie_generation < *gpu.most_pcie_generation && !rests(gpu);
  };
  double least_share = 1;
  const std::string fact = OfEach(gpus, [&](const GpuState& gpu) {
    const double now = LinkBandwidth(*gpu.pcie_generation, *gpu.pcie_width);
    const double most = LinkBandwidth(*gpu.most_pcie_generation, *gpu.most_pcie_width);
    std::string text = fmt::format("generation {} x{}", *gpu.pcie_generation, *gpu.pcie_width);
    if (now < most) {
      text += fmt::format(" of {} x{}: {:.3g} of {:.3g} GB/s each way", *gpu.most_pcie_generation,
                          *gpu.most_pcie_width, now, most);
      if (rests(gpu) && *gpu.pcie_generation < *gpu.most_pcie_generation) {
        text += " (it is at rest, which lowers the generation)";
      }
    } else {
      text += fmt::format(", {:.3g} GB/s each way", now);
    }
    if (narrow(gpu) && most > 0) {
      // At rest only the width is known to stay.
      const double share = slow(gpu) || !rests(gpu)
                               ? now / most
                               : static_cast<double>(*gpu.pcie_width) / *gpu.most_pcie_width;
      least_share = std::min(least_share, share);
    } else if (slow(gpu) && most > 0) {
      least_share = std::min(least_share, now / most);
    }
    return std::optional(text);
  });
  const bool lost = std::any_of(gpus.begin(), gpus.end(),
                                [&](const GpuState& gpu) { return narrow(gpu) || slow(gpu); });
  if (!lost) return {"pcie", CheckState::kOk, fact};
  return {"pcie", CheckState::kCosts, fact,
          fmt::format("copies to and from the host (offload, saves) are at most {:.0f} % as fast",
                      100 * least_share),
          "a slot with all lanes, another riser, or the BIOS's PCIe setting; nvidia-smi "
          "--query-gpu=index,pcie.link.gen.current,pcie.link.width.current --format=csv looks "
          "again"};
}

Finding ModeFinding(const Gpus& gpus) {
  const auto is = [](ComputeMode mode) {
    return [mode](const GpuState& gpu) { return gpu.compute_mode == mode; };
  };
  const auto any = [&](ComputeMode mode) {
    return std::any_of(gpus.begin(), gpus.end(), is(mode));
  };
  const auto say = [](const GpuState& gpu) -> std::optional<std::string> {
    if (!gpu.compute_mode) return "not known";
    switch (*gpu.compute_mode) {
      case ComputeMode::kDefault:
        return "default";
      case ComputeMode::kExclusiveThread:
        return "exclusive to a thread";
      case ComputeMode::kProhibited:
        return "prohibited";
      case ComputeMode::kExclusiveProcess:
        return "exclusive to a process";
    }
    return {};
  };
  const std::string fact = OfEach(gpus, say);
  if (any(ComputeMode::kProhibited)) {
    return {"compute_mode", CheckState::kMissing, fact, "CUDA cannot use them",
            fmt::format("sudo nvidia-smi -i {} -c 0", Indices(gpus, is(ComputeMode::kProhibited)))};
  }
  const auto exclusive = [](const GpuState& gpu) {
    return gpu.compute_mode == ComputeMode::kExclusiveProcess ||
           gpu.compute_mode == ComputeMode::kExclusiveThread;
  };
  if (std::any_of(gpus.begin(), gpus.end(), exclusive)) {
    return {"compute_mode", CheckState::kCosts, fact,
            "a GPU takes one process: beside any other program on it training fails to start",
            fmt::format("sudo nvidia-smi -i {} -c 0", Indices(gpus, exclusive))};
  }
  const bool known = std::all_of(gpus.begin(), gpus.end(), is(ComputeMode::kDefault));
  return {"compute_mode", known ? CheckState::kOk : CheckState::kUnknown, fact};
}

Finding ProcessFinding(const Gpus& gpus) {
  // What an idle GPU may hold without a process that computes: a display's buffers.
  constexpr uint64_t kIdleBytes = 256'000'000;
  const auto processes = [](const GpuState& gpu) {
    return gpu.processes ? gpu.processes->size() : 0;
  };
  const auto used = [](const GpuState& gpu) { return gpu.used_bytes.value_or(0); };
  const auto busy = [&](const GpuState& gpu) {
    return processes(gpu) > 0 || used(gpu) > kIdleBytes;
  };
  const std::string fact = OfEach(gpus, [&](const GpuState& gpu) -> std::optional<std::string> {
    if (!busy(gpu)) return {};
    std::string text;
    if (processes(gpu) > 0) {
      std::vector<unsigned> pids;
      for (const GpuProcess& process : *gpu.processes) pids.push_back(process.pid);
      text = fmt::format("process{} {}", pids.size() == 1 ? "" : "es", fmt::join(pids, ", "));
    } else {
      text = "no process that can be seen from here";
    }
    if (gpu.used_bytes) text += fmt::format(", {} in use", FormatBytes(*gpu.used_bytes));
    return text;
  });
  if (!fact.empty()) {
    return {"gpu_processes", CheckState::kCosts, fact,
            "plans count with the whole GPU: less memory is left, and others take of its time",
            "nvidia-smi shows whose they are; end them, choose other GPUs by CUDA_VISIBLE_DEVICES, "
            "or plan with --gpu-reserve"};
  }
  const bool known = std::all_of(gpus.begin(), gpus.end(), [](const GpuState& gpu) {
    return gpu.processes.has_value() && gpu.used_bytes.has_value();
  });
  if (!known) return {"gpu_processes", CheckState::kUnknown, "the driver does not say"};
  return {"gpu_processes", CheckState::kOk, "no other process computes on them"};
}

Finding PeerFinding(const MachineFacts& facts, const Gpus& gpus) {
  std::vector<std::string> without;
  size_t unknown = 0, nvlink = 0;
  for (const GpuPair& pair : facts.gpus.pairs) {
    nvlink += pair.nvlink ? 1 : 0;
    if (!pair.peer) {
      ++unknown;
    } else if (!*pair.peer) {
      without.push_back(fmt::format("{} and {}{}", pair.a, pair.b,
                                    pair.why_not.empty() ? "" : " (" + pair.why_not + ")"));
    }
  }
  if (!without.empty()) {
    constexpr size_t kShown = 3;
    const size_t all = without.size();
    without.resize(std::min(all, kShown));
    return {
        "peer_access", CheckState::kCosts,
        fmt::format("{} of {} pairs of GPUs cannot reach each other's memory: {}{}", all,
                    facts.gpus.pairs.size(), fmt::join(without, ", "), all > kShown ? ", ..." : ""),
        "NCCL takes the way through host memory between them",
        "PCI ACS and the IOMMU off in the BIOS, where the GPUs' kind allows peer access; "
        "nvidia-smi topo -p2p r shows it again"};
  }
  if (unknown > 0) {
    return {"peer_access", CheckState::kUnknown, "the driver does not say"};
  }
  const auto broken = [](const GpuState& gpu) { return gpu.active_links < gpu.links; };
  if (nvlink > 0 && std::any_of(gpus.begin(), gpus.end(), broken)) {
    return {"peer_access", CheckState::kCosts,
            OfEach(gpus,
                   [](const GpuState& gpu) {
                     return std::optional(
                         fmt::format("{} of {} NVLinks active", gpu.active_links, gpu.links));
                   }),
            "collectives have as much less bandwidth; links without a partner count here too",
            "nvidia-smi nvlink -s; sudo dmesg | grep -i nvlink"};
  }
  if (nvlink > 0) {
    return {"peer_access", CheckState::kOk,
            fmt::format("between all GPUs; {} of {} pairs by NVLink, {}", nvlink,
                        facts.gpus.pairs.size(), OfEach(gpus, [](const GpuState& gpu) {
                          return std::optional(fmt::format("{} links active", gpu.active_links));
                        }))};
  }
  return {"peer_access", CheckState::kOk, "between all GPUs, over PCIe"};
}

}  // namespace

std::vector<Finding> GpuFindings(const MachineFacts& facts) {
  std::vector<Finding> findings = {DriverFinding(facts)};
  const Gpus gpus = Visible(facts.gpus);
  if (gpus.empty()) {
    if (facts.gpus.answers) {
      findings.push_back(
          {"gpus", CheckState::kMissing,
           facts.gpus.gpus.empty() ? "the driver has none" : "CUDA_VISIBLE_DEVICES leaves none",
           "training runs on the CPU backend alone",
           facts.gpus.gpus.empty() ? "nvidia-smi -L; in a container, --gpus all"
                                   : "unset CUDA_VISIBLE_DEVICES"});
    }
    return findings;
  }
  findings.push_back(ListFinding(gpus, facts));
  findings.push_back(ArchitectureFinding(gpus, facts));
  findings.push_back(EccFinding(gpus));
  findings.push_back(MigFinding(gpus));
  findings.push_back(PowerFinding(gpus));
  findings.push_back(PcieFinding(gpus));
  findings.push_back(ModeFinding(gpus));
  findings.push_back(ProcessFinding(gpus));
  if (gpus.size() > 1) findings.push_back(PeerFinding(facts, gpus));
  return findings;
}

}  // namespace zeroplan
