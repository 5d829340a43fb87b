// zeroplan config check, as a user runs it.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

class ConfigFile {
 public:
  explicit ConfigFile(const char* text) { std::ofstream(path()) << text; }
  std::string path() const { return folder_.path("config.json"); }

 private:
  TempDir folder_;
};

TEST_CASE("config check: warnings and effective values") {
  const ConfigFile file(
      "train_batch_size: 32\n"
      "zero_optimization: {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": "
      "0.5}}\n"
      "my_run: second\n"
      "activation_checkpointing: {\"number_checkpoints\": 6}\n");
  const RunResult run = RunZeroplan("config check " + file.path() + " --gpus 8 --model gpt2");
  CHECK(run.exit_code == 0);
  CHECK(run.err.empty());
  CHECK(Has(run.out, "warning: " + file.path() + ":3: my_run: is not a known key"));
  CHECK(Has(run.out, "DeepSpeed itself does not: ratio 0.5 below stage 3"));
  CHECK(Has(run.out, "line 2\n"));
  CHECK(Has(run.out, "segments of 2 layers"));
  CHECK(Has(run.out, "no errors, 2 warnings, 8 GPUs"));
  const RunResult strict = RunZeroplan("config check " + file.path() + " --gpus 8 --strict");
  CHECK(strict.exit_code == 2);
  CHECK(Has(strict.err, ":3: my_run: is not a known key; remove it"));
}

TEST_CASE("config: a default that turns prefetch off is warned of, by all that read the config") {
  const ConfigFile file(
      "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true},\n"
      " \"zero_optimization\": {\"stage\": 3}}");
  const std::string warning =
      file.path() +
      ": zero_optimization.stage3_max_live_parameters: 1000000000 is less than two layers of this "
      "model (1711276032 parameters)";
  const std::string options = " --gpus 8 --model llama3.1-70b";
  const RunResult checked = RunZeroplan("config check " + file.path() + options);
  CHECK(checked.exit_code == 0);
  CHECK(Has(checked.out, "warning: " + warning));
  CHECK(Has(checked.out, "no errors, 1 warning, 8 GPUs"));
  const RunResult estimated =
      RunZeroplan("estimate --hw dgx-h100 --config " + file.path() + options);
  CHECK(Has(estimated.out + estimated.err, "1711276032"));  // wherever its lines break
  CHECK(Has(RunZeroplan("config check " + file.path() + " --gpus 8 --model llama3.1-8b").out,
            "no errors, 0 warnings, 8 GPUs"));
}

TEST_CASE("config check - reads stdin") {
  const ConfigFile file("{\"train_batch_size\": 32,\n \"zero_optimization\": {\"stage\": 2}}");
  const RunResult named = RunZeroplan("config check " + file.path() + " --gpus 8");
  const RunResult piped = RunZeroplan("config check - --gpus 8 <" + file.path());
  REQUIRE(named.exit_code == 0);
  CHECK(piped.exit_code == 0);
  CHECK(Has(piped.out, "stdin: no errors, "));
  CHECK(piped.out.substr(0, piped.out.find("stdin:")) ==
        named.out.substr(0, named.out.find(file.path())));
  const ConfigFile wrong("{\"zero_optimization\": {\"satge\": 2}}");
  const RunResult refused = RunZeroplan("config check - <" + wrong.path());
  CHECK(refused.exit_code == 2);
  CHECK(Has(refused.err, "stdin:1: zero_optimization.satge: is not a known key"));
}

TEST_CASE("config check: all errors, exit code 2") {
  const ConfigFile file(
      "{\"zero_optimization\": {\"satge\": 2},\n\"fp16\": {\"enabled\": \"maybe\"}}");
  const RunResult run = RunZeroplan("config check " + file.path());
  CHECK(run.exit_code == 2);
  CHECK(run.out.empty());
  CHECK(Has(run.err, ":1: zero_optimization.satge: is not a known key; did you mean 'stage'?"));
  CHECK(Has(run.err, ":2: fp16.enabled: \"maybe\" is not allowed"));
  CHECK(RunZeroplan("config check /no/such/file.json").exit_code == 2);
  CHECK(RunZeroplan("config check").exit_code == 2);
}

}  // namespace
}  // namespace zeroplan
