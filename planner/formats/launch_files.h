// A plan of zeroplan's own executor as the file of a program that starts it on its own machines: a
// SkyPilot task, a Kubernetes Job. Both run `zeroplan train --plan`, with the plan's file in the
// same folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cost_models/cluster_shape.h"
#include "planner/formats/config_format.h"

namespace zeroplan {

// Whether `format` is a launch file, and not a config.
bool IsLaunchFormat(ConfigFormat format);

struct LaunchRequest {
  ConfigFormat format = ConfigFormat::kSkyPilot;
  std::string model;  // its name, for people
  BatchSpec batch;
  ClusterShape cluster;
  std::string gpu_name;         // GpuProfile::name
  std::string file, plan_file;  // as the user gave them
  double step_seconds = 0;
  // train's options, as words of a shell: the length of the run ("--epochs 3"; "": not given), and
  // the options of its data ("--packing off --truncate"); each a BashWord.
  std::string length, data_options;
  // The folder uploaded as the model's, if the plan's file names one; "" else.
  std::string model_folder;
  // The run has interruptions: it saves at the rate in the plan's file, and machines may be taken
  // away.
  bool interrupted = false;
  double save_seconds = 0;  // predicted time from a request to stop until all is saved
  uint64_t disk_bytes = 0;  // checkpoints and weights, on one node
};

// SkyPilot's name of a GPU, "H100"; "" if it has none. `gpu_name`: GpuProfile::name.
std::string_view SkyPilotName(std::string_view gpu_name);

// `text` as a word of bash that is allowed in a block of YAML: unprintable bytes, line breaks of
// YAML's among them, are written as $'\xe2\x80\xa8'.
std::string BashWord(std::string_view text);

// Throws Error(kUsage) naming ⟦for⟧ and the fix if the format has no name for the GPUs, or nodes
// have different numbers of them.
void CheckLaunch(ConfigFormat format, const ClusterShape& cluster, std::string_view gpu_name);

// REQUIRES: CheckLaunch passed. tests/launch_files reads the files with skypilot 0.14 and with the
// schemas of Kubernetes 1.37.
WrittenConfig WriteLaunchFile(const LaunchRequest& request);

}  // namespace zeroplan
