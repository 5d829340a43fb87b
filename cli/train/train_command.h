// The options of zeroplan train, as text; see common_options.h for why.
#pragma once

#include <string>
#include <vector>

#include "cli/common/common_options.h"

namespace zeroplan {

// Empty: not given.
struct TrainCommand {
  CommonOptions common;
  std::string plan;
  std::vector<std::string> data;
  std::string backend = "auto";
  std::string steps = "100", save_every, validate_every, seed, threads, lr;
  std::string save, init_from, metrics, trace, nvme_path;
  bool resume = false, no_shuffle = false, deterministic = false;
};

// Adds them to `command`. `options` must outlive it.
void AddTrainOptions(CLI::App& command, TrainCommand& options);

}  // namespace zeroplan
