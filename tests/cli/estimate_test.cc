// zeroplan estimate, run as a user runs it.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

Json EstimateJson(const std::string& arguments) {
  const RunResult run = RunZeroplan("estimate --format json " + arguments);
  INFO(arguments, "\n", run.err);
  REQUIRE(run.exit_code == 0);
  return Json::parse(run.out);
}

std::vector<std::string> Lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("json has the fields of zeroplan.estimate/1 and no others") {
  const Json report = EstimateJson("--model gpt2 --gpus 2 --seq-len 128");
  CHECK(report["schema"] == "zeroplan.estimate/1");
  auto keys = [](const Json& object) {
    std::vector<std::string> names;
    for (const auto& [key, value] : object.items()) names.push_back(key);
    return names;  // sorted: nlohmann::json is
  };
  CHECK(keys(report) == std::vector<std::string>{"choices", "cluster", "model", "schema"});
  CHECK(keys(report["model"]) == std::vector<std::string>{"heads", "hidden", "layers", "name",
                                                          "params", "seq_len", "vocab"});
  CHECK(keys(report["cluster"]) == std::vector<std::string>{"gpus", "gpus_per_node", "hw"});
  REQUIRE(report["choices"].size() == 16);  // stages 0 to 3: 1 + 3 + 3 + 9
  const std::vector<std::string> choice_keys = {"checkpoint_every",
                                                "checkpoint_layers",
                                                "checkpointing",
                                                "checkpointing_above",
                                                "choice",
                                                "comm_bytes_per_step",
                                                "communication_dtype",
                                                "dtype",
                                                "fits",
                                                "fp8_least_side",
                                                "fp8_recipe",
                                                "gpu_bytes",
                                                "gpus",
                                                "grad_accum",
                                                "grad_accum_dtype",
                                                "host_bytes",
                                                "master_weights",
                                                "matmul_dtype",
                                                "mfu",
                                                "micro_batch",
                                                "nvme_bytes",
                                                "offload_activation_layers",
                                                "offload_activations",
                                                "offload_optimizer",
                                                "offload_param",
                                                "offload_ratio",
                                                "optimizer_states",
                                                "pcie_bytes_per_step",
                                                "pin_memory",
                                                "sequence_ranks",
                                                "settings",
                                                "stage",
                                                "step_seconds",
                                                "tokens_per_second",
                                                "training",
                                                "why_not"};
  for (const Json& choice : report["choices"]) {
    CHECK(keys(choice) == choice_keys);
    CHECK(keys(choice["settings"]) == std::vector<std::string>{"across_groups", "overlap",
                                                               "persistence_threshold",
                                                               "prefetch_bucket", "reduce_bucket",
                                                               "reuse_distance", "shard_group"});
    CHECK(keys(choice["host_bytes"]) ==
          std::vector<std::string>{"capacity", "pageable", "pinned", "reserve", "total"});
    CHECK(keys(choice["step_seconds"]) == std::vector<std::string>{"compute", "exposed_comm",
                                                                   "exposed_offload", "optimizer",
                                                                   "total"});
    const Json& gpu = choice["gpu_bytes"];
    uint64_t sum = 0;
    for (const char* name : {"params", "grads", "optimizer", "activations", "buffers", "runtime"}) {
      sum += gpu[name].get<uint64_t>();
    }
    CHECK(sum == gpu["total"].get<uint64_t>());
    const Json& seconds = choice["step_seconds"];
    double parts = 0;
    for (const char* name : {"compute", "exposed_comm", "exposed_offload", "optimizer"}) {
      parts += seconds[name].get<double>();
    }
    const double total = seconds["total"];
    CHECK(total > 0);
    CHECK(parts == doctest::Approx(total));
    CHECK(choice["tokens_per_second"].get<double>() == doctest::Approx(2 * 128 / total));
    CHECK(choice["mfu"].get<double>() > 0);
    CHECK(choice["mfu"].get<double>() < 1);
    const bool waits = choice["offload_optimizer"] != "none" || choice["offload_param"] != "none";
    // Without offload only tokens and step state cross PCIe.
    const double exposed = seconds["exposed_offload"].get<double>() / total;
    CHECK((exposed > 0.1) == waits);
    CHECK((exposed < 0.01) == !waits);
    CHECK(choice["fits"] == true);
    CHECK(choice["why_not"].is_null());
  }
}

TEST_CASE("params derive a model, gpu-memory decides what fits") {
  const Json report = EstimateJson("--params 10B --gpus 1 --gpu-memory 32GB --stage 0");
  REQUIRE(report["choices"].size() == 1);
  const Json& choice = report["choices"][0];
  CHECK(choice["fits"] == false);
  CHECK(choice["gpu_bytes"]["capacity"] == 32'000'000'000);
  const std::string why = choice["why_not"];
  CHECK(why.find("GPU memory short by ") != std::string::npos);
  CHECK(why.find("has 31.5 GB (32.0 GB less 500 MB kept free)") != std::string::npos);
  CHECK(report["model"]["params"].get<double>() == doctest::Approx(10e9).epsilon(0.05));
}

TEST_CASE("10B on one 32 GB GPU: stage 2 needs the optimizer on the CPU and full recompute") {
  const std::string machine =
      "--model gpt2-10b --gpus 1 --gpu-memory 32GB --seq-len 1024 --stage 2 ";
  const Json plain = EstimateJson(machine + "--offload-optimizer none")["choices"][0];
  CHECK(plain["fits"] == false);
  CHECK(plain["why_not"].get<std::string>().starts_with("GPU memory short by "));

  const Json choice = EstimateJson(
      machine + "--micro-batch 10 --offload-optimizer cpu --checkpointing full")["choices"][0];
  CHECK(choice["fits"] == true);
  // By hand. Parameters: 50 (12 h^2 + 13 h) + (50304 + 1024) h + 2 h with h = 4096, all tensors
  // multiples of 64 elements; their 16-bit gradients lie in pinned host memory, the 12 bytes of
  // states of each in pageable memory.
  const uint64_t psi = 50ull * (12 * 4096 * 4096 + 13 * 4096) + (50304 + 1024) * 4096ull + 2 * 4096;
  CHECK(choice["gpu_bytes"]["params"] == 2 * psi);
  CHECK(choice["gpu_bytes"]["optimizer"] == 0);
  CHECK(choice["host_bytes"]["pageable"] == 12 * psi);
  // Besides gradients pinned memory holds four slots of 2^24 new parameters, tokens and step state.
  const uint64_t tokens = 2ull * 10 * 1024 * 4, slots = 4ull * (1 << 24) * 2;
  CHECK(choice["host_bytes"]["pinned"] == 2 * psi + slots + tokens + 128);
  // Gradients out and parameters in, tokens, step state, stop flag and norm.
  CHECK(choice["pcie_bytes_per_step"] == 4 * psi + tokens + 128 + 8 + 8);
}

TEST_CASE("--pin-memory off: what is offloaded is pageable, with every runtime that has it so") {
  const std::string asked =
      "--model gpt2-xl --gpus 2 --seq-len 128 --stage 3 --offload-optimizer cpu "
      "--pin-memory off --runtime ";
  for (const std::string runtime : {"zeroplan", "deepspeed"}) {
    CAPTURE(runtime);
    const Json report = EstimateJson(asked + runtime + " --offload-param none");
    REQUIRE(report["choices"].size() == 1);
    CHECK(report["choices"][0]["pin_memory"] == false);
    CHECK(report["choices"][0]["host_bytes"]["pinned"] < 1'000'000);
  }
  const RunResult refused = RunZeroplan("estimate " + asked + "fsdp2 --offload-param cpu");
  CHECK(refused.exit_code == 2);
  CHECK(Has(refused.err, wording::kOffCpuoffloadpolicyIsModelledWith));
}

TEST_CASE("host memory is per node and counts") {
  const Json report = EstimateJson(
      "--model gpt2-xl --gpus 8 --seq-len 128 --stage 1 --offload-optimizer cpu --host-memory 1GB");
  const Json& choice = report["choices"][0];
  CHECK(choice["fits"] == false);
  CHECK(choice["host_bytes"]["capacity"] == 1'000'000'000);
  CHECK(choice["why_not"].get<std::string>().find("host memory short by ") != std::string::npos);
}

TEST_CASE("what is kept free: by default, by option, and in plan as in estimate") {
  const std::string model =
      "--model gpt2 --gpus 1 --stage 0 --micro-batch 4 --grad-accum 1 "
      "--checkpointing none ";
  const Json choice = EstimateJson(model)["choices"][0];
  CHECK(choice["gpu_bytes"]["reserve"] == 500'000'000);
  CHECK(choice["host_bytes"]["reserve"].get<uint64_t>() > 1'000'000'000);
  const uint64_t total = choice["gpu_bytes"]["total"];
  const struct {
    uint64_t memory;
    const char* reserve;
    bool fits;
  } cases[] = {{total + 500'000'000, "", true},
               {total + 499'999'999, "", false},
               {total, " --gpu-reserve 0", true},
               {total - 1, " --gpu-reserve 0", false},
               {total + 2'000'000, " --gpu-reserve 2MB", true},
               {total + 1'999'999, " --gpu-reserve 2MB", false}};
  for (const auto& c : cases) {
    const std::string asked = model + "--gpu-memory " + std::to_string(c.memory) + c.reserve;
    CAPTURE(asked);
    CHECK(EstimateJson(asked)["choices"][0]["fits"] == c.fits);
    CHECK(RunZeroplan("plan --explain " + asked).exit_code == (c.fits ? 0 : 3));
  }
  const std::string host = "--model gpt2 --gpus 1 --stage 1 --offload-optimizer cpu ";
  const Json offloaded = EstimateJson(host)["choices"][0];
  const auto needs = offloaded["host_bytes"]["total"].get<uint64_t>();
  for (const bool fits : {true, false}) {
    const std::string asked = host + "--host-reserve 64MB --host-memory " +
                              std::to_string(needs + 64'000'000 - (fits ? 0 : 1));
    CHECK(EstimateJson(asked)["choices"][0]["fits"] == fits);
  }
  const std::string table = RunZeroplan("estimate --explain " + model + "--host-memory 64GB").out;
  CHECK(table.find("--gpu-reserve 500MB") != std::string::npos);
  CHECK(table.find("--host-reserve 5.80GB") != std::string::npos);
}

TEST_CASE("rows with a disk that nobody named say what it is taken for") {
  const std::string model = "estimate --explain --model gpt2 --seq-len 64 --stage 2 ";
  const auto noted = [&](const std::string& more, const std::string& note) {
    return RunZeroplan(model + more).out.find(note) != std::string::npos;
  };
  const std::string assumed = "NVMe: 2.00 TB a node by the hardware profile, assumed: one drive";
  CHECK(noted("--hw rtx4090", assumed));
  CHECK(
      noted("--hw " + MeasuredH200(), "NVMe: the hardware profile does not say how much there is"));
  CHECK_FALSE(noted("--hw dgx-h100", "NVMe: "));
  // A machine without one is estimated without one, unless it is asked for.
  CHECK(noted("--hw p3-16xlarge",
              "NVMe: the hardware profile has no rates of a disk, so none is shown."));
  CHECK_FALSE(noted("--hw p3-16xlarge --offload-optimizer cpu --offload-param none", "NVMe: "));
  CHECK(RunZeroplan(model + "--hw p3-16xlarge --offload-optimizer nvme").exit_code == 2);
  CHECK_FALSE(noted("--hw rtx4090 --nvme-capacity 1TB", "NVMe: "));
  CHECK(noted("--hw rtx4090 --nvme-drives 4",
              "NVMe: 4 drives of 2.00 TB a node that read 6.00 GB/s and write 4.00 GB/s each; "));
  CHECK(noted("--hw rtx4090 --nvme-drives 4 --nvme-capacity 1TB",
              "NVMe: 4 drives a node that read 6.00 GB/s and write 4.00 GB/s each; "));
  CHECK(RunZeroplan(model + "--hw p3-16xlarge --nvme-drives 2").exit_code == 2);
  CHECK(RunZeroplan(model + "--hw rtx4090 --nvme-drives 0").exit_code == 2);
  CHECK_FALSE(noted("--hw rtx4090 --offload-optimizer none,cpu --offload-param none", "NVMe: "));
}

TEST_CASE("--tokens and --gpu-hour-price: steps, hours, GPU-hours and price of each choice") {
  const std::string run = "--model gpt2 --gpus 2 --stage 0,1 --offload-optimizer none ";
  CHECK(EstimateJson(run)["choices"][0]["training"].is_null());
  const Json choices = EstimateJson(run + "--tokens 1B --gpu-hour-price 2.5")["choices"];
  REQUIRE(choices.size() == 2);
  for (const Json& choice : choices) {
    const Json& training = choice["training"];
    CHECK(training["tokens"] == 1'000'000'000);
    CHECK(training["steps"] == 488'282);  // 1e9 / 2048, rounded up
    const double seconds = 488'282 * choice["step_seconds"]["total"].get<double>();
    CHECK(training["seconds"].get<double>() == doctest::Approx(seconds));
    CHECK(training["gpu_hours"].get<double>() == doctest::Approx(seconds / 1800));
    CHECK(training["price"].get<double>() == doctest::Approx(seconds / 720));
  }
  CHECK(EstimateJson(run + "--tokens 1B")["choices"][0]["training"]["price"].is_null());
  const RunResult table =
      RunZeroplan("estimate --explain " + run + "--tokens 1B --gpu-hour-price 2.5");
  CHECK(table.out.find("Training on 1.00B tokens, steps alone") != std::string::npos);
  CHECK(table.out.find("GPU-hours   price fits") != std::string::npos);
  const RunResult plan = RunZeroplan("plan --explain " + run +
                                     "--tokens 1B --gpu-hour-price 2.5 --micro-batch 8 "
                                     "--grad-accum 1");
  CHECK(plan.exit_code == 0);
  CHECK(plan.out.find("Training on 1.00B tokens: 61036 steps, ") != std::string::npos);
}

TEST_CASE("batch sizes complete each other") {
  auto batch = [](const std::string& arguments) {
    const Json choice =
        EstimateJson("--model gpt2 --seq-len 64 --stage 0 " + arguments)["choices"][0];
    return std::pair<int, int>(choice["micro_batch"], choice["grad_accum"]);
  };
  CHECK(batch("--gpus 2") == std::pair(1, 1));
  CHECK(batch("--gpus 2 --global-batch 16") == std::pair(8, 1));
  CHECK(batch("--gpus 2 --global-batch 16 --micro-batch 2") == std::pair(2, 4));
  CHECK(batch("--gpus 2 --global-batch 16 --grad-accum 4") == std::pair(2, 4));
  CHECK(batch("--gpus 2 --global-batch 16 --grad-accum 4 --micro-batch 2") == std::pair(2, 4));
}

TEST_CASE("checkpointing") {
  auto every = [](const std::string& arguments) {
    std::vector<int> values;
    const Json report = EstimateJson("--model gpt2 --seq-len 64 --stage 0 " + arguments);
    for (const Json& choice : report["choices"]) {
      values.push_back(choice["checkpoint_every"]);
      CHECK((choice["checkpointing"] == "full") == (values.back() > 0));
      if (choice["checkpointing"] == "selective") values.back() = -1;
      if (choice["checkpointing"] == "products") values.back() = -2;
    }
    return values;
  };
  CHECK(every("") == std::vector<int>{0});
  CHECK(every("--checkpointing full") == std::vector<int>{1});
  CHECK(every("--checkpointing full --checkpoint-every 3") == std::vector<int>{3});
  CHECK(every("--checkpointing selective") == std::vector<int>{-1});
  CHECK(every("--checkpointing all") == std::vector<int>{0, -1, -2, 1});
}

TEST_CASE("checkpointing of some layers, and activations on the host") {
  const std::string model = "--model gpt2 --seq-len 64 --stage 0 ";
  const auto one = [&](const std::string& arguments) {
    const Json choice = EstimateJson(model + arguments)["choices"][0];
    return fmt::format("{}/{} of {}, {} above; {} {}", choice["checkpointing"].get<std::string>(),
                       choice["checkpoint_every"].get<int>(),
                       choice["checkpoint_layers"].get<int>(),
                       choice["checkpointing_above"].get<std::string>(),
                       choice["offload_activations"].get<std::string>(),
                       choice["offload_activation_layers"].get<int>());
  };
  CHECK(one("--checkpointing products --checkpoint-layers 5 --checkpointing-above selective") ==
        "products/0 of 5, selective above; none 0");
  CHECK(one("--checkpoint-every 2 --checkpoint-layers 5 --checkpointing-above none") ==
        "full/2 of 5, none above; none 0");
  CHECK(one("--offload-activations") == "none/0 of 0, none above; cpu 0");
  CHECK(one("--checkpointing selective --offload-activation-layers 7") ==
        "selective/0 of 0, none above; cpu 7");
  // gpt2 has 12 layers.
  CHECK(one("--checkpointing full --checkpoint-layers 12 --checkpointing-above selective "
            "--offload-activations --offload-activation-layers 11") ==
        "full/1 of 0, none above; cpu 0");
  const std::string table =
      RunZeroplan("estimate " + model + "--checkpointing products --checkpoint-layers 5 " +
                  "--checkpointing-above selective --offload-activation-layers 3")
          .out;
  CHECK(Has(table, wording::kCpuProdSel));
  const std::string csv =
      RunZeroplan("estimate " + model + "--checkpointing products --checkpoint-layers 5 " +
                  "--offload-activations --format csv")
          .out;
  CHECK(Has(csv, wording::kProductsNoneCpu));
  struct Case {
    const char *arguments, *message;
  };
  const Case cases[] = {
      {"--checkpoint-layers 5",
       "--checkpoint-layers: 5 is not allowed without --checkpointing; use selective, products or "
       "full"},
      {"--checkpoint-layers 5 --checkpointing all",
       "--checkpoint-layers: 5 is not allowed with --checkpointing all; use selective"},
      {"--checkpoint-layers 5 --checkpointing none",
       "--checkpoint-layers: 5 is not allowed with --checkpointing none; use selective"},
      {"--checkpoint-layers 0 --checkpointing full", "--checkpoint-layers: 0 is not allowed"},
      {"--checkpointing products --checkpointing-above selective",
       "--checkpointing-above: selective has no effect without --checkpoint-layers"},
      {"--checkpointing selective --checkpoint-layers 5 --checkpointing-above selective",
       "--checkpointing-above: selective is not allowed with --checkpointing selective"},
      {"--checkpointing full --checkpoint-layers 5 --checkpointing-above products",
       "--checkpointing-above: products is not allowed; use none, selective"},
      {"--checkpointing products --checkpoint-every 2",
       "--checkpoint-every: 2 has no effect with --checkpointing products"},
      {"--checkpointing auto", "--checkpointing: auto is not allowed"},
      {"--offload-activation-layers 0", "--offload-activation-layers: 0 is not allowed"},
      {"--runtime deepspeed --offload-activation-layers 3",
       "--offload-activation-layers: 3 is not allowed with --runtime deepspeed"},
      {"--runtime deepspeed --checkpointing products",
       "give --checkpointing none or full, --checkpoint-every 1 and no --checkpoint-layers"},
      {"--runtime deepspeed --checkpointing full --checkpoint-layers 3",
       "give --checkpointing none or full, --checkpoint-every 1 and no --checkpoint-layers"},
      {"--runtime fsdp2 --gpus 2 --checkpointing products",
       "give --checkpointing none, full or selective, --checkpoint-every 1"},
      {"--runtime fsdp2 --gpus 2 --checkpointing selective --checkpoint-layers 3",
       "give --checkpointing none, full or selective, --checkpoint-every 1"},
  };
  for (const Case& c : cases) {
    const bool fsdp = std::string_view(c.arguments).find("fsdp2") != std::string_view::npos;
    const RunResult run = RunZeroplan(
        fmt::format("estimate --model gpt2 --seq-len 64 --stage {} {}", fsdp ? 3 : 0, c.arguments));
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.err.find(c.message) != std::string::npos);
  }
}

TEST_CASE("selective recompute: what is kept, by hand") {
  const Json choice = EstimateJson(
      "--model gpt2-10b --gpus 1 --seq-len 1024 --stage 0 --checkpointing selective")["choices"][0];
  // 50 layers of 20*s*b*h + 4*H*s*b bytes; the last residual, and the final norm's output or, after
  // it, that output's gradient; the norm's statistics; a chunk of logits, losses.
  const uint64_t layer = 20ull * 1024 * 4096 + 4ull * 32 * 1024;
  const uint64_t kept = 50 * layer + 2ull * 2 * 1024 * 4096 + 2 * 1024 * 4;
  const uint64_t logits = 1024ull * 50304 * 2 + 1024 * 4;
  CHECK(choice["gpu_bytes"]["activations"] == kept + logits);
}

TEST_CASE("a DeepSpeed config is that very choice") {
  const std::string file = "/tmp/zeroplan_cli_config_" + std::to_string(getpid()) + ".json";
  std::ofstream(file) << R"({"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})";
  const Json report = EstimateJson("--model gpt2 --gpus 2 --seq-len 64 --config " + file);
  REQUIRE(report["choices"].size() == 1);
  CHECK(report["choices"][0]["stage"] == 2);
  CHECK(report["choices"][0]["offload_optimizer"] == "cpu");
  CHECK(report["choices"][0]["micro_batch"] == 4);
  CHECK(report["choices"][0]["settings"]["reduce_bucket"] == 500'000'000);

  const RunResult conflict = RunZeroplan("estimate --model gpt2 --stage 1 --config " + file);
  CHECK(conflict.exit_code == 2);
  CHECK(conflict.err.find("--stage: 1") != std::string::npos);
  std::filesystem::remove(file);
}

TEST_CASE("table: 100 columns, no colour in a pipe, all choices, reasons and assumptions") {
  for (const char* arguments :
       {"--params 10B --gpus 16", "--model gpt2 --seq-len 64", "--params 1T --gpus 1024",
        "--params 10B --gpus 1 --gpu-memory 8GB --stage 0",
        "--model gpt3-13b --gpus 8 --checkpointing all --micro-batch 64 --host-memory 1GB"}) {
    const RunResult run = RunZeroplan(std::string("estimate --explain ") + arguments);
    INFO(std::string(arguments), "\n", run.out, run.err);
    REQUIRE(run.exit_code == 0);
    CHECK(run.err.empty());
    CHECK(run.out.find('\x1b') == std::string::npos);
    for (const std::string& line : Lines(run.out)) CHECK(line.size() <= 100);
    for (const char* column : {"params", "grads", "optim", "activ", "buffers", "runtime", "total",
                               "host", "nvme", "comm", "pcie", "compute", "exposed", "offload",
                               "step", "tok/s", "MFU%", "fits", "Assumed:"}) {
      CHECK(run.out.find(column) != std::string::npos);
    }
  }
}

TEST_CASE("table: what fits first, and stages that are the same on one GPU in one row") {
  const RunResult one = RunZeroplan("estimate --explain --model llama3.1-8b --hw rtx4090");
  CAPTURE(one.out);
  // Each table: all rows that fit, then all that do not.
  std::vector<std::string> verdicts;
  std::istringstream lines(one.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with(" yes") || line.ends_with(" no")) {
      verdicts.push_back(line.substr(line.rfind(' ') + 1));
    } else if (!verdicts.empty()) {
      CHECK(verdicts.front() == "yes");
      CHECK(std::is_sorted(verdicts.rbegin(), verdicts.rend()));
      verdicts.clear();
    }
  }
  CHECK(Has(one.out, "\n0-2  none none"));
  CHECK(Has(one.out, wording::kStagesGpuMemoryShortBy));
  const RunResult two = RunZeroplan("estimate --explain --model gpt2 --hw 2x-rtx4090");
  CHECK(Lacks(two.out, "0-"));
  CHECK(Has(two.out, "\n1    none none"));
}

TEST_CASE("sums of gradients in 16 bits over several micro-steps are named as assumed") {
  const std::string several =
      "estimate --explain --model gpt2 --hw rtx4090 --stage 0 --grad-accum 4";
  CHECK(Has(RunZeroplan(several).out, wording::kBfGradientsOfMicroSteps));
  CHECK(Lacks(RunZeroplan(several + " --grad-accum-dtype bf16").out, "are summed in"));
  CHECK(Lacks(RunZeroplan("estimate --explain --model gpt2 --hw rtx4090 --stage 0").out,
              "are summed in"));
  CHECK(Has(
      RunZeroplan("plan --explain --quick --model gpt2 --hw rtx4090 --micro-batch 2 --grad-accum 8")
          .out,
      "--grad-accum-dtype bf16 (gradients of 8 micro-steps"));
}

TEST_CASE("table: disk columns only where a disk is used; details of one choice alone") {
  const std::string gpt2 = "estimate --explain --model gpt2 --seq-len 64 --gpus 2 --stage 2 ";
  auto says = [](const RunResult& run, const char* text) {
    return run.out.find(text) != std::string::npos;
  };
  const RunResult several = RunZeroplan(gpt2);
  CHECK(says(several, " read "));
  CHECK(says(several, " write "));
  CHECK(!says(several, "Peak of each phase"));
  CHECK(!says(several, "Each stream in one step"));
  const RunResult one = RunZeroplan(gpt2 + "--offload-optimizer cpu");
  CHECK(!says(one, " write "));
  CHECK(says(one, "Peak of each phase"));
  CHECK(says(one, "Each stream in one step"));
  CHECK(says(one, "device_to_host busy"));
  CHECK(!says(one, "storage"));
  for (const std::string& line : Lines(one.out)) CHECK(line.size() <= 100);
  // A row that does not fit says so in both tables, and its reason below.
  const RunResult none = RunZeroplan(gpt2 + "--offload-optimizer none --gpu-memory 1MB");
  size_t marked = 0;
  for (const std::string& line : Lines(none.out)) marked += line.ends_with("  no");
  CHECK(marked == 2);
  CHECK(says(none, "Why not (their times"));
}

TEST_CASE("--trace shows the one choice's step, with two of its middle micro-steps") {
  const std::string file = "/tmp/zeroplan_cli_trace_" + std::to_string(getpid()) + ".json";
  auto events = [&](int grad_accum) {
    const RunResult run = RunZeroplan(
        "estimate --explain --model gpt2 --seq-len 64 --gpus 2 --stage 2 --offload-optimizer cpu "
        "--trace " +
        file + " --grad-accum " + std::to_string(grad_accum));
    INFO(run.err);
    REQUIRE(run.exit_code == 0);
    CHECK(run.out.find("Each stream") != std::string::npos);
    const Json trace = Json::parse(ReadWhole(file));
    size_t spans = 0;
    for (const Json& event : trace["traceEvents"]) spans += event["ph"] == "X";
    return spans;
  };
  const size_t three = events(3), four = events(4), many = events(40);
  CHECK(three > 500);
  CHECK(four > three);
  CHECK(many == four);
  std::filesystem::remove(file);
  const RunResult several =
      RunZeroplan("estimate --explain --model gpt2 --seq-len 64 --trace " + file);
  CHECK(several.exit_code == 2);
  CHECK(several.err.find("--stage") != std::string::npos);
  CHECK(!std::filesystem::exists(file));
  CHECK(
      RunZeroplan("estimate --explain --model gpt2 --stage 0 --trace /no/such/t.json").exit_code ==
      2);
}

TEST_CASE("csv: every line has the header's fields") {
  const RunResult run =
      RunZeroplan("estimate --model gpt2 --seq-len 64 --gpus 2 --gpu-memory 1MB --format csv");
  REQUIRE(run.exit_code == 0);
  const std::vector<std::string> lines = Lines(run.out);
  REQUIRE(lines.size() == 17);
  auto fields = [](const std::string& line) {
    size_t count = 1;
    bool quoted = false;
    for (char c : line) {
      if (c == '"') quoted = !quoted;
      if (c == ',' && !quoted) ++count;
    }
    return count;
  };
  for (const std::string& line : lines) CHECK(fields(line) == fields(lines[0]));
}

TEST_CASE("-o writes the result to a file") {
  const std::string file = "/tmp/zeroplan_cli_out_" + std::to_string(getpid());
  const RunResult run =
      RunZeroplan("estimate --model gpt2 --seq-len 64 --format json --stage 1 -o " + file);
  CHECK(run.exit_code == 0);
  CHECK(run.out.empty());
  CHECK(Json::parse(ReadWhole(file))["schema"] == "zeroplan.estimate/1");
  std::filesystem::remove(file);
  CHECK(RunZeroplan("estimate --model gpt2 --seq-len 64 -o /nowhere/x").exit_code == 2);
}

}  // namespace
}  // namespace zeroplan
