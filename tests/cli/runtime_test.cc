// estimate --runtime, run as a user runs it.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/run_binary.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

std::string Refused(const std::string& arguments) {
  const RunResult run = RunZeroplan("estimate --model gpt2 " + arguments);
  CHECK(run.exit_code == 2);
  CHECK(run.out.empty());
  return run.err;
}

std::string WriteConfigFile(const std::string& text) {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("zeroplan_rt_" + std::to_string(getpid()) + ".json"))
                               .string();
  std::ofstream(path) << text;
  return path;
}

TEST_CASE("estimate --runtime deepspeed: the tutorial's 10B on 32 GB, and what does fit") {
  const RunResult run = RunZeroplan(
      "estimate --runtime deepspeed --model gpt2-10b --seq-len 1024 --micro-batch 10 "
      "--checkpointing full --gpu-memory 32GB --host-memory 600GB --format json");
  REQUIRE(run.exit_code == 0);
  const Json report = Json::parse(run.out);
  CHECK(report["schema"] == "zeroplan.estimate/1");
  CHECK(report["runtime"] == "deepspeed 0.19.6");
  int fits = 0;
  for (const Json& choice : report["choices"]) {
    double sum_of_parts = 0;
    for (const auto& [name, seconds] : choice["step_parts"].items()) {
      CHECK(seconds.get<double>() >= 0);
      sum_of_parts += seconds.get<double>();
    }
    const double step = choice["step_seconds"]["total"];
    CHECK(step > 0);
    CHECK(sum_of_parts == doctest::Approx(step));
    CHECK(choice["tokens_per_second_of_gpu"].get<double>() == doctest::Approx(10 * 1024 / step));
    CHECK(choice["fits"].get<bool>() == choice["why_not"].is_null());
    const Json& gpu = choice["gpu_bytes"];
    for (const auto& [phase, peak] : gpu["phases"].items()) {
      uint64_t sum = 0;
      for (const auto& [name, bytes] : peak["classes"].items()) sum += bytes.get<uint64_t>();
      CHECK(sum == peak["allocated"].get<uint64_t>());
    }
    CHECK(gpu["total"].get<uint64_t>() ==
          gpu["reserved"].get<uint64_t>() + gpu["context"].get<uint64_t>());
    if (choice["stage"] == 2 && choice["offload_optimizer"] == "cpu") {
      const std::string why = choice["why_not"];
      CHECK(why.find("out of memory in initialisation") != std::string::npos);
      CHECK(why.find("parameters beside a copy of them") != std::string::npos);
    }
    if (!choice["fits"].get<bool>()) continue;
    ++fits;
    CHECK(choice["stage"] == 3);
    CHECK(choice["offload_optimizer"] == "cpu");
    CHECK(choice["offload_param"] == "cpu");
  }
  CHECK(fits == 1);
}

TEST_CASE("estimate --runtime deepspeed: one choice for people") {
  const RunResult run = RunZeroplan(
      "estimate --explain --runtime deepspeed --model gpt2 --gpus 2 --stage 2 "
      "--offload-optimizer none --micro-batch 4 --compile layers");
  REQUIRE(run.exit_code == 0);
  for (const char* part : {"gpt2 under deepspeed 0.19.6, layers compiled", "logits",
                           "forward_backward", "tok/s", "Step, ", "step times, with"}) {
    CAPTURE(part);
    CHECK(run.out.find(part) != std::string::npos);
  }
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
}

TEST_CASE("estimate --runtime deepspeed --config takes the config's keys") {
  const std::string path = WriteConfigFile(
      R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
          "bf16": {"enabled": true},
          "zero_optimization": {"stage": 2, "reduce_bucket_size": 20000000, "overlap_comm": true}})");
  const RunResult run = RunZeroplan(
      "estimate --runtime deepspeed --model gpt2 --gpus 2 --format json --config " + path);
  REQUIRE(run.exit_code == 0);
  const Json choice = Json::parse(run.out)["choices"][0];
  CHECK(choice["settings"]["reduce_bucket"] == 20'000'000);
  CHECK(choice["settings"]["overlap_comm"] == true);
  CHECK(choice["micro_batch"] == 4);
  CHECK(choice["grad_accum"] == 2);
  std::ofstream(path) << R"({"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true},
    "zero_optimization": {"stage": 2,
      "round_robin_gradients": true}})";
  const std::string refused = Refused("--runtime deepspeed --config " + path);
  CHECK(refused.find(":3: zero_optimization.round_robin_gradients: true") != std::string::npos);
  std::filesystem::remove(path);
}

TEST_CASE("estimate --runtime deepspeed: \"auto\" is what transformers' Trainer makes of it") {
  const auto estimate = [](const std::string& stage, const std::string& reduce,
                           const std::string& prefetch, const std::string& persistence) {
    const std::string path = WriteConfigFile(
        R"({"bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto",
            "zero_optimization": {"stage": )" +
        stage + R"(, "reduce_bucket_size": )" + reduce + R"(, "stage3_prefetch_bucket_size": )" +
        prefetch + R"(, "stage3_param_persistence_threshold": )" + persistence + "}}");
    const RunResult run = RunZeroplan(
        "estimate --runtime deepspeed --model gpt2 --gpus 2 --format json --config " + path);
    std::filesystem::remove(path);
    REQUIRE(run.exit_code == 0);
    return std::pair(Json::parse(run.out)["choices"][0], run.err);
  };
  const std::string open = "\"auto\"";
  const auto [left, said] = estimate("3", open, open, open);  // 768 channels
  const auto [given, silent] = estimate("3", "589824", "530841", "7680");
  CHECK(left["settings"]["reduce_bucket"] == 589'824);
  CHECK(left["settings"] == given["settings"]);
  CHECK(left["gpu_bytes"] == given["gpu_bytes"]);
  CHECK(said.find("reduce_bucket_size 589824, stage3_prefetch_bucket_size 530841, "
                  "stage3_param_persistence_threshold 7680.") != std::string::npos);
  CHECK(silent.find("Trainer") == std::string::npos);
  CHECK(estimate("2", open, open, open).second.find("reduce_bucket_size 589824.") !=
        std::string::npos);
}

TEST_CASE("estimate --runtime deepspeed: sequences over GPUs and MLPs by tiles") {
  const auto write = [](const std::string& more) {
    return WriteConfigFile(R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
      "zero_optimization": {"stage": 3}, "activation_checkpointing": {"number_checkpoints": 16},
      "sequence_parallel_size": 8)" +
                           more + "}");
  };
  std::string path = write("");
  const std::string with = "--model llama3.2-1b --gpus 8 --seq-len 131072 --code liger --config ";
  const std::string refused = RunZeroplan("estimate --runtime deepspeed " + with + path).err;
  CHECK(refused.find(":3: seq_parallel_communication_data_type is not given") != std::string::npos);
  std::filesystem::remove(path);
  path = write(R"(, "seq_parallel_communication_data_type": "bf16")");
  const auto choice = [&](const std::string& more) {
    const RunResult run =
        RunZeroplan("estimate --runtime deepspeed --format json " + more + with + path);
    REQUIRE(run.exit_code == 0);
    return Json::parse(run.out)["choices"][0];
  };
  const Json whole = choice(""), tiled = choice("--tiled-mlp ");
  CHECK(whole["fits"] == true);
  CHECK(tiled["gpu_bytes"]["phases"]["forward_backward"]["allocated"] <
        whole["gpu_bytes"]["phases"]["forward_backward"]["allocated"]);
  // One sequence a step.
  const double seconds = whole["step_seconds"]["total"];
  CHECK(whole["tokens_per_second"].get<double>() * seconds == doctest::Approx(131072));
  std::filesystem::remove(path);
}

TEST_CASE("estimate --runtime fsdp2: with and without resharding, and with all on the CPU") {
  const RunResult run =
      RunZeroplan("estimate --runtime fsdp2 --model gpt2-xl --gpus 2 --compile all --format json");
  REQUIRE(run.exit_code == 0);
  const Json report = Json::parse(run.out);
  CHECK(report["compiled"]["loss"] == true);
  REQUIRE(report["choices"].size() == 3);
  const auto total = [&report](size_t choice) {
    return report["choices"][choice]["gpu_bytes"]["total"].get<uint64_t>();
  };
  CHECK(report["choices"][0]["stage"] == 2);
  CHECK(total(0) > total(1));
  CHECK(report["choices"][2]["offload_param"] == "cpu");
  CHECK(total(1) > total(2));
}

TEST_CASE("estimate --runtime fsdp2: a selective choice keeps to its columns") {
  const RunResult run = RunZeroplan(
      "estimate --runtime fsdp2 --model llama3.1-8b --seq-len 1024 --micro-batch 1 --gpus 8 "
      "--checkpointing selective --stage 3 --offload-optimizer none --offload-param none");
  REQUIRE(run.exit_code == 0);
  const size_t head = run.out.find("ZeRO opt"), row = run.out.find("\n3    none", head);
  REQUIRE(head != std::string::npos);
  REQUIRE(row != std::string::npos);
  const std::string titles = run.out.substr(head, run.out.find('\n', head) - head);
  const std::string cells = run.out.substr(row + 1, run.out.find('\n', row + 1) - row - 1);
  const size_t recompute = titles.find("recomp"), fits = titles.find("fits");
  REQUIRE(recompute != std::string::npos);
  CHECK(cells.substr(recompute, 7) == "select ");
  CHECK(cells.substr(fits) == " yes");
}

TEST_CASE("estimate --runtime: CSV, a page, and what a run would take") {
  for (const std::string runtime : {"deepspeed", "fsdp2"}) {
    CAPTURE(runtime);
    const std::string asked = "estimate --model gpt2 --gpus 2 --tokens 1B --runtime " + runtime;
    const RunResult csv = RunZeroplan(asked + " --format csv");
    REQUIRE(csv.exit_code == 0);
    std::istringstream lines(csv.out);
    std::string head, row;
    std::getline(lines, head);
    CHECK(head.starts_with("model,params,"));
    CHECK(Has(head, wording::kRuntimeRoomGpuBytesReserved));
    REQUIRE(std::getline(lines, row));
    CHECK(std::count(row.begin(), row.end(), ',') == std::count(head.begin(), head.end(), ','));
    const std::string page = (std::filesystem::temp_directory_path() /
                              ("zeroplan_rt_" + std::to_string(getpid()) + ".html"))
                                 .string();
    const RunResult table = RunZeroplan(asked + " --report " + page);
    REQUIRE(table.exit_code == 0);
    CHECK(table.out.find("Training on 1.00B tokens") != std::string::npos);
    CHECK(std::filesystem::file_size(page) > 10'000);
    std::filesystem::remove(page);
  }
}

TEST_CASE("estimate --runtime: what it does not know is refused by name") {
  CHECK(Refused("--runtime fsdp2 --stage 1").find("stage 1") != std::string::npos);
  CHECK(Refused("--runtime fsdp2 --config x.json").find("x.json: cannot be read") !=
        std::string::npos);
  CHECK(Refused("--runtime fsdp2 --grad-accum-dtype fp32").find("--grad-accum-dtype") !=
        std::string::npos);
  CHECK(Refused("--runtime fsdp2 --stage 3 --offload-optimizer cpu --offload-param none")
            .find("CPUOffloadPolicy") != std::string::npos);
  CHECK(Refused("--runtime deepspeeed").find("deepspeed") != std::string::npos);
  CHECK(Refused("--compile layers").find("--runtime deepspeed") != std::string::npos);
  CHECK(Refused("--runtime deepspeed --dtype fp32").find("--dtype") != std::string::npos);
  CHECK(Refused("--runtime deepspeed --deterministic").find("--deterministic") !=
        std::string::npos);
  CHECK(Refused("--runtime deepspeed --trace t.json").find("--trace") != std::string::npos);
  CHECK(Refused("--runtime deepspeed --stage 2 --offload-optimizer nvme").find("stage 3 alone") !=
        std::string::npos);
  CHECK(Refused("--runtime deepspeed --checkpointing selective").find("--checkpointing") !=
        std::string::npos);
  CHECK(Refused("--runtime deepspeed --hw v100-32gb-sxm3 --attn flash")
            .find("no FlashAttention, which starts at compute capability 8.0; use sdpa or eager") !=
        std::string::npos);
}

}  // namespace
}  // namespace zeroplan
