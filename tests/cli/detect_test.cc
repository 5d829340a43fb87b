// Detection from the driver's library to the plan, over a library that stands in for the driver's.
#include "machine/detect.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "hwprofiles/loader.h"
#include "tests/cli/run_binary.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

const std::string kSmallEstimate =
    "estimate --explain --model gpt2 --seq-len 64 --stage 0 --offload-optimizer none";

// A cache folder of this test's own: what 'hw measure' kept on this machine stays out of it.
std::string CacheOfTest() {
  return (std::filesystem::temp_directory_path() / ("zeroplan_detect_" + std::to_string(getpid())))
      .string();
}

RunResult RunWith(const std::string& gpus, const std::string& arguments = kSmallEstimate) {
  return RunZeroplan(arguments, "ZEROPLAN_NO_DETECT= ZEROPLAN_CACHE_DIR=" + CacheOfTest() +
                                    " LD_LIBRARY_PATH=" + BinaryPath("fake_nvml") +
                                    ":$LD_LIBRARY_PATH " + gpus);
}

// What was printed, without regard to where lines were broken.
std::string OneLine(const RunResult& run) { return WordsIn(run.out + run.err); }

bool Says(const RunResult& run, const std::string& text) {
  INFO(run.out, run.err);
  CHECK(run.exit_code == 0);
  return OneLine(run).find(text) != std::string::npos;
}

TEST_CASE("without --hw the plan is for this machine's GPUs, all of them") {
  const RunResult two = RunWith("FAKE_GPUS=2");
  CHECK(Says(two, "--hw 2x-rtx4090 (this machine: 2 x NVIDIA GeForce RTX 4090)"));
  CHECK(Says(two, "--gpus 2"));
  CHECK(Says(RunWith("FAKE_GPUS=3"), "--hw 3x-rtx4090"));
  CHECK(Says(RunWith("FAKE_GPUS=4 CUDA_VISIBLE_DEVICES=2"), "--gpus 1"));
  // A machine that is named has GPUs of its own.
  CHECK(Says(RunWith("FAKE_GPUS=2", kSmallEstimate + " --hw hgx-h200"), "--gpus 8"));
  CHECK(Says(RunWith("", kSmallEstimate + " --hw dgx-2"), "16 x NVIDIA V100"));
  CHECK(Says(RunWith("", kSmallEstimate + " --hw rtx4090"), "--gpus 1"));
  CHECK(Says(RunWith("FAKE_GPUS=2 ZEROPLAN_NO_DETECT=1"), "--hw hgx-h200"));
}

TEST_CASE("without a driver, GPUs or a profile for them it is the default, which is said first") {
  const std::string none =
      "No GPU found here and no --hw: what follows is for NVIDIA H200 SXM GPUs";
  CHECK(OneLine(RunWith("NO_GPUS=1")).starts_with(none));
  CHECK(OneLine(RunWith("NO_GPUS=1",
                        "plan --explain --model gpt2 --seq-len 64 --global-batch 8 "
                        "--micro-batch 8 --stage 0 --offload-optimizer none"))
            .starts_with(none));
  CHECK(OneLine(RunWith("FAKE_GPUS=1")).starts_with("gpt2: "));
  CHECK(OneLine(RunWith("NO_GPUS=1", kSmallEstimate + " --hw hgx-h200")).starts_with("gpt2: "));
  CHECK(OneLine(RunWith("FAKE_GPUS=1 FAKE_GPU_NAME=Voodoo2"))
            .starts_with("No built-in profile of the GPUs here and no --hw: what follows is for"));
  CHECK(Says(RunWith("NO_GPUS=1"), "--hw hgx-h200"));
  CHECK(Says(RunWith("FAKE_GPUS=0"), "--hw hgx-h200"));
  const RunResult unknown = RunWith("FAKE_GPUS=1 FAKE_GPU_NAME=Voodoo2");
  CHECK(Says(unknown, "This machine has 1 x Voodoo2"));
  CHECK(Says(unknown, "--hw hgx-h200"));
}

TEST_CASE("GPUs of two kinds: planned as the slowest, which is said") {
  const std::string two =
      "FAKE_GPUS=2 FAKE_GPU_NAME='NVIDIA GeForce RTX 4090,NVIDIA GeForce RTX 3090'";
  const RunResult run = RunWith(two);
  CHECK(Says(run,
             "--hw rtx4090+rtx3090 (this machine: 1 x NVIDIA GeForce RTX 4090, 1 x NVIDIA GeForce "
             "RTX 3090)"));
  CHECK(Says(run, "--gpus 2"));
  CHECK(Says(run, "Unequal GPUs: 1 x NVIDIA GeForce RTX 4090, 1 x NVIDIA GeForce RTX 3090."));
  CHECK(Says(run,
             "NVIDIA GeForce RTX 4090 has 2.09 times the products and 1.07 times the memory "
             "bandwidth, and waits."));
  CHECK(Says(run, "2 x NVIDIA GeForce RTX 3090 (slowest of 2 kinds)"));
  // As it is named, and as hw show prints it.
  CHECK(Says(RunWith("", kSmallEstimate + " --hw 4090+3090"), "Unequal GPUs: "));
  CHECK(Says(RunWith("", "hw show 4090+3090 --format json"), "\"other_gpus\": ["));
  CHECK(Says(RunWith(two, ""), "This machine: 1 x NVIDIA GeForce RTX 4090, 1 x"));
}

bool IsSilent(const RunResult& run, const std::string& text) {
  INFO(run.out, run.err);
  CHECK(run.exit_code == 0);
  return OneLine(run).find(text) == std::string::npos;
}

TEST_CASE("the memory of the machine itself is measured, and that of no other") {
  CHECK(Says(RunWith("FAKE_GPUS=1"), "Host memory of this machine: "));
  CHECK(Says(RunWith("FAKE_GPUS=1"), "measured now"));
  CHECK(IsSilent(RunWith("FAKE_GPUS=1", kSmallEstimate + " --hw rtx4090"), "measured now"));
  CHECK(IsSilent(RunWith("FAKE_GPUS=0"), "measured now"));
  CHECK(IsSilent(
      RunWith("FAKE_GPUS=1", "config check " + SourcePath("examples/byte_gpt/") + "ds_config.json"),
      "measured now"));
}

TEST_CASE("guessed rates are named where a choice waits for them, and only there") {
  const std::string offload =
      "estimate --explain --model gpt2 --seq-len 64 --stage 2 --offload-optimizer cpu --hw rtx4090";
  CHECK(Says(RunWith("", offload), "Guessed, not measured: host.adam_bandwidth 57.6 GB/s"));
  CHECK(IsSilent(RunWith("", kSmallEstimate + " --hw rtx4090"), "Guessed"));
  CHECK(Says(
      RunWith("",
              "plan --explain --model gpt2 --seq-len 64 --global-batch 8 --micro-batch 8 --stage 2 "
              "--offload-optimizer cpu --hw rtx4090"),
      "Guessed, not measured: host.adam_bandwidth"));
}

TEST_CASE("what hw measure kept of this machine is used without --hw, until the machine changes") {
  setenv("ZEROPLAN_CACHE_DIR", CacheOfTest().c_str(), 1);
  const std::string file = KeptProfileFile(2);
  unsetenv("ZEROPLAN_CACHE_DIR");
  const DetectedGpu gpu = {"NVIDIA GeForce RTX 4090", 24564.0 * 1024 * 1024};
  KeepProfile(file, {{gpu, gpu}, "580.82.07", QueryHost().cores}, ProfileText("2x-rtx4090"),
              "2026-11-20");
  const RunResult kept = RunWith("FAKE_GPUS=2");
  CHECK(Says(kept, "as 'hw measure' kept it on 2026-11-20"));
  CHECK(Says(kept, "--gpus 2"));
  CHECK(IsSilent(kept, "measured now"));
  const RunResult planned = RunWith(
      "FAKE_GPUS=2",
      "plan --explain --model gpt2 --seq-len 64 --global-batch 8 --micro-batch 4 --stage 1");
  CHECK(Says(planned, "as 'hw measure' kept it"));
  // Another driver, another kind of GPU; another number has a file of its own, or none.
  CHECK(Says(RunWith("FAKE_GPUS=2 FAKE_DRIVER=590.1"), "driver was 580.82.07 then, and 590.1 now"));
  CHECK(Says(RunWith("FAKE_GPUS=2 FAKE_DRIVER=590.1"), "To measure again: zeroplan hw measure"));
  CHECK(Says(RunWith("FAKE_GPUS=2 FAKE_DRIVER=590.1"), "--hw 2x-rtx4090 (this machine"));
  CHECK(Says(RunWith("FAKE_GPUS=3"), "--hw 3x-rtx4090"));
  CHECK(IsSilent(RunWith("FAKE_GPUS=2", kSmallEstimate + " --hw 2x-rtx4090"), "kept"));
  std::filesystem::remove_all(CacheOfTest());
}

}  // namespace
}  // namespace zeroplan
