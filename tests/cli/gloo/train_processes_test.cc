// zeroplan train --backend cpu with a process for each rank, as launchers start them.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "hwprofiles/loader.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/free_port.h"
#include "tests/has.h"
#include "tests/run_metrics.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using Variables = std::map<std::string, std::string>;

// What each launcher sets for a rank of a run on this host.
Variables OfLauncher(const std::string& launcher, int rank, int ranks, int port) {
  const std::string r = std::to_string(rank), n = std::to_string(ranks);
  Variables variables;
  if (launcher == "torchrun") {
    variables = {{"RANK", r}, {"WORLD_SIZE", n}, {"LOCAL_RANK", r}, {"LOCAL_WORLD_SIZE", n}};
  } else if (launcher == "mpirun") {
    variables = {{"OMPI_COMM_WORLD_RANK", r},
                 {"OMPI_COMM_WORLD_SIZE", n},
                 {"OMPI_COMM_WORLD_LOCAL_RANK", r},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE", n}};
  } else {
    variables = {{"SLURM_PROCID", r},         {"SLURM_LOCALID", r},
                 {"SLURM_STEP_NUM_TASKS", n}, {"SLURM_NTASKS", n},
                 {"SLURM_TASKS_PER_NODE", n}, {"SLURM_STEP_ID", "0"},
                 {"SLURM_JOB_ID", "7"},       {"SLURM_STEP_NODELIST", "localhost"}};
  }
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(port);
  return variables;
}

// A process of zeroplan's whose output goes to a file.
class RankProcess {
 public:
  RankProcess(const std::string& arguments, const Variables& variables, std::string log)
      : log_(std::move(log)) {
    std::string command = "exec env ZEROPLAN_NO_DETECT=1";
    for (const auto& [name, value] : variables) command += " '" + name + "=" + value + "'";
    command += " " + BinaryPath("zeroplan ") + arguments;
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      const int file = open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(file, STDOUT_FILENO);
      dup2(file, STDERR_FILENO);
      execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
  }
  ~RankProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  pid_t pid() const { return pid_; }
  int End() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  std::string text() const { return ReadWhole(log_); }

 private:
  pid_t pid_ = -1;
  std::string log_;
};

class ProcessFolder : public Workspace {
 public:
  ProcessFolder() {
    // In place of ssh: the "hosts" are this one.
    std::ofstream(path("ssh")) << "#!/bin/sh\nexec sh -c \"$2\"\n";
    chmod(path("ssh").c_str(), 0755);
  }
  std::string Train(const std::string& more, int steps) const {
    return Workspace::Train("--backend cpu " + more, steps);
  }
  std::string OnHosts(const std::string& hosts) const {
    return "--hosts " + hosts + " --ssh " + path("ssh") + " ";
  }
  std::string Weights(const std::string& run) const {
    return ReadWhole(path(run + "/model.safetensors"));
  }
  std::vector<std::unique_ptr<RankProcess>> Start(const std::string& launcher, int ranks,
                                                  const std::string& arguments) const {
    const int port = FreePort();
    std::vector<std::unique_ptr<RankProcess>> processes;
    for (int rank = 0; rank < ranks; ++rank) {
      processes.push_back(std::make_unique<RankProcess>(
          arguments, OfLauncher(launcher, rank, ranks, port), path("log" + std::to_string(rank))));
    }
    return processes;
  }
};

TEST_CASE("train: processes of each launcher end with the weights of threads") {
  const ProcessFolder folder;
  const std::string choice = "--stage 1 --save ";
  REQUIRE(RunZeroplan(folder.Train("--gpus 2 " + choice + folder.path("threads"), 3)).exit_code ==
          0);
  const std::string weights = folder.Weights("threads");
  REQUIRE(!weights.empty());
  for (const std::string launcher : {"torchrun", "mpirun", "srun"}) {
    CAPTURE(launcher);
    const auto ranks = folder.Start(launcher, 2, folder.Train(choice + folder.path(launcher), 3));
    for (const auto& rank : ranks) {
      const int code = rank->End();
      CAPTURE(rank->text());
      CHECK(code == 0);
    }
    CHECK(folder.Weights(launcher) == weights);
    // Rank 0 alone speaks.
    CHECK(Has(ranks[0]->text(), "step 3/3"));
    CHECK(Lacks(ranks[1]->text(), "step "));
  }
}

TEST_CASE("train --save-every auto: processes save in the same steps, by what rank 0 measured") {
  const ProcessFolder folder;
  constexpr int kSteps = 150;
  REQUIRE(RunZeroplan(folder.Train("--gpus 3 --stage 2 --save " + folder.path("threads"), kSteps))
              .exit_code == 0);
  for (const std::string async : {"off", "on"}) {
    CAPTURE(async);
    const std::string metrics = folder.path(async + ".jsonl");
    const auto ranks = folder.Start(
        "torchrun", 3,
        folder.Train("--stage 2 --save-every auto --interruptions 1/s --async-save " + async +
                         " --save " + folder.path(async) + " --metrics " + metrics,
                     kSteps));
    for (const auto& rank : ranks) {
      const int code = rank->End();
      CAPTURE(rank->text());
      CHECK(code == 0);
    }
    std::vector<int64_t> saved;
    for (const auto& line : ReadMetricsLines(metrics)) {
      if (line["event"] == "saved") saved.push_back(line["step"].get<int64_t>());
    }
    REQUIRE(saved.size() >= 2);
    CHECK(saved.front() == 5);
    CHECK(saved.back() == kSteps);
    CHECK(folder.Weights(async) == folder.Weights("threads"));
    CHECK(RunZeroplan("checkpoint verify " + folder.path(async)).exit_code == 0);
  }
}

TEST_CASE("train: processes resume what threads saved and the other way round, bit for bit") {
  const ProcessFolder folder;
  for (const int ranks : {2, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(ranks);
      CAPTURE(stage);
      const std::string name = std::to_string(ranks) + "-" + std::to_string(stage);
      const std::string half = std::to_string(ranks / 2);
      const std::string threads = "--gpus " + std::to_string(ranks) + " ";
      const std::string processes = folder.OnHosts("localhost:" + half + ",127.0.0.1:" + half);
      const auto run = [&](const std::string& how, const std::string& save, int steps) {
        const RunResult result = RunZeroplan(folder.Train(
            how + "--stage " + std::to_string(stage) + " --resume --save " + folder.path(save),
            steps));
        CAPTURE(result.err);
        REQUIRE(result.exit_code == 0);
      };
      run(threads, name + "-first-threads", 3);
      run(processes, name + "-first-processes", 3);
      CHECK(folder.Weights(name + "-first-processes") == folder.Weights(name + "-first-threads"));
      run(processes, name + "-first-threads", 6);
      run(threads, name + "-first-processes", 6);
      run(threads, name + "-whole", 6);
      const std::string whole = folder.Weights(name + "-whole");
      REQUIRE(!whole.empty());
      CHECK(folder.Weights(name + "-first-threads") == whole);
      CHECK(folder.Weights(name + "-first-processes") == whole);
    }
  }
}

TEST_CASE("train: the ranks of a host are a node") {
  const ProcessFolder folder;
  const std::string hosts = folder.OnHosts("localhost:2,127.0.0.1:2");
  const auto run = [&](const std::string& how, const std::string& save) {
    const RunResult result = RunZeroplan(
        folder.Train(how + " --stage 3 --across-groups gradients --save " + folder.path(save), 3));
    CAPTURE(result.err);
    REQUIRE(result.exit_code == 0);
    return folder.Weights(save);
  };
  const std::string weights = run(hosts + "--shard-group node", "node");
  CHECK(!weights.empty());
  CHECK(run("--gpus 4 --shard-group 2", "two") == weights);
}

TEST_CASE("hw measure: CPU ranks on two hosts, with what is between them") {
  const ProcessFolder folder;
  const std::string file = folder.path("mine.json");
  const int port = FreePort();
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    Variables variables = OfLauncher("torchrun", rank, 4, port);
    variables["LOCAL_RANK"] = std::to_string(rank % 2);
    variables["LOCAL_WORLD_SIZE"] = "2";
    ranks.push_back(
        std::make_unique<RankProcess>("hw measure --backend cpu --quick --threads 1 -o " + file,
                                      variables, folder.path("log" + std::to_string(rank))));
  }
  for (const auto& rank : ranks) {
    const int code = rank->End();
    CAPTURE(rank->text());
    CHECK(code == 0);
  }
  const HardwareProfile profile = LoadProfile(file);
  CHECK(profile.node.gpus.value == 2);
  REQUIRE(profile.node.collectives.has_value());
  CHECK(profile.node.collectives->rows.front().world_size == 2);
  REQUIRE(profile.network.has_value());
  CHECK(profile.network->bandwidth_per_node.source == FigureSource::kMeasured);
  const RunResult used = RunZeroplan(
      "plan --model gpt2 --seq-len 128 --gpus 4 --offload-optimizer none --global-batch 4 --hw " +
      file);
  CAPTURE(used.err);
  CHECK(used.exit_code == 0);
}

constexpr int kEndless = 1'000'000;  // steps

TEST_CASE("train: a killed process ends the others with its name and code 4") {
  for (const size_t victim : {size_t{0}, size_t{2}}) {
    CAPTURE(victim);
    const ProcessFolder folder;
    const std::string metrics = folder.path("m.jsonl");
    const auto ranks =
        folder.Start("torchrun", 3, folder.Train("--stage 3 --metrics " + metrics, kEndless));
    REQUIRE(HasSteps(ranks[0]->pid(), metrics));
    kill(ranks[victim]->pid(), SIGKILL);
    const std::string lost = "rank " + std::to_string(victim) + ": lost (connection closed)";
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const int code = ranks[rank]->End();
      CAPTURE(rank);
      CAPTURE(ranks[rank]->text());
      if (rank == victim) continue;
      CHECK(code == static_cast<int>(ExitCode::kRuntime));
      // Rank 0 says it for all, as long as it lives.
      const bool says_it = ranks[rank]->text().find(lost) != std::string::npos;
      CHECK(says_it == (rank == 0 || victim == 0));
    }
  }
}

TEST_CASE("train: a stop that one process is asked for saves on all") {
  const ProcessFolder folder;
  const std::string metrics = folder.path("m.jsonl"), out = folder.path("out");
  const auto ranks = folder.Start(
      "torchrun", 2, folder.Train("--stage 2 --save " + out + " --metrics " + metrics, kEndless));
  REQUIRE(HasSteps(ranks[0]->pid(), metrics));
  kill(ranks[1]->pid(), SIGTERM);
  for (const auto& rank : ranks) {
    const int code = rank->End();
    CAPTURE(rank->text());
    CHECK(code == static_cast<int>(ExitCode::kInterrupted));
  }
  CHECK(Has(ranks[0]->text(), wording::kSavedContinueWith));
  CHECK(std::filesystem::exists(out + "/checkpoints"));
}

}  // namespace
}  // namespace zeroplan
