// Bad input ends with exit code 2 and names option, value and what is allowed.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

struct BadInput {
  const char* arguments;
  std::vector<const char*> said;
};

TEST_CASE("bad input") {
  const std::vector<BadInput> inputs = {
      {"estimat --model gpt2", {"estimate"}},
      {"estimate", {"--model", "--params"}},
      {"estimate --model gpt2 --params 1B", {"--model", "--params"}},
      {"estimate --model gpt2-xxl", {"gpt2-xl"}},
      {"estimate --params ten", {"--params", "ten"}},
      {"estimate --params -5", {"--params", "-5"}},
      {"estimate --params 10", {"--params"}},
      {"estimate --model gpt2 --gpus 0",
       {"--gpus: 0 is not allowed; use a whole number from 1 to 1000000"}},
      {"estimate --model gpt2 --gpus -1", {"--gpus", "-1"}},
      {"estimate --model gpt2 --gpus 1.5", {"--gpus", "1.5"}},
      {"estimate --model gpt2 --gpus 1e30", {"--gpus", "1e30"}},
      {"estimate --model gpt2 --gpus 2000000", {"--gpus", "2000000", "1000000"}},
      {"estimate --model gpt2 --gpus nan", {"--gpus", "nan"}},
      {"estimate --model gpt2 --gpus 12", {"--gpus", "12", "--gpus-per-node"}},
      {"estimate --model gpt2 --gpus 4 --gpus 8", {"--gpus: is given 2 times; give it once"}},
      {"plan --model gpt2 --data ''", {"--data: the value is empty; give one"}},
      {"estimate --model gpt2 --gpu 4", {"--gpus"}},
      {"plam", {"plam: is no command of 'zeroplan'; did you mean plan?"}},
      {"hw lst", {"lst: is no command of 'zeroplan hw'; did you mean list?"}},
      {"plam --help", {"plam: is no command of 'zeroplan'; did you mean plan?"}},
      {"help plam", {"plam: is no command of 'zeroplan'; did you mean plan?"}},
      {"help hw lst", {"lst: is no command of 'zeroplan hw'"}},
      {"plan --modle gpt2", {"--modle: is no option of 'zeroplan plan'; did you mean --model?"}},
      {"plan --model gpt2 --gpus 2 3", {"3: is not allowed beside --model gpt2"}},
      {"plan gpt2 --gpus 2 3", {"3: was not expected"}},
      {"model show ./none", {"model './none' is neither a preset", "use gpt2, "}},
      {"generate gpt2", {"gpt2: there is no such folder", "safetensors"}},
      {"checkpoint verify none", {"none: there is no such folder"}},
      {"checkpoint list " __FILE__, {"there is no such folder"}},
      {"estimate --model gpt2 --gpu-memory lots", {"--gpu-memory", "lots"}},
      // A unit that was left out.
      {"estimate --model gpt2 --gpu-memory 80", {"--gpu-memory: 80 is 80 bytes", "mean 80GB?"}},
      {"plan --model gpt2 --gpu-memory 81920", {"--gpu-memory", "did you mean 81920MiB?"}},
      {"plan --model gpt2 --host-memory 512", {"--host-memory", "did you mean 512GB?"}},
      {"plan --model gpt2 --nvme-capacity 2KB", {"--nvme-capacity: 2KB is 2000 bytes"}},
      {"train --model gpt2 --data . --gpu-memory 24", {"--gpu-memory", "did you mean 24GB?"}},
      // Tokens where sequences are asked for.
      {"plan --model gpt2 --gpus 8 --global-batch 4M",
       {"--global-batch: 4M sequences of 1024 tokens are 4.10B tokens a step",
        "did you mean --global-batch-tokens 4M?", "--global-batch-tokens 4096000000"}},
      {"estimate --model gpt2 --gpus 8 --global-batch 4M", {"--global-batch-tokens 4M?"}},
      {"estimate --model gpt2 --gpus 8 --global-batch-tokens 100",
       {"--global-batch-tokens: 100", "use 8192"}},
      {"estimate --model gpt2 --micro-batch 3 --global-batch-tokens 1024",
       {"1024 tokens x --gpus 1 x --micro-batch 3", "use 3072"}},
      {"plan --model gpt2 --global-batch 8 --global-batch-tokens 8192",
       {"--global-batch 8 and --global-batch-tokens 8192", "leave one out"}},
      {"estimate --model gpt2 --hw h200-141gb-smx", {"did you mean h200-141gb-sxm?"}},
      {"estimate --model gpt2 --hw ./none.json", {"--hw", "none.json"}},
      {"estimate --model gpt2 --hw rtx4090 --gpus 9", {"9 nodes", "has no network"}},
      {"estimate --model gpt2 --hw rtx4090 --gpus 2 --gpus-per-node 1",
       {"--network", "--gpus-per-node", "for one node use --hw 2x-rtx4090; else add --network"}},
      {"estimate --model gpt2 --network ib-500", {"--network", "ib-500", "ib-400"}},
      {"estimate --model gpt2 --network 25",
       {"--network: 25 without a unit is bytes a second", "Gb/s", "such as 25Gb"}},
      {"estimate --model gpt2 --network 0Gb", {"--network", "0Gb"}},
      {"estimate --model gpt2 --network 9x", {"--network", "9x"}},
      {"estimate --model gpt2 --network 9000x400Gb", {"--network", "9000x400Gb"}},
      {"estimate --model gpt2 --intra-node-bandwidth fast", {"--intra-node-bandwidth", "fast"}},
      {"estimate --model gpt2 --intra-node-bandwidth 1Kb/s", {"--intra-node-bandwidth", "1Kb/s"}},
      {"estimate --model gpt2 --seq-len 2048", {"--seq-len", "2048", "1024"}},
      {"estimate --model gpt2 --micro-batch 2147483647", {"--micro-batch", "2147483647", "65536"}},
      {"estimate --model gpt2 --stage 4", {"--stage", "4", "0, 1, 2, 3, all"}},
      {"estimate --model gpt2 --stage ''", {"--stage"}},
      {"estimate --model gpt2 --stage 0 --offload-optimizer cpu", {"offload_optimizer", "stage 0"}},
      {"estimate --model gpt2 --stage 2 --offload-param cpu", {"offload_param", "stage 2"}},
      {"estimate --model gpt2 --offload-optimizer gpu", {"--offload-optimizer", "gpu", "nvme"}},
      {"estimate --model gpt2 --offload-optimizer none,gpu", {"--offload-optimizer: gpu"}},
      {"estimate --model gpt2 --offload-param cpu,cpu", {"--offload-param: cpu,cpu has cpu twice"}},
      {"plan --model gpt2 --offload-optimizer none,nvme --offload-ratio 0.5",
       {"--offload-ratio: 0.5 has no effect with --offload-optimizer none,nvme"}},
      {"estimate --model gpt2 --offload-ratio 1.5", {"--offload-ratio", "1.5"}},
      {"estimate --model gpt2 --offload-ratio nan", {"--offload-ratio", "nan"}},
      {"estimate --model gpt2 --stage 1 --offload-optimizer nvme --offload-ratio 0.5", {"ratio"}},
      {"estimate --model gpt2 --checkpointing some", {"--checkpointing", "some", "full"}},
      {"estimate --model gpt2 --checkpointing none --checkpoint-every 2", {"--checkpoint-every"}},
      {"plan --model gpt2 --checkpointing selective --checkpoint-every 2",
       {"--checkpoint-every: 2", "--checkpointing selective"}},
      {"plan --model gpt2 --checkpointing selective --out ds.json",
       {"--out", "DeepSpeed cannot do what is asked for: selective recompute", "--plan-out"}},
      {"estimate --model gpt2 --global-batch 10 --micro-batch 4",
       {"--global-batch", "10", "8 or 12"}},
      {"estimate --model gpt2 --global-batch 10 --micro-batch 4 --grad-accum 2", {"10", "8"}},
      {"estimate --model gpt2 --dtype int8", {"--dtype", "int8", "bf16"}},
      {"estimate --model gpt2 --grad-accum-dtype fp16",
       {"--grad-accum-dtype: fp16 is not allowed with bf16 parameters; use bf16 or fp32"}},
      {"train --model gpt2 --data x --dtype fp32 --grad-accum-dtype bf16",
       {"--grad-accum-dtype: bf16 is not allowed with fp32 parameters; use fp32"}},
      {"plan --model gpt2 --gpus 2 --communication-dtype fp16",
       {"--communication-dtype: fp16 is not allowed with bf16 gradients; use bf16 or fp32"}},
      {"plan --model gpt2 --gpus 2 --grad-accum-dtype fp32 --communication-dtype bf16",
       {"--communication-dtype: bf16 is not allowed with --grad-accum-dtype fp32", "leave it out"}},
      {"estimate --model gpt2 --format yaml", {"--format", "yaml", "json"}},
      {"plan --model gpt2 --gpu-reserve 1", {"--gpu-reserve: 1 is 1 byte", "1GB?"}},
      {"train --model gpt2 --data . --backend cpu --gpu-reserve 1GB",
       {"--gpu-reserve: 1GB has no effect on the CPU"}},
      {"plan --model gpt2 --tokens 300", {"--tokens: 300 is less than one sequence", "300B"}},
      {"plan --model gpt2 --gpu-hour-price 2.5", {"--gpu-hour-price: 2.5", "--tokens 300B"}},
      {"estimate --model gpt2 --tokens 1B --gpu-hour-price USD2", {"--gpu-hour-price: USD2"}},
      {"estimate --model gpt2 --config /nowhere.json", {"/nowhere.json"}},
      // Files that cannot be written are found before the work.
      {"estimate --model gpt2 -o /no/such/e.json", {"--out: /no/such/e.json", "no folder"}},
      {"plan --model gpt2 --out /no/such/d.json", {"--out: /no/such/d.json", "no folder /no/such"}},
      {"plan --model gpt2 --plan-out /tmp", {"--plan-out: /tmp", "is a folder"}},
      {"plan --model gpt2 --trace /no/such/t.json", {"--trace: /no/such/t.json"}},
      {"plan --model gpt2 --out same.json --plan-out same.json",
       {"--plan-out: same.json is also what --out writes"}},
      {"estimate --model gpt2 stray", {"stray"}},
      {"model", {"subcommand"}},
      {"model show gpt5", {"gpt5"}},
      {"hw show nothing", {"nothing"}},
      {"data tokenize -o x.bin", {"texts"}},
      {"train --model gpt2 --data . --gpus ''", {"--gpus", "empty"}},
      // What a file decides is refused before its value is looked at.
      {"estimate --model gpt2 --config c.json --stage 9",
       {"--stage: 9 is not allowed with --config"}},
      {"train --data . --plan p.json --config c.json", {"--config: c.json", "with --plan"}},
      {"train --model gpt2 --data . --config c.json --lr 1e-4", {"--lr: 1e-4", "with --config"}},
  };
  for (const BadInput& input : inputs) {
    const RunResult run = RunZeroplan(input.arguments);
    INFO(std::string(input.arguments), "\n", run.err, run.out);
    CHECK(run.exit_code == 2);
    CHECK(run.out.empty());
    for (const char* word : input.said) CHECK(run.err.find(word) != std::string::npos);
    CHECK(run.err.find("bug") == std::string::npos);
  }
}

TEST_CASE("version and help") {
  const RunResult version = RunZeroplan("--version");
  CHECK(version.exit_code == 0);
  CHECK(version.out.starts_with("zeroplan "));
  for (const char* what : {"\ncommit    ", "\nbuilt by  ", "\nexecutor  CPU"}) {
    CHECK(version.out.find(what) != std::string::npos);
  }
  // Of a checkout it is the commit that was built.
  const std::string head = ReadWhole(SourcePath(".git/HEAD"));
  if (!head.empty()) CHECK(version.out.find("commit    unknown") == std::string::npos);
  for (const char* command :
       {"", "estimate ", "plan ", "explain ", "model ", "model show ", "hw ", "hw show ",
        "hw measure ", "hw check ", "config check ", "train ", "generate ", "data tokenize "}) {
    CAPTURE(command);
    const RunResult run = RunZeroplan(std::string(command) + "--help");
    CHECK(run.exit_code == 0);
    CHECK(run.err.empty());
    CHECK(run.out.find("Usage:") != std::string::npos);
    for (size_t begin = 0, end; begin < run.out.size(); begin = end + 1) {
      end = std::min(run.out.find('\n', begin), run.out.size());
      CHECK(end - begin <= 100);
    }
  }
  const std::string help = RunZeroplan("estimate --help").out;
  for (const char* option : {"--model",
                             "--params",
                             "--gpus",
                             "--gpus-per-node",
                             "--hw",
                             "--network",
                             "--intra-node-bandwidth",
                             "--gpu-memory",
                             "--seq-len",
                             "--micro-batch",
                             "--global-batch",
                             "--grad-accum",
                             "--stage",
                             "--offload-optimizer",
                             "--offload-ratio",
                             "--offload-param",
                             "--checkpointing",
                             "--checkpoint-every",
                             "--config",
                             "--dtype",
                             "--grad-accum-dtype",
                             "--communication-dtype",
                             "--format",
                             "-o",
                             "Examples:"}) {
    CHECK(help.find(option) != std::string::npos);
  }
}

// A folder with a copy of zeroplan, and what else a test puts there.
class Programs {
 public:
  Programs() { std::filesystem::copy_file(BinaryPath("zeroplan"), folder_.path("zeroplan")); }
  const std::string& folder() const { return folder_.path(); }

 private:
  TempDir folder_;
};

TEST_CASE("zeroplan names the executor's commands as zeroplan-executor does") {
  for (const char* help : {"--help", "hw --help"}) {
    CAPTURE(help);
    const RunResult zeroplan = RunZeroplan(help);
    const RunResult executor = RunProgram("zeroplan-executor", help);
    CHECK(executor.exit_code == 0);
    CHECK(zeroplan.out == executor.out);
  }
  // Those that plan are the same in both.
  CHECK(RunZeroplan("estimate --model gpt2 --stage 0").out ==
        RunProgram("zeroplan-executor", "estimate --model gpt2 --stage 0").out);
}

TEST_CASE("zeroplan becomes the program beside it, with its arguments, stdin and exit code") {
  const Programs programs;
  const std::string echo = programs.folder() + "/zeroplan-executor";
  std::ofstream(echo) << "#!/bin/sh\nprintf '[%s]' \"$@\"; cat; echo $$; exit 5\n";
  std::filesystem::permissions(echo, std::filesystem::perms::owner_all);
  for (const std::string command :
       {"train --plan 'a b' ''", "generate x", "checkpoint show t", "hw measure -o x"}) {
    CAPTURE(command);
    const std::string file = programs.folder() + "/out";
    // $! is the process that was started: the same that answers.
    const std::string line = "cd /; echo piped | " + programs.folder() + "/zeroplan " + command +
                             " >" + file + " & wait $!; echo $? $! >>" + file;
    REQUIRE(system(line.c_str()) == 0);
    const std::string out = ReadWhole(file);
    CAPTURE(out);
    const size_t begin = out.find("piped\n");
    REQUIRE(begin != std::string::npos);
    CHECK(out.starts_with("["));
    const std::string process = out.substr(begin + 6, out.find('\n', begin + 6) - begin - 6);
    CHECK(out.ends_with("\n5 " + process + "\n"));
  }
}

TEST_CASE("zeroplan without the program beside it says what is missing; planning goes on") {
  const Programs programs;
  const std::string program = programs.folder() + "/zeroplan";
  const std::string err = programs.folder() + "/err";
  for (const std::string command : {"train --model gpt2 --data x", "hw measure"}) {
    const int status = system((program + " " + command + " 2>" + err).c_str());
    CHECK(WEXITSTATUS(status) == 4);
    const std::string said = ReadWhole(err);
    CAPTURE(said);
    CHECK(said.find("there is no " + program + "-executor") != std::string::npos);
    CHECK(said.find("scripts/build.sh release zeroplan_executor_program") != std::string::npos);
  }
  CHECK(system((program + " model list >" + err).c_str()) == 0);
}

TEST_CASE("model and hw") {
  const RunResult list = RunZeroplan("model list");
  CHECK(list.exit_code == 0);
  for (const char* name : {"gpt2 ", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-1.3b",
                           "gpt3-2.7b", "gpt3-6.7b", "gpt3-13b", "gpt2-10b", "llama3.1-8b",
                           "mistral-7b-v0.3", "qwen2.5-7b", "qwen3-8b", "smollm2-135m"}) {
    CHECK(list.out.find(name) != std::string::npos);
  }
  const RunResult show = RunZeroplan("model show gpt2");
  CHECK(show.out.find("124475904") != std::string::npos);  // 124,439,808 + 47 rows of 768
  const std::string machines = RunZeroplan("hw list").out;
  for (const char* text :
       {"\nSingle cards: Ada\n", "\nMachines of several\n", "\nWhat clouds rent out\n",
        "hgx-h200 *", "dgx-2 ", "rtx4090", "nvlink 450 GB/s", "eth-25"}) {
    CHECK(machines.find(text) != std::string::npos);
  }

  // What `hw show` prints is a profile that loads.
  const std::string file = "/tmp/zeroplan_cli_hw_" + std::to_string(getpid()) + ".json";
  CHECK(RunZeroplan("hw show hgx-h200 --format json >" + file).exit_code == 0);
  CHECK(RunZeroplan("estimate --model gpt2 --seq-len 64 --stage 0 --hw " + file).exit_code == 0);
  std::filesystem::remove(file);
  CHECK(RunZeroplan("hw show ib-400").out.find("bandwidth_per_node") != std::string::npos);
}

TEST_CASE("model and hw as data") {
  using Json = nlohmann::json;
  const Json models = Json::parse(RunZeroplan("model list --format json").out);
  CHECK(models["schema"] == "zeroplan.models/1");
  CHECK(models["models"].size() >= 9);
  CHECK(models["models"][0]["name"] == "gpt2");
  CHECK(models["models"][0]["params"] == 124'475'904);
  const Json model = Json::parse(RunZeroplan("model show gpt2 --format json").out);
  CHECK(model["schema"] == "zeroplan.model/1");
  CHECK(model["unpadded_params"] == 124'439'808);
  uint64_t elements = 0;
  for (const Json& tensor : model["tensors"]) {
    elements += tensor["elements"].get<uint64_t>();
    uint64_t product = 1;
    for (const Json& size : tensor["shape"]) product *= size.get<uint64_t>();
    CHECK(product == tensor["elements"]);
  }
  CHECK(elements == model["params"]);
  const Json hardware = Json::parse(RunZeroplan("hw list --format json").out);
  CHECK(hardware["schema"] == "zeroplan.hardware/1");
  CHECK(hardware["default"] == "hgx-h200");
  bool seen = false;
  for (const Json& profile : hardware["profiles"]) {
    if (profile["name"] != "dgx-2") continue;
    seen = true;
    CHECK(profile["gpus"] == 16);
    CHECK(profile["link"] == "nvlink");
    CHECK(profile["gpu_memory_bytes"].get<uint64_t>() > 30'000'000'000);
  }
  CHECK(seen);
  const RunResult show = RunZeroplan("hw show hgx-h200 --format json");
  CHECK(show.exit_code == 0);
  CHECK(Json::parse(show.out)["name"] == "hgx-h200");
  // For people: figure, value, unit and source.
  const std::string table = RunZeroplan("hw show hgx-h200").out;
  CHECK(table.starts_with("FIGURE "));
  CHECK(table.find("gpu.memory  ") != std::string::npos);
  CHECK(table.find("141  GB       datasheet: ") != std::string::npos);
  CHECK(RunZeroplan("hw show hgx-h200 --format text").out == table);
  CHECK(RunZeroplan("hw list --format yaml").exit_code == 2);
}

TEST_CASE("what was taken for the hardware is said") {
  const std::string small = " --model gpt2 --seq-len 64 --stage 0 --offload-optimizer none";
  CHECK(RunZeroplan("estimate --explain" + small).out.find("--hw hgx-h200") != std::string::npos);
  // Several nodes of one GPU, with a network from the command line.
  CHECK(RunZeroplan("estimate --explain --hw rtx4090 --gpus 2 --network 25Gb" + small).exit_code ==
        0);
  CHECK(
      RunZeroplan("estimate --explain --hw rtx4090 --gpus 2 --gpus-per-node 2" + small).exit_code ==
      0);
  CHECK(RunZeroplan("estimate --explain --intra-node-bandwidth 50GB/s" + small).exit_code == 0);
}

TEST_CASE("a full disk is a failure, not silence") {
  if (!std::filesystem::exists("/dev/full")) return;
  CHECK(RunZeroplan("model list >/dev/full").exit_code == 4);
}

TEST_CASE("a file that was there stays whole where the new one cannot be written") {
  const std::string folder = "/tmp/zeroplan_cli_output_" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  const std::string file = folder + "/profile.json", victim = folder + "/victim";
  const std::string old = "zeroplan.estimate/ of before";
  std::ofstream(file) << old;
  std::ofstream(victim) << "not mine";
  std::filesystem::create_symlink(victim, folder + "/.profile.json.tmp");
  const std::string show = "ZEROPLAN_NO_DETECT=1 " + BinaryPath("zeroplan") +
                           " estimate --model gpt2 --format json -o " + file;
  // Files of at most a block: a disk that is full.
  const std::string full = "sh -c \"trap '' XFSZ; ulimit -f 1; " + show + "\" 2>/dev/null";
  CHECK(WEXITSTATUS(system(full.c_str())) == 4);
  CHECK(ReadWhole(file) == old);
  CHECK(WEXITSTATUS(system(show.c_str())) == 0);
  CHECK(nlohmann::json::parse(ReadWhole(file))["schema"] == "zeroplan.estimate/1");
  CHECK(ReadWhole(victim) == "not mine");
  // What a link leads to is what is written, with the rights that it had.
  const std::string link = folder + "/link.json";
  std::filesystem::permissions(
      file, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::filesystem::create_symlink(file, link);
  CHECK(RunZeroplan("estimate --model gpt2 -o " + link).exit_code == 0);
  CHECK(std::filesystem::is_symlink(link));
  CHECK(ReadWhole(file).find("gpt2") != std::string::npos);
  CHECK((std::filesystem::status(file).permissions() & std::filesystem::perms::others_read) ==
        std::filesystem::perms::none);
  CHECK(RunZeroplan("estimate --model gpt2 -o /dev/stdout | head -1").out.size() > 10);
  std::filesystem::remove_all(folder);
}

TEST_CASE("data tokenize") {
  const std::string stem = "/tmp/zeroplan_cli_data_" + std::to_string(getpid());
  std::ofstream(stem + ".txt") << "abc";
  const RunResult run = RunZeroplan("data tokenize " + stem + ".txt -o " + stem + ".bin");
  INFO(run.err);
  CHECK(run.exit_code == 0);
  CHECK(std::filesystem::file_size(stem + ".bin") == 1024 + 3 * 2);
  std::filesystem::remove(stem + ".txt");
  std::filesystem::remove(stem + ".bin");
}

TEST_CASE("--global-batch-tokens: the nearest whole number of sequences is taken, and said") {
  for (const std::string command : {"plan", "estimate"}) {
    CAPTURE(command);
    const RunResult run = RunZeroplan(
        command + " --model gpt2 --gpus 8 --hw dgx-h100 --stage 1 --global-batch-tokens 4M" +
        (command == "estimate" ? " --micro-batch 8" : ""));
    CAPTURE(run.err);
    CHECK(run.exit_code == 0);
    CHECK(Has(Unwrapped(run.out), wording::kBatchSequencesOfTokensNearest));
  }
}

}  // namespace
}  // namespace zeroplan
