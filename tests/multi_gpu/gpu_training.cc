#include "tests/multi_gpu/gpu_training.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/cli/run_binary.h"
#include "tests/paths.h"
#include "tests/run_metrics.h"

namespace zeroplan {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr auto kTurn = std::chrono::milliseconds(20);

}  // namespace

TrainingFolder::TrainingFolder() {
  std::ofstream(path("config.json"))
      << R"({"model_type":"gpt2","n_layer":3,"n_embd":64,"n_head":2,"n_positions":64,"vocab_size":256})";
}

std::string TrainingFolder::Train(const std::string& name, const std::string& more,
                                  int steps) const {
  return "train --backend cuda --model " + path("config.json") + " --data " +
         SourcePath("LICENSE") + " --lr 1e-3 --steps " + std::to_string(steps) + " --metrics " +
         path(name + ".jsonl") + " " + more;
}

std::map<int, double> TrainingFolder::Losses(const std::string& name) const {
  return LossesByStep(path(name + ".jsonl"));
}

Json TrainingFolder::LastLine(const std::string& name) const {
  const std::vector<Json> lines = ReadMetricsLines(path(name + ".jsonl"));
  return lines.empty() ? Json() : lines.back();
}

std::map<int, double> StageZeroAlone(const TrainingFolder& folder, const std::string& dtype,
                                     int steps) {
  const std::string name = dtype + "-reference";
  GpuTraining run(
      folder.Train(
          name, "--gpus 1 --micro-batch " + std::to_string(kReferenceBatch) + " --dtype " + dtype,
          steps),
      folder.path(name + ".log"));
  const int code = run.Wait(std::chrono::seconds(120));
  CAPTURE(run.output());
  REQUIRE(code == 0);
  const std::map<int, double> losses = folder.Losses(name);
  REQUIRE(losses.size() == static_cast<size_t>(steps));
  REQUIRE(losses.at(steps) < 0.8 * losses.at(1));  // or equal curves would say little
  return losses;
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

GpuTraining::GpuTraining(const std::string& arguments, const std::string& log) : log_(log) {
  const char* binary = std::getenv("ZEROPLAN_BINARY");
  const std::string command =
      "exec " + (binary != nullptr ? binary : BinaryPath("zeroplan")) + " " + arguments;
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

int GpuTraining::Wait(std::chrono::seconds limit) {
  for (const auto end = Clock::now() + limit; !Ended();) {
    if (Clock::now() > end) return -1;
    std::this_thread::sleep_for(kTurn);
  }
  return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1 - WTERMSIG(status_);
}

bool GpuTraining::AwaitOutput(const std::string& text, std::chrono::seconds limit) {
  for (const auto end = Clock::now() + limit; Clock::now() < end;) {
    if (output().find(text) != std::string::npos) return true;
    if (Ended()) return output().find(text) != std::string::npos;
    std::this_thread::sleep_for(kTurn);
  }
  return false;
}

std::string GpuTraining::output() const { return ReadWhole(log_); }

void GpuTraining::Signal(int signal) const { kill(pid_, signal); }

std::vector<pid_t> GpuTraining::Ranks() const {
  std::vector<pid_t> ranks;
  const std::string id = std::to_string(pid_);
  std::ifstream file("/proc/" + id + "/task/" + id + "/children");
  for (pid_t rank; file >> rank;) ranks.push_back(rank);
  return ranks;
}

}  // namespace zeroplan
