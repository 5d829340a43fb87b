#include "machine/this_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/units.h"
#include "hwprofiles/loader.h"
#include "machine/detect.h"
#include "machine/host_speed.h"

namespace zeroplan {
namespace {

// What 'hw measure' kept of these GPUs in this machine.
void FindKept(const std::vector<DetectedGpu>& gpus, FoundMachine& found) {
  const std::string file = KeptProfileFile(gpus.size());
  KeptProfile kept = ReadKeptProfile(file, IdentityOf(gpus));
  if (!kept.note.empty()) found.notes.push_back(std::move(kept.note));
  if (!kept.profile) return;
  found.assumed.push_back(
      fmt::format("@@hw {} (this machine, as 'hw measure' kept it on {})", file, kept.when));
  found.profile = std::move(kept.profile);
}

}  // namespace

FoundMachine FindThisMachine(bool measure_host) {
  FoundMachine found;
  const std::vector<DetectedGpu> gpus = QueryGpus();
  if (gpus.empty()) return found;
  found.gpus = static_cast<int>(gpus.size());
  FindKept(gpus, found);
  if (found.profile) return found;
  DetectedHost host = QueryHost();
  if (measure_host && !MatchGpu(gpus[0]).empty()) {
    const int threads = std::max(1, host.cores);
    host.triad_bandwidth = MeasureTriad(TriadBytes(threads), threads);
  }
  DetectedMachine machine = MatchMachine(gpus, host);
  found.profile = std::move(machine.profile);
  if (!found.profile) {
    found.notes.push_back(
        fmt::format("{} Planned for {}; @@hw names another.", machine.note, kDefaultProfile));
    return found;
  }
  found.assumed.push_back(
      fmt::format("@@hw {} (this machine: {})", found.profile->name, machine.found));
  if (host.triad_bandwidth > 0) {
    found.notes.push_back(
        fmt::format("Host memory of this machine: {}/s, measured now; 'zeroplan hw measure' "
                    "measures the rest and keeps it.",
                    FormatBytes(static_cast<uint64_t>(host.triad_bandwidth))));
  }
  return found;
}

}  // namespace zeroplan
