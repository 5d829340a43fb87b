// What is far beyond any machine: plan and estimate answer, or say what is too much, in bounded
// memory. No clock.
#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

// In an address space of so many KB.
RunResult InMemory(int kilobytes, const std::string& arguments) {
  return RunZeroplan(arguments,
                     "ulimit -v " + std::to_string(kilobytes) + "; ZEROPLAN_NO_DETECT=1");
}

std::string FileOf(const TempDir& dir, const std::string& name, const std::string& text) {
  const std::string path = dir.path() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

std::string ModelOf(int64_t layers, int64_t vocab, int64_t positions) {
  return R"({"model_type":"llama","hidden_size":4096,"intermediate_size":11008,)"
         R"("num_attention_heads":32,"rms_norm_eps":1e-5,"hidden_act":"silu","num_hidden_layers":)" +
         std::to_string(layers) + R"(,"vocab_size":)" + std::to_string(vocab) +
         R"(,"max_position_embeddings":)" + std::to_string(positions) + "}";
}

TEST_CASE("extremes: answered, or refused by name, in two gigabytes") {
  const TempDir dir;
  const std::string sub_group =
      FileOf(dir, "sub_group.json",
             R"({"bf16":{"enabled":true},"train_micro_batch_size_per_gpu":1,"zero_optimization":)"
             R"({"stage":3,"sub_group_size":1,"offload_optimizer":{"device":"cpu"}}})");
  const std::string buckets =
      FileOf(dir, "buckets.json",
             R"({"bf16":{"enabled":true},"train_micro_batch_size_per_gpu":1,"zero_optimization":)"
             R"({"stage":3,"reduce_bucket_size":1,"stage3_prefetch_bucket_size":1,)"
             R"("stage3_max_live_parameters":1,"stage3_param_persistence_threshold":0}})");
  const std::string deep = FileOf(dir, "deep.json", ModelOf(10'000, 32'000, 4096));
  const std::string wide = FileOf(dir, "wide.json", ModelOf(4, 1'000'000'000, 4096));
  const std::string longest = FileOf(dir, "long.json", ModelOf(4, 32'000, 100'000'000));
  const struct {
    std::string arguments;
    int exit_code;
    std::vector<std::string> said;
  } cases[] = {
      {"plan --params 1000T --gpus 8 --quick", 3, {"nothing fits"}},
      {"plan --params 200T --gpus 8 --quick --stage 3", 3, {"nothing fits"}},
      {"estimate --params 1000T --gpus 8 --stage 3 --offload-optimizer cpu,nvme", 0, {}},
      {"plan --params 7B --gpus 1000000 --quick", 0, {}},
      {"estimate --model llama3.1-405b --gpus 64 --config " + sub_group,
       2,
       {"sub_group.json: zero_optimization.sub_group_size: 1 is not allowed",
        "use 193526 or more"}},
      {"plan --model llama3.1-405b --gpus 64 --config " + sub_group, 2, {"sub_group_size: 1"}},
      {"estimate --model llama3.1-405b --gpus 64 --config " + buckets, 0, {}},
      {"estimate --model " + deep + " --gpus 8 --seq-len 128",
       2,
       {"num_hidden_layers: 10000", "from 1 to 2048"}},
      {"estimate --model " + wide + " --gpus 8 --seq-len 1024 --micro-batch 65",
       2,
       {"--micro-batch: 65 sequences", "at most 64 sequences"}},
      {"estimate --model " + wide + " --gpus 8 --seq-len 1024 --micro-batch 2 --stage 3", 0, {}},
      {"estimate --model " + longest + " --gpus 8 --seq-len 100000000",
       2,
       {"--seq-len: 100000000 is not allowed; use at most 67108864"}},
      {"plan --params 7B --gpus 1000000 --micro-batch 2000000000", 2, {"--micro-batch"}},
  };
  for (const auto& c : cases) {
    CAPTURE(c.arguments);
    const RunResult run = InMemory(2'000'000, c.arguments);
    CAPTURE(run.err);
    CHECK(run.exit_code == c.exit_code);
    for (const std::string& words : c.said) CHECK(Has(run.err, words));
  }
}

TEST_CASE("extremes: what the machine has no memory for ends with a message, not a kill") {
  const RunResult run = InMemory(120'000, "plan --params 200T --gpus 8 --quick");
  CAPTURE(run.err);
  CHECK(run.exit_code == 4);
  CHECK(Has(run.err, wording::kOutOfHostMemory));
}

}  // namespace
}  // namespace zeroplan
