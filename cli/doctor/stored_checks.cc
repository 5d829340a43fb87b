#include <fmt/format.h>

#include "cli/doctor/checks.h"
#include "core/base/units.h"
#include "planner/report/report_text.h"

namespace zeroplan {
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
      "zeroplan hw measure -o mine.json (about a minute, idle machine)";
  // docs/performance.md, "Predicted and measured".
  constexpr const char* kGuesses =
      "step times are predicted from a built-in profile: on H200s 114 runs without offload were up "
      "to 22 % off and one with it 42 %, from a measured one 24 runs at most 9.7 %";
  switch (profile.state) {
    case State::kNoGpus:
      if (!facts.driver_failed.empty()) {
        return {"profile", CheckState::kUnknown,
                "not looked for, as the driver cannot be asked for its GPUs", "", ""};
      }
      if (facts.gpus.is_off) {
        return {"profile", CheckState::kUnknown, "not looked for: ZEROPLAN_NO_DETECT is set", "",
                ""};
      }
      return {"profile", CheckState::kOk,
              "no GPUs to have one of: plans are for --hw, by default the built-in one", "", ""};
    case State::kUsed:
      return {"profile", CheckState::kOk,
              fmt::format("measured on {} ({}); plan, estimate and train take it", profile.when,
                          profile.file),
              "", ""};
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
