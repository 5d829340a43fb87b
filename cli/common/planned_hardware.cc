#include "cli/common/planned_hardware.h"

#include <filesystem>
#include <system_error>

#include "core/base/error.h"
#include "hwprofiles/loader.h"

namespace zeroplan {
namespace {

// Where `hardware` is the plan's profile; another one has its own.
void ApplyPlannedLinks(const PlanFile& plan, HardwareProfile& hardware) {
  const Cluster& cluster = plan.cluster;
  if (hardware.name != cluster.hardware) return;
  try {
    if (!cluster.network.empty()) ApplyNetwork(hardware, cluster.network);
    if (!cluster.intra_node_bandwidth.empty()) {
      ApplyGpuLink(hardware, cluster.intra_node_bandwidth);
    }
    if (cluster.nvme_drives) ApplyNvmeDrives(hardware, *cluster.nvme_drives);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: cluster: {}", plan.source, error.what()));
  }
}

// The file of the plan's profile; "" where it is built in, or the file is gone.
std::string PlannedFile(const PlanFile& plan) {
  std::error_code ignored;
  const std::string file = plan.origin ? plan.origin->hw_file : "";
  return std::filesystem::is_regular_file(file, ignored) ? file : "";
}

}  // namespace

bool KnowsPlannedHardware(const PlanFile& plan) {
  if (!PlannedFile(plan).empty()) return true;
  try {  // a host of several cards is built in by its parts alone
    return FindProfile(plan.cluster.hardware).profile.name == plan.cluster.hardware;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) throw;
    return false;
  }
}

HardwareProfile PlannedHardware(const PlanFile& plan, const std::string& wanted) {
  if (wanted.empty() && !KnowsPlannedHardware(plan)) {
    ThrowUsage("{}: cluster.hw: {} is not a built-in profile; give its file with --hw FILE",
               plan.source, plan.cluster.hardware);
  }
  std::string name = wanted;
  if (name.empty()) name = PlannedFile(plan);
  if (name.empty()) name = plan.cluster.hardware;
  HardwareProfile hardware = LoadProfile(name);
  ApplyPlannedLinks(plan, hardware);
  return hardware;
}

}  // namespace zeroplan
