// Measures ranks that run on the CPU, through the executor's own kernels and Gloo.
//
// Ranks of a host share its cores and memory. So everything is measured while all of them do it: a
// rank's rates are its share of the host.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "executor/measure/measurement.h"
#include "executor/process/process_group.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

struct CpuMeasureOptions {
  int threads = 1;  // threads of a rank
  bool quick = false;
  // Called on rank 0 with the next part.
  std::function<void(const std::string&)> progress = [](const std::string&) {};
};

struct CpuRanksMeasurement {
  std::string when, version;  // as in MachineMeasurement
  int hosts = 1, ranks_per_host = 1, threads = 1;
  DetectedHost machine;   // rank 0's
  std::string processor;  // "AMD EPYC"
  double clock = 0;       // Hz; 0: unknown
  // resident set of a process before it loads a model, the maximum over ranks
  double resident_bytes = 0;
  double copy_bandwidth = 0;  // bytes/s read plus written by one rank
  double call_seconds = 0;    // time of a kernel that does next to nothing

  // Means of kernels over calls and ranks, in steps of two small models.
  std::vector<GemmRate> gemm;  // fp32
  std::vector<NamedKernelTime> kernels;
  std::vector<CollectiveTime> collectives;    // within a host, fp32; the slowest rank's
  std::optional<NetworkMeasurement> network;  // set for several hosts
};

// All ranks of `group` call this at once; only rank 0's result is complete. Throws Error(kUsage)
// for several ranks in a build without Gloo, and for hosts with different numbers of ranks.
CpuRanksMeasurement MeasureCpuRanks(ProcessGroup& group, const CpuMeasureOptions& options);

// A profile with a rank of the CPU as its GPU. Rates that only a GPU has are derived from their
// substitutes, and marked so.
HardwareProfile CpuRanksProfile(const CpuRanksMeasurement& measured, const std::string& name);

}  // namespace zeroplan
