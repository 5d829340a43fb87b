// A small model trained by the built zeroplan on several GPUs, each run a tree of processes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/executor/device/temp_dir.h"

namespace zeroplan {

// A folder of its own with config.json of a GPT-2 of 3 layers; removed at the end.
class TrainingFolder {
 public:
  TrainingFolder();

  std::string path(const std::string& name) const { return root_.path() + "/" + name; }
  // `train` with what all runs share and `more`; metrics go to NAME.jsonl.
  std::string Train(const std::string& name, const std::string& more, int steps) const;
  // Loss by step, of all runs that appended to NAME.jsonl. A step told twice with two losses is a
  // failed CHECK.
  std::map<int, double> Losses(const std::string& name) const;
  nlohmann::json LastLine(const std::string& name) const;

 private:
  TempDir root_;
};

// One zeroplan process and the ranks it starts. Output goes to a file.
class GpuTraining {
 public:
  // `log`: the file both outputs go to. The binary is the build's, or $ZEROPLAN_BINARY.
  GpuTraining(const std::string& arguments, const std::string& log);
  ~GpuTraining();
  GpuTraining(const GpuTraining&) = delete;
  GpuTraining& operator=(const GpuTraining&) = delete;

  // The exit code; -1 after `limit`, -1 - signal where one ended it.
  int Wait(std::chrono::seconds limit);
  // Until `text` is in the log; false after `limit` or if the process ended without it.
  bool AwaitOutput(const std::string& text, std::chrono::seconds limit);
  std::string output() const;
  void Signal(int signal) const;
  // Processes that it has started: the ranks, in the order of starting.
  std::vector<pid_t> Ranks() const;

 private:
  bool Ended();

  std::string log_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

// Samples of a step of StageZeroAlone's.
inline constexpr int kReferenceBatch = 8;
// Losses of `steps` steps at stage 0 on one GPU, which must have learned something.
std::map<int, double> StageZeroAlone(const TrainingFolder& folder, const std::string& dtype,
                                     int steps);
// The largest relative difference of a step's losses; infinite where steps or numbers are missing.
double Farthest(const std::map<int, double>& got, const std::map<int, double>& want);

}  // namespace zeroplan
