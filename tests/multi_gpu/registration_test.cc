// The device arena registered with NCCL: the same training, and an end when a rank dies.
#include <doctest/doctest.h>
#include <signal.h>

#include <cstdlib>

#include "core/base/error.h"
#include "executor/collectives/nccl_registration.h"
#include "tests/multi_gpu/gpu_training.h"

namespace zeroplan {
namespace {

using std::chrono::seconds;

constexpr int kSteps = 20;
constexpr int kEndless = 1'000'000;  // steps
constexpr const char* kGone = "is not registered with NCCL";

// A variable of the runs that start while it lives.
class Variable {
 public:
  Variable(const char* name, std::string_view value) : name_(name) {
    setenv(name, std::string(value).c_str(), 1);
  }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST_CASE("a registered arena: stages on two GPUs follow stage 0 on one, with the planned bytes") {
  const TrainingFolder folder;
  const std::map<int, double> reference = StageZeroAlone(folder, "fp32", kSteps);
  for (const std::string choice : {"stage3", "stage3-cpu", "stage1"}) {
    for (const std::string_view word : kNcclRegistrationWords) {
      const Variable registration(kNcclRegistrationVariable, word);
      // NCCL says what it does only to its log.
      const Variable log("NCCL_DEBUG", "INFO");
      const std::string name = choice + "-" + std::string(word);
      CAPTURE(name);
      const std::string options = "--gpus 2 --micro-batch 4 --dtype fp32 --stage " +
                                  choice.substr(5, 1) +
                                  (choice == "stage3-cpu" ? " --offload-optimizer cpu" : "");
      GpuTraining run(folder.Train(name, options, kSteps), folder.path(name + ".log"));
      const int code = run.Wait(seconds(120));
      const std::string output = run.output();
      CAPTURE(output);
      REQUIRE(code == 0);
      // Sums over ranks in other orders, as between the stages.
      const double farthest = Farthest(folder.Losses(name), reference);
      INFO("off by ", farthest);
      CHECK(farthest <= 1e-5);
      const nlohmann::json end = folder.LastLine(name);
      REQUIRE(end["event"] == "end");
      CHECK(end["high_water_bytes"] == end["planned_arena_bytes"]);
      // A machine may have no symmetric memory; the run is right without.
      const bool by_copy_engines = output.find("Init CE, rank") != std::string::npos;
      if (word == NcclRegistrationWord(NcclRegistration::kZeroCta)) {
        WARN_MESSAGE(by_copy_engines, "gathers did not go to the copy engines here");
      }
      if (word == NcclRegistrationWord(NcclRegistration::kOff)) {
        CHECK(!by_copy_engines);
        CHECK(output.find(kGone) == std::string::npos);
      } else {
        WARN_MESSAGE(output.find(kGone) == std::string::npos, "no registration here");
      }
    }
  }
}

TEST_CASE("gathers by copy engines: one rank's death ends the run everywhere") {
  const Variable registration(kNcclRegistrationVariable,
                              NcclRegistrationWord(NcclRegistration::kZeroCta));
  const TrainingFolder folder;
  GpuTraining run(folder.Train("killed", "--gpus 2 --stage 3 --micro-batch 4", kEndless),
                  folder.path("log"));
  const bool started = run.AwaitOutput("step ", seconds(60));
  CAPTURE(run.output());
  REQUIRE(started);
  const std::vector<pid_t> ranks = run.Ranks();
  REQUIRE(ranks.size() == 2);
  kill(ranks[1], SIGKILL);
  // NCCL cannot end what waits for copies: the control channel ends such a rank after 20 s.
  const int code = run.Wait(seconds(40));
  CAPTURE(run.output());
  CHECK(code == static_cast<int>(ExitCode::kRuntime));
  CHECK(run.output().find("rank 1") != std::string::npos);
  CHECK(run.output().find("bug in zeroplan") == std::string::npos);
  for (const pid_t rank : ranks) CHECK(kill(rank, 0) != 0);  // none lives on
}

TEST_CASE("an unknown word for the registration is refused, with the words that there are") {
  const Variable registration(kNcclRegistrationVariable, "zero");
  const TrainingFolder folder;
  GpuTraining run(folder.Train("refused", "--gpus 2 --stage 3 --micro-batch 4", 1),
                  folder.path("log"));
  CHECK(run.Wait(seconds(60)) == static_cast<int>(ExitCode::kUsage));
  CAPTURE(run.output());
  CHECK(run.output().find("zero-cta") != std::string::npos);
  CHECK(run.output().find(kNcclRegistrationVariable) != std::string::npos);
}

}  // namespace
}  // namespace zeroplan
