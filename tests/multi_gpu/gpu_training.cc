#include "tests/multi_gpu/gpu_training.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <numeric>
#include <thread>

#include "core/families/load_model.h"
#include "core/model/param_table.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "machine/detect.h"
#include "machine/gpu_state.h"
#include "tests/cli/run_binary.h"
#include "tests/paths.h"
#include "tests/run_metrics.h"
#include "tests/tiny_config.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

constexpr auto kTurn = std::chrono::milliseconds(20);

// Indices of the GPUs a run may use.
std::vector<unsigned> UsableGpus() {
  if (const auto visible = VisibleDevices()) return *visible;
  std::vector<unsigned> all(QueryGpus().size());
  std::iota(all.begin(), all.end(), 0U);
  return all;
}

}  // namespace

TrainingFolder::TrainingFolder(TrainedModel model) {
  std::ofstream(path("config.json"))
      << (model == TrainedModel::kSmall
              ? testing::Gpt2Config({.layers = 3, .hidden = 64, .positions = 64})
              : R"({"model_type":"llama","num_hidden_layers":2,"hidden_size":512,"intermediate_size":1408,)"
                R"("num_attention_heads":4,"num_key_value_heads":2,"head_dim":128,"vocab_size":256,)"
                R"("max_position_embeddings":1024,"rms_norm_eps":1e-5,"tie_word_embeddings":false})");
  std::ofstream data(path("data.txt"));
  for (int i = 0; i < 10; ++i) data << ReadWhole(SourcePath("LICENSE"));
}

std::string TrainingFolder::Train(const std::string& name, const std::string& more,
                                  int steps) const {
  const bool has_config = more.find("--config ") != std::string::npos;  // which gives the rate
  return "train --backend cuda --model " + path("config.json") + " --data " + path("data.txt") +
         (has_config ? "" : " --lr 1e-3") + " --steps " + std::to_string(steps) + " --metrics " +
         path(name + ".jsonl") + " " + more;
}

std::string TrainingFolder::SaveOptions(const std::string& name) const {
  return " --save " + path(name) + " --save-every " + std::to_string(kSavedStep) + " --keep 100";
}

ModelSpec TrainingFolder::model() const { return LoadModel(path("config.json")); }

testing::FirstMoments TrainingFolder::Moments(const std::string& name) const {
  const ModelSpec spec = model();
  const std::vector<ParamTensor> tensors = BuildParamTable(spec);
  const auto saved = CheckpointSource::Open(
      path(name) + "/checkpoints/" + StepFolderName(kSavedStep), spec, tensors);
  return testing::ReadFirstMoments(saved, tensors);
}

std::map<int, double> TrainingFolder::Losses(const std::string& name) const {
  return LossesByStep(path(name + ".jsonl"));
}

Json TrainingFolder::LastLine(const std::string& name) const {
  const std::vector<Json> lines = ReadMetricsLines(path(name + ".jsonl"));
  return lines.empty() ? Json() : lines.back();
}

Curve StageZeroAlone(const TrainingFolder& folder, const std::string& dtype, int steps) {
  const std::string name = dtype + "-reference";
  GpuTraining run(folder.Train(name,
                               "--gpus 1 --micro-batch " + std::to_string(kReferenceBatch) +
                                   " --dtype " + dtype + folder.SaveOptions(name),
                               steps),
                  folder.path(name + ".log"));
  const int code = run.Wait();
  CAPTURE(run.output());
  REQUIRE(code == 0);
  const Curve curve{folder.Losses(name), folder.Moments(name)};
  REQUIRE(curve.losses.size() == static_cast<size_t>(steps));
  REQUIRE(curve.losses.at(steps) < 0.8 * curve.losses.at(1));  // or equal curves would say little
  return curve;
}

double Farthest(const std::map<int, double>& got, const std::map<int, double>& want) {
  double farthest = got.size() == want.size() ? 0 : INFINITY;
  for (const auto& [step, loss] : want) {
    if (!got.contains(step)) return INFINITY;
    const double off = std::abs(got.at(step) - loss) / std::abs(loss);
    if (!(off <= farthest)) farthest = std::isnan(off) ? INFINITY : off;
  }
  return farthest;
}

GpuTraining::GpuTraining(const std::string& arguments, const std::string& log,
                         const std::string& environment)
    : log_(log) {
  const char* binary = std::getenv("ZEROPLAN_BINARY");
  const std::string command = "exec env " + environment + " " +
                              (binary != nullptr ? binary : BinaryPath("zeroplan")) + " " +
                              arguments;
  pid_ = fork();
  REQUIRE(pid_ >= 0);
  if (pid_ > 0) return;
  const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
  _exit(127);
}

GpuTraining::~GpuTraining() {
  if (Ended()) return;
  for (const pid_t rank : Ranks()) kill(rank, SIGKILL);
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

bool GpuTraining::Ended() {
  if (!ended_) ended_ = waitpid(pid_, &status_, WNOHANG) == pid_;
  return ended_;
}

int GpuTraining::Wait() {
  while (!Ended()) std::this_thread::sleep_for(kTurn);
  return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1 - WTERMSIG(status_);
}

bool GpuTraining::AwaitOutput(const std::string& text) {
  while (output().find(text) == std::string::npos) {
    if (Ended()) return output().find(text) != std::string::npos;
    std::this_thread::sleep_for(kTurn);
  }
  return true;
}

std::string GpuTraining::output() const { return ReadWhole(log_); }

void RunTogether(const TrainingFolder& folder, int gpus, const std::vector<AskedTraining>& asked,
                 const std::function<void(const std::string& name, int code,
                                          const std::string& output)>& check) {
  constexpr size_t kAtOnce = 8;
  const std::vector<unsigned> usable = UsableGpus();
  struct Place {
    const AskedTraining* asked = nullptr;
    std::unique_ptr<GpuTraining> run;
  };
  std::vector<Place> places(std::min(asked.size(), kAtOnce));
  auto next = asked.begin();
  for (size_t ended = 0; ended < asked.size();) {
    for (size_t i = 0; i < places.size(); ++i) {
      Place& place = places[i];
      if (place.run && place.run->Ended()) {
        check(place.asked->name, place.run->Wait(), place.run->output());
        place.run.reset();
        ++ended;
      }
      if (place.run || next == asked.end()) continue;
      std::vector<unsigned> own;  // runs on fewer GPUs than there are lie side by side
      while (own.size() < static_cast<size_t>(gpus)) {
        own.push_back(usable[(i * gpus + own.size()) % usable.size()]);
      }
      place.asked = &*next++;
      place.run = std::make_unique<GpuTraining>(
          place.asked->arguments, folder.path(place.asked->name + ".log"),
          fmt::format("CUDA_VISIBLE_DEVICES={}", fmt::join(own, ",")));
    }
    std::this_thread::sleep_for(kTurn);
  }
}

void GpuTraining::Signal(int signal) const { kill(pid_, signal); }

std::vector<pid_t> GpuTraining::Ranks() const {
  std::vector<pid_t> ranks;
  const std::string id = std::to_string(pid_);
  std::ifstream file("/proc/" + id + "/task/" + id + "/children");
  for (pid_t rank; file >> rank;) ranks.push_back(rank);
  return ranks;
}

}  // namespace zeroplan
