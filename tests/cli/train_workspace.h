// A folder with a model's config for runs of `zeroplan train`, gone with the object.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/paths.h"

namespace zeroplan {

inline constexpr int kTrainSteps = 30;

class Workspace {
 public:
  Workspace() {
    std::string name = (std::filesystem::temp_directory_path() / "zeroplan_train_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    root_ = name;
    std::ofstream(root_ / "config.json")
        << R"({"model_type":"gpt2","n_layer":2,"n_embd":32,"n_head":2,"n_positions":32,"vocab_size":256})";
  }
  ~Workspace() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  std::string path(const std::string& name) const { return (root_ / name).string(); }
  // The part of a command line that all runs share.
  std::string Train(const std::string& more, int steps = kTrainSteps) const {
    return "train --model " + path("config.json") + " --data " + SourcePath("LICENSE") +
           " --threads 1 "
           "--lr 3e-3 --steps " +
           std::to_string(steps) + " " + more;
  }

 private:
  std::filesystem::path root_;
};

}  // namespace zeroplan
