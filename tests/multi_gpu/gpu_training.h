// A small model trained by the built zeroplan on several GPUs, each run a tree of processes.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/model/model_spec.h"
#include "tests/first_moments.h"
#include "tests/temp_dir.h"

namespace zeroplan {

enum class TrainedModel {
  kSmall,  // a GPT-2 of 3 layers, 64 tokens a sequence
  kLong,   // a Llama of 2 layers with heads of 128 that share keys, 1024 tokens a sequence
};

// A folder of its own with the model's config.json and data; removed at the end.
class TrainingFolder {
 public:
  explicit TrainingFolder(TrainedModel model = TrainedModel::kSmall);

  std::string path(const std::string& name) const { return root_.path() + "/" + name; }
  // `train` with what all runs share and `more`; metrics go to NAME.jsonl.
  std::string Train(const std::string& name, const std::string& more, int steps) const;
  // The options that have Train's run keep a checkpoint every kSavedStep steps, for Moments.
  std::string SaveOptions(const std::string& name) const;
  // AdamW's first moments after step kSavedStep.
  testing::FirstMoments Moments(const std::string& name) const;
  ModelSpec model() const;
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
  // `environment`: "NAME=VALUE ..." that it has beside this process's.
  GpuTraining(const std::string& arguments, const std::string& log,
              const std::string& environment = "");
  ~GpuTraining();
  GpuTraining(const GpuTraining&) = delete;
  GpuTraining& operator=(const GpuTraining&) = delete;

  bool Ended();
  // The exit code, or -1 - signal where one ended it.
  int Wait();
  // Until `text` is in the log; false if the process ended without it.
  bool AwaitOutput(const std::string& text);
  std::string output() const;
  void Signal(int signal) const;
  // Processes that it has started: the ranks, in the order of starting.
  std::vector<pid_t> Ranks() const;

 private:
  std::string log_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

// A run of several: what it prints goes to NAME.log.
struct AskedTraining {
  std::string name, arguments;
};
// Runs all of them on `gpus` GPUs each, several at once: starting takes most of a run's time.
// `check` gets each once it has ended, with its exit code and what it printed.
void RunTogether(
    const TrainingFolder& folder, int gpus, const std::vector<AskedTraining>& asked,
    const std::function<void(const std::string& name, int code, const std::string& output)>& check);

// A checkpoint is kept of these steps and every multiple. Not the first: the second begins while
// the first one's update is under way.
inline constexpr int kSavedStep = 2;

// What runs are compared by.
struct Curve {
  std::map<int, double> losses;  // by step
  testing::FirstMoments moments;
};

// Samples of a step of StageZeroAlone's.
inline constexpr int kReferenceBatch = 8;
// `steps` steps at stage 0 on one GPU, which must have learned something.
Curve StageZeroAlone(const TrainingFolder& folder, const std::string& dtype, int steps);
// The largest relative difference of a step's losses; infinite where steps or numbers are missing.
double Farthest(const std::map<int, double>& got, const std::map<int, double>& want);

}  // namespace zeroplan
