// Files that start a plan elsewhere. Their tools' own parsers read them in tests/launch_files.
#include "planner/formats/launch_files.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "core/base/error.h"
#include "hwprofiles/loader.h"
#include "planner/runtimes/runtimes.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

LaunchRequest LaunchOf(ConfigFormat format, int gpus = 8) {
  LaunchRequest request = {.format = format,
                           .model = "gpt2",
                           .cluster = {gpus, 8},
                           .gpu_name = "NVIDIA H100 SXM",
                           .file = "a run.yaml",
                           .plan_file = "plan.json",
                           .step_seconds = 3};
  request.batch.world_size = gpus;
  request.batch.seq_len = 1024;
  return request;
}

std::string TextOf(const LaunchRequest& request) {
  const WrittenConfig written = WriteLaunchFile(request);
  CHECK(written.files.size() == 1);
  CHECK(written.files[0].path == request.file);
  CHECK(Has(written.files[0].text.substr(0, written.files[0].text.find('\n')),
            wording::kPlannedByZeroplan));
  return written.files[0].text;
}

TEST_CASE("SkyPilot's names of the built-in GPUs") {
  CHECK(SkyPilotName("NVIDIA H100 SXM") == "H100");
  CHECK(SkyPilotName("NVIDIA A100 SXM 80 GB") == "A100-80GB");
  CHECK(SkyPilotName("NVIDIA L40S") == "L40S");
  CHECK(SkyPilotName("NVIDIA GeForce RTX 4090") == "RTX4090");
  std::set<std::string> named, unnamed;
  for (const std::string& name : ProfileNames()) {
    const std::string gpu = LoadProfile(name).gpu.name;
    (SkyPilotName(gpu).empty() ? unnamed : named).insert(gpu);
  }
  // Every row of the list is a GPU that a profile has.
  CHECK(named.size() == 31);
  CHECK(unnamed.count("NVIDIA GeForce RTX 4080") == 1);
  CHECK(unnamed.count("NVIDIA B300 SXM") == 1);
  const std::string error = ErrorOf(ExitCode::kUsage, [] {
    CheckLaunch(ConfigFormat::kSkyPilot, {8, 8}, "NVIDIA GeForce RTX 4080");
  });
  CHECK(Has(error, wording::kSkypilotCatalogueHasNoName));
  CHECK_NOTHROW(CheckLaunch(ConfigFormat::kKubernetes, {8, 8}, "NVIDIA GeForce RTX 4080"));
  CHECK(Has(ErrorOf(ExitCode::kUsage, [] { CheckLaunch(ConfigFormat::kKubernetes, {12, 8}, "x"); }),
            "12 GPUs"));
}

TEST_CASE("--for skypilot: spot machines where the run is interrupted") {
  LaunchRequest request = LaunchOf(ConfigFormat::kSkyPilot);
  const std::string steady = TextOf(request);
  CHECK(Has(steady, "  accelerators: H100:8\n"));
  CHECK(Lacks(steady, "use_spot"));
  CHECK(Has(steady, " --save-every 600 --resume"));  // twice an hour
  CHECK(Has(steady, wording::kSkyLaunchRunYaml));
  request.interrupted = true;
  request.disk_bytes = 1'000'000'000'000;
  const std::string spot = TextOf(request);
  CHECK(Has(spot, wording::kUseSpotTrue));
  CHECK(Has(spot, " --save-every auto --resume"));
  CHECK(Has(spot, "  disk_size: 1100\n"));
  CHECK(WriteLaunchFile(request).launch == "sky jobs launch 'a run.yaml'");
}

TEST_CASE("--for kubernetes: a Job that goes on after a node is taken away") {
  LaunchRequest request = LaunchOf(ConfigFormat::kKubernetes);
  CHECK(Has(TextOf(request), "      terminationGracePeriodSeconds: 120\n"));
  request.save_seconds = 100;
  request.interrupted = true;
  const std::string one = TextOf(request);
  CHECK(Has(one, "      terminationGracePeriodSeconds: 200\n"));
  CHECK(Has(one, "          values: [130]\n"));
  CHECK(Has(one, wording::kExecZeroplanTrainPlanPlan));
  CHECK(Lacks(one, "kind: Service"));
  const std::string two = TextOf(LaunchOf(ConfigFormat::kKubernetes, 16));
  CHECK(Has(two, "kind: Service"));
  CHECK(Has(two, "  completions: 2\n"));
  CHECK(Has(two, wording::kExecTorchrunJobCompletionIndex));
}

TEST_CASE("launch files have the run's length and the model's folder") {
  LaunchRequest request = LaunchOf(ConfigFormat::kSkyPilot);
  CHECK(WriteLaunchFile(request).notes.size() == 2);  // nothing says how long it is
  request.length = "--epochs 3";
  request.data_options = "--truncate";
  request.model_folder = "/home/me/a model";
  CHECK(WriteLaunchFile(request).notes.size() == 1);
  const std::string one = TextOf(request);
  CHECK(Has(one, wording::kModelHomeMeModel));
  CHECK(Has(one, "  MODEL: ~/model\n"));
  CHECK(Has(one, wording::kModelModelHome));
  const std::string train =
      "zeroplan train --plan \"$PLAN\" --model \"$MODEL\" --data \"$DATA\" "
      "--epochs 3 --truncate --save \"$SAVE\" --save-every 600 --resume";
  CHECK(Has(one, train));
  request.cluster = {16, 8};
  const std::string two = TextOf(request);
  CHECK(Has(two, wording::kModelSharedModel));
  CHECK(Lacks(two, "  ~/model: "));
  CHECK(Has(two, train));
  request.format = ConfigFormat::kKubernetes;
  CHECK(Has(TextOf(request), wording::kPlanPlanJsonModelData));
}

TEST_CASE("launch files are of zeroplan's own executor") {
  for (const ConfigFormat format : {ConfigFormat::kSkyPilot, ConfigFormat::kKubernetes}) {
    CHECK(IsLaunchFormat(format));
    CHECK_NOTHROW(CheckFormat(format, OwnExecutor(), "run.yaml"));
    CHECK(
        Has(ErrorOf(ExitCode::kUsage, [&] { CheckFormat(format, DeepSpeedRuntime(), "run.yaml"); }),
            "starts zeroplan's own executor, not DeepSpeed; leave ⟦runtime⟧ out"));
    CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { CheckFormat(format, OwnExecutor(), "a\xff.yaml"); }),
              "is not UTF-8"));
  }
  CHECK_FALSE(IsLaunchFormat(ConfigFormat::kTorchtitan));
}

}  // namespace
}  // namespace zeroplan
