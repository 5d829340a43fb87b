// A folder with a model's config for runs of `zeroplan train`, gone with the object.
#pragma once

#include <string>

#include "tests/paths.h"
#include "tests/temp_dir.h"
#include "tests/tiny_config.h"

namespace zeroplan {

inline constexpr int kTrainSteps = 30;

class Workspace {
 public:
  Workspace() { testing::WriteGpt2Config(path("config.json")); }
  std::string path(const std::string& name) const { return root_.path(name); }
  // The part of a command line that all runs share.
  std::string Train(const std::string& more, int steps = kTrainSteps) const {
    return "train --model " + path("config.json") + " --data " + SourcePath("LICENSE") +
           " --threads 1 "
           "--lr 3e-3 --steps " +
           std::to_string(steps) + " " + more;
  }

 private:
  TempDir root_;
};

}  // namespace zeroplan
