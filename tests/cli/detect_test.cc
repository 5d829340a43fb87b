// Detection from the driver's library to the plan, over a library that stands in for the driver's.
#include <doctest/doctest.h>

#include "tests/cli/run_binary.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

const std::string kSmall = "estimate --model gpt2 --seq-len 64 --stage 0 --offload-optimizer none";

RunResult RunWith(const std::string& gpus, const std::string& arguments = kSmall) {
  return RunZeroplan(arguments, "ZEROPLAN_NO_DETECT= LD_LIBRARY_PATH=" + BinaryPath("fake_nvml") +
                                    ":$LD_LIBRARY_PATH " + gpus);
}

bool Says(const RunResult& run, const std::string& text) {
  INFO(run.out, run.err);
  CHECK(run.exit_code == 0);
  return (run.out + run.err).find(text) != std::string::npos;
}

TEST_CASE("without --hw the plan is for this machine's GPUs, all of them") {
  const RunResult two = RunWith("FAKE_GPUS=2");
  CHECK(Says(two, "--hw 2x-rtx4090 (this machine: 2 x NVIDIA GeForce RTX 4090)"));
  CHECK(Says(two, "--gpus 2"));
  CHECK(Says(RunWith("FAKE_GPUS=3"), "--hw 3x-rtx4090"));
  CHECK(Says(RunWith("FAKE_GPUS=4 CUDA_VISIBLE_DEVICES=2"), "--gpus 1"));
  CHECK(Says(RunWith("FAKE_GPUS=2", kSmall + " --hw hgx-h200"), "--gpus 1"));
  CHECK(Says(RunWith("FAKE_GPUS=2 ZEROPLAN_NO_DETECT=1"), "--hw hgx-h200"));
}

TEST_CASE("without a driver, GPUs or a profile for them it is the default") {
  CHECK(Says(RunWith("NO_GPUS=1"), "--hw hgx-h200"));
  CHECK(Says(RunWith("FAKE_GPUS=0"), "--hw hgx-h200"));
  const RunResult unknown = RunWith("FAKE_GPUS=1 FAKE_GPU_NAME=Voodoo2");
  CHECK(Says(unknown, "This machine has 1 x Voodoo2"));
  CHECK(Says(unknown, "--hw hgx-h200"));
}

}  // namespace
}  // namespace zeroplan
