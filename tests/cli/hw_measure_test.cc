// zeroplan hw measure as a user runs it, on a machine without GPUs.
#include <doctest/doctest.h>

#include <cmath>

#include "hwprofiles/loader.h"
#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

TEST_CASE("hw measure --only host writes a profile that loads") {
  const TempDir folder;
  const std::string file = folder.path() + "/mine.json";
  const RunResult result =
      RunZeroplan("hw measure --only host --quick --base dgx-a100-80gb -o " + file);
  CAPTURE(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.out.empty());
  const HardwareProfile profile = LoadProfile(file);
  const HardwareProfile base = LoadProfile("dgx-a100-80gb");
  CHECK(profile.name == "dgx-a100-80gb-measured");
  CHECK(profile.gpu == base.gpu);
  for (const auto& figure : {profile.node.triad_bandwidth, profile.node.adam_bandwidth}) {
    REQUIRE(figure.has_value());
    CHECK(figure->source == FigureSource::kMeasured);
    CHECK(Has(figure->reference, "hw measure"));
    CHECK(std::isfinite(figure->value));
    CHECK(figure->value > 0);
  }
  const RunResult used = RunZeroplan("estimate --model gpt2 --gpus 1 --stage 1 --hw " + file);
  CHECK(used.exit_code == 0);
}

TEST_CASE("hw measure --backend cpu writes a profile that plans in fp32") {
  const TempDir folder;
  const std::string file = folder.path() + "/cpu.json";
  const RunResult result =
      RunZeroplan("hw measure --backend cpu --quick --threads 1 --name mine -o " + file);
  CAPTURE(result.err);
  REQUIRE(result.exit_code == 0);
  const HardwareProfile profile = LoadProfile(file);
  CHECK(profile.name == "mine");
  CHECK(profile.node.gpus.value == 1);
  CHECK(profile.gpu.architecture == "cpu");
  const RunResult used = RunZeroplan("estimate --model gpt2 --seq-len 128 --hw " + file);
  CAPTURE(used.err);
  CHECK(used.exit_code == 0);
  CHECK(Has(used.out, "fp32"));
}

TEST_CASE("hw measure refuses what it cannot do") {
  struct Refused {
    const char* arguments;
    std::vector<const char*> said;
  };
  const std::vector<Refused> corpus = {
      {"", {"GPU", "--only host"}},  // no CUDA in this build, or no GPU here
      {"--only hosts", {"--only", "hosts", "did you mean host?"}},
      {"--only host --gpus 2", {"--gpus", "2"}},
      {"--only host --gpus 0", {"--gpus"}},
      {"--only gemm", {"GPU"}},
      {"--only host,network", {"--only", "network", "launcher"}},
      {"--backend tpu", {"--backend", "tpu", "cpu"}},
      {"--only host --threads 2", {"--threads", "--backend cpu"}},
      {"--backend cpu --only host", {"--only", "--backend cpu"}},
      {"--only host --base nothing", {"nothing", "zeroplan hw list"}},
      {"--only disk --nvme-path /nowhere/at/all", {"--nvme-path", "/nowhere/at/all"}},
      {"--only host -o /nowhere/at/all/mine.json", {"--out", "/nowhere/at/all/mine.json"}},
      {"--only host -o /proc", {"--out", "/proc", "is a folder"}},
  };
  for (const Refused& refused : corpus) {
    CAPTURE(refused.arguments);
    const RunResult result = RunZeroplan(std::string("hw measure ") + refused.arguments,
                                         "ZEROPLAN_NO_DETECT=1 CUDA_VISIBLE_DEVICES=");
    CHECK(result.exit_code == 2);
    for (const char* said : refused.said) CHECK(Has(result.err, said));
    CHECK(Lacks(result.err, "all parts"));  // nothing was measured for it
  }
}

}  // namespace
}  // namespace zeroplan
