// zeroplan hw check as a user runs it, and the metrics that it reads.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "core/base/error.h"
#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "core/program/fingerprint.h"
#include "planner/runs/metrics_reader.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/screen.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/tiny_config.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

// A run of gpt2 on two GPUs, as train writes it; the first steps are slow. Where `runtime` is
// known, the GPU's total has it.
std::string MadeUpMetrics(uint64_t params, const std::array<uint64_t, kSpaces>& arenas,
                          uint64_t runtime = 0) {
  std::string text = fmt::format(
      R"({{"event":"start","schema":"zeroplan.metrics/1","plan":{{"model":"gpt2","params":{},)"
      R"("stage":2,"offload_optimizer":"none","offload_ratio":1.0,"offload_param":"none",)"
      R"("checkpoint_every":0,"micro_batch":8,"grad_accum":2,"gpus":2,"seq_len":1024,)"
      R"("dtype":"bf16","backend":"cuda"}},"planned_bytes":{{"gpu":{{"runtime":{},"total":{}}},)"
      R"("host":{{"pinned":{},"pageable":{}}},"nvme":{}}}}})"
      "\n",
      params, runtime == 0 ? "null" : std::to_string(runtime), arenas[0] + runtime, arenas[1],
      arenas[2], arenas[3]);
  for (int step = 1; step <= 12; ++step) {
    const double seconds = step <= 5 ? 9.0 : 0.050 + 0.001 * (step % 3);
    text += fmt::format(R"({{"event":"step","step":{},"step_seconds":{},"tokens_per_second":{},)"
                        R"("exposed_comm_seconds":0.002,"exposed_offload_seconds":null}})"
                        "\n",
                        step, seconds, 32768 / seconds);
  }
  return text + R"({"event":"end","steps":12,"device_used_bytes":12000000000})" + "\n";
}

Program Gpt2Program(bool checkpoints) {
  TrainSetup setup;
  setup.zero.stage = 2;
  setup.batch = {.micro_batch = 8, .grad_accum = 2, .world_size = 2, .seq_len = 1024};
  LowerOptions lower;
  lower.backend = Backend::kCuda;
  lower.checkpoints = checkpoints;
  return Lower(LoadModel("gpt2"), setup, lower);
}

void WriteText(const std::string& file, const std::string& text) { std::ofstream(file) << text; }

TEST_CASE("metrics are read without the steps that warm up") {
  const ModelSpec model = LoadModel("gpt2");
  const std::string text = MadeUpMetrics(model.ParamCount(), {1, 2, 3, 4});
  // A resumed run's file holds the first part too.
  for (const std::string& all : {text, text + text}) {
    const MeasuredRun run = ReadMetrics(all, "run.jsonl");
    CHECK(run.warm_up == 5);
    CHECK(run.steps == 7);
    CHECK(run.step_seconds == doctest::Approx(0.051));
    CHECK(run.tokens_per_second == doctest::Approx(32768 / 0.051));
    CHECK(run.exposed_comm_seconds == 0.002);
    CHECK_FALSE(run.exposed_offload_seconds.has_value());
    CHECK(run.device_used_bytes == 12e9);
    CHECK(run.setup.batch.world_size == 2);
    CHECK(run.setup.zero.stage == 2);
    CHECK(run.planned_bytes == std::array<uint64_t, kSpaces>{1, 2, 3, 4});
  }
  const MeasuredRun run = ReadMetrics(MadeUpMetrics(5, {1, 2, 3, 4}, 1000), "run.jsonl");
  CHECK(run.planned_bytes == std::array<uint64_t, kSpaces>{1, 2, 3, 4});
  CHECK(run.setup.recompute == kNoRecompute);
  std::string selective = text;
  selective.insert(selective.find("\"checkpoint_every\""), "\"checkpointing\":\"selective\",");
  CHECK(ReadMetrics(selective, "run.jsonl").setup.recompute == kSelectiveRecompute);
  std::string homes = text;
  homes.insert(homes.find("\"checkpoint_every\""),
               R"("checkpointing":"products","checkpoint_layers":7,)"
               R"("checkpointing_above":"selective","offload_activations":"cpu",)"
               R"("offload_activation_layers":5,)");
  CHECK(ReadMetrics(homes, "run.jsonl").setup.recompute ==
        RecomputeConfig{
            RecomputeKind::kProducts, 0, 7, RecomputeKind::kSelective, {OffloadDevice::kCpu, 5}});
  homes.replace(homes.find("\"products\""), 10, "\"gelu\"");
  CHECK_THROWS_WITH_AS(
      ReadMetrics(homes, "run.jsonl"),
      doctest::Contains("plan.checkpointing: \"gelu\" is not allowed; use none, selective"), Error);
}

TEST_CASE("metrics that were edited or cut off are read as far as they go") {
  const std::string good = MadeUpMetrics(5, {1, 2, 3, 4});
  std::string odd;
  for (const char c : good) odd += c == '\n' ? std::string("\r\n \n") : std::string(1, c);
  odd.insert(odd.rfind("{\"event\":\"end\""), "{\"event\":\"seen by nobody yet\",\"x\":[1]}\n");
  const MeasuredRun all = ReadMetrics(odd, "run.jsonl");
  CHECK(all.steps == 7);
  CHECK(all.step_seconds == doctest::Approx(0.051));
  CHECK(all.device_used_bytes == 12e9);
  // Killed while it wrote its last step.
  const size_t end = good.rfind("{\"event\":\"end\"");
  const MeasuredRun cut = ReadMetrics(good.substr(0, end - 20), "run.jsonl");
  CHECK(cut.warm_up + cut.steps == 11);
  CHECK_FALSE(cut.device_used_bytes.has_value());
  // The last line of a whole file counts without a line's end.
  const MeasuredRun whole = ReadMetrics(good.substr(0, good.size() - 1), "run.jsonl");
  CHECK(whole.device_used_bytes == 12e9);
}

TEST_CASE("metrics whose whole numbers are none are errors") {
  const std::string good = MadeUpMetrics(5, {1, 2, 3, 4});
  for (const char* key : {"stage", "gpus", "micro_batch", "total"}) {
    for (const char* value : {"2.5", "-99999999999", "\"2\"", "1e30", "null"}) {
      CAPTURE(key);
      CAPTURE(value);
      std::string bad = good;
      const size_t at = bad.find(fmt::format("\"{}\":", key)) + std::string_view(key).size() + 3;
      bad.replace(at, bad.find_first_of(",}", at) - at, value);
      const std::string message = ErrorOf(ExitCode::kUsage, [&] { ReadMetrics(bad, "run.jsonl"); });
      CAPTURE(message);
      CHECK(message.starts_with("run.jsonl:1: "));
      CHECK(message.find(key) != std::string::npos);
    }
  }
}

TEST_CASE("metrics of negative amounts, or nested without end, are errors") {
  const std::string good = MadeUpMetrics(5, {1, 2, 3, 4});
  const auto refused = [&](const char* key, const std::string& value, const char* line) {
    CAPTURE(key);
    std::string bad = good;
    const size_t at = bad.find(fmt::format("\"{}\":", key)) + std::string_view(key).size() + 3;
    bad.replace(at, bad.find_first_of(",}", at) - at, value);
    const std::string message = ErrorOf(ExitCode::kUsage, [&] { ReadMetrics(bad, "run.jsonl"); });
    CAPTURE(message.substr(0, 200));
    CHECK(message.starts_with(line));
    return message;
  };
  for (const char* key : {"tokens_per_second", "exposed_comm_seconds", "step_seconds"}) {
    CHECK(Has(refused(key, "-1", "run.jsonl:2: "), key));
  }
  CHECK(Has(refused("device_used_bytes", "-1", "run.jsonl:14: "), "device_used_bytes"));
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  for (const char* key : {"stage", "backend"}) {
    CHECK(Has(refused(key, deep, "run.jsonl:1: "), "nested more than 64 deep"));
  }
}

TEST_CASE("hw check sets predictions beside a run") {
  const TempDir folder;
  const std::string file = folder.path() + "/run.jsonl";
  const uint64_t params = LoadModel("gpt2").ParamCount();
  for (const bool checkpoints : {false, true}) {
    CAPTURE(checkpoints);
    WriteText(file, MadeUpMetrics(params, Gpt2Program(checkpoints).arena_bytes));
    const RunResult result = RunZeroplan("hw check --hw hgx-h200 " + file + " " + file);
    CAPTURE(result.err);
    REQUIRE(result.exit_code == 0);
    CHECK(Has(result.out, wording::kGptOfBf));
    CHECK(Has(result.out, " | 51.00 | "));
    CHECK(Has(result.out, " | 642510 | "));
    CHECK(Has(result.out, " | 12.00 | "));
    CHECK(Has(result.out, "hgx-h200"));
    CHECK(Lacks(result.out, "(!)"));
    // Two equal rows, and as many cells in each as in the head.
    const size_t head = result.out.find('\n');
    const auto bars = [](const std::string& line) {
      return std::count(line.begin(), line.end(), '|');
    };
    const size_t row = result.out.find("| 2 x gpt2");
    const std::string first = result.out.substr(row, result.out.find('\n', row) - row);
    CHECK(bars(first) == bars(result.out.substr(0, head)));
    CHECK(result.out.find(first, row + 1) != std::string::npos);
  }
  WriteText(file, MadeUpMetrics(params, {1, 0, 0, 0}));
  const RunResult other = RunZeroplan("hw check --hw hgx-h200 " + file);
  CHECK(other.exit_code == 0);
  CHECK(Has(other.out, "(!)"));
}

TEST_CASE("hw check on a terminal prints a table that fits it, elsewhere Markdown") {
  const TempDir folder;
  const std::string file = folder.path() + "/run.jsonl";
  WriteText(file, MadeUpMetrics(LoadModel("gpt2").ParamCount(), Gpt2Program(true).arena_bytes));
  const std::string check = "hw check --hw hgx-h200 " + file + " " + file;
  const std::string markdown = RunZeroplan(check).out;
  REQUIRE(markdown.starts_with("| run: GPUs x model, "));
  const auto on_terminal = [&](const std::string& arguments, size_t columns) {
    return RunInTerminal("env ZEROPLAN_NO_DETECT=1 " + BinaryPath("zeroplan ") + arguments,
                         columns);
  };
  for (const size_t columns : {120u, 100u, 80u, 60u, 44u}) {
    CAPTURE(columns);
    const TerminalRun run = on_terminal(check, columns);
    CAPTURE(run.text);
    CHECK(run.exit_code == 0);
    CHECK(run.screen.overflows().empty());
    CHECK_FALSE(Has(run.text, "|"));
    CHECK(Has(run.text, "51.00"));  // the step, as measured
    CHECK(Has(run.text, "12.00"));  // memory in use
    CHECK(Has(run.text, "642510") == (columns > 44));
    CHECK(Has(run.text, wording::kLeftOutForWantOf) == (columns < 80));
    std::string table;
    for (const std::string& line : run.screen.lines()) {
      if (line.starts_with("  1 ") || line.starts_with("  2 ")) table += line.substr(3) + "\n";
    }
    const size_t end = table.find('\n');
    REQUIRE(end != std::string::npos);
    CHECK(table == table.substr(0, end + 1) + table.substr(0, end + 1));  // two equal rows
  }
  // What --format says holds anywhere.
  std::string shown = on_terminal(check + " --format markdown", 80).text;
  std::erase(shown, '\r');
  CHECK(shown == markdown);
  CHECK(Has(RunZeroplan(check + " --format table").out, "GB of a GPU"));
  const std::string output = folder.path() + "/table.md";
  CHECK(on_terminal(check + " -o " + output, 80).exit_code == 0);
  CHECK(ReadWhole(output) == markdown);
}

// A model that is not built in, settings that older metrics did not hold, and no option that names
// either: the run's metrics have all of it.
TEST_CASE("hw check lowers the very program that ran") {
  const TempDir folder;
  const auto path = [&](const char* name) { return folder.path() + "/" + name; };
  testing::WriteGpt2Config(path("config.json"));
  WriteText(path("ds.json"),
            R"({"train_micro_batch_size_per_gpu":2,"zero_optimization":{"stage":3,)"
            R"("stage3_param_persistence_threshold":100,"reduce_bucket_size":5000,)"
            R"("overlap_comm":false},"bf16":{"enabled":true}})");
  const RunResult planned = RunZeroplan(
      "plan --quick --hw hgx-h200 --gpus 2 --global-batch 8 --model " + path("config.json") +
      " --config " + path("ds.json") + " --plan-out " + path("plan.json"));
  CAPTURE(planned.err);
  REQUIRE(planned.exit_code == 0);
  // The program for GPUs, rehearsed.
  const RunResult run =
      RunZeroplan("train --backend cpu --threads 1 --steps 3 --data " + SourcePath("LICENSE") +
                  " --plan " + path("plan.json") + " --metrics " + path("m.jsonl"));
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);

  const std::string text = ReadWhole(path("m.jsonl"));
  const MeasuredRun read = ReadMetrics(text, "m.jsonl");
  REQUIRE(read.program.has_value());
  CHECK(read.gpus_per_node == 2);
  CHECK(read.setup.zero.param_persistence_threshold == 100);
  CHECK(read.setup.zero.reduce_bucket_elements == 5000);
  CHECK_FALSE(read.setup.zero.overlap_comm);
  const Program again = Lower(read.program->model, read.program->setup, read.program->lower);
  CHECK(Fingerprint(again) == read.program->fingerprint);
  CHECK(again.arena_bytes == read.planned_bytes);

  const std::string check = "hw check --hw hgx-h200 " + path("m.jsonl");
  for (const std::string& options : {std::string(), " --plan " + path("plan.json")}) {
    const RunResult result = RunZeroplan(check + options);
    CAPTURE(result.err);
    REQUIRE(result.exit_code == 0);
    CHECK(Has(result.out, "| 2 x "));
    CHECK(Lacks(result.out, "(!)"));
    CHECK(Lacks(result.out, "(#)"));
  }
  CHECK(RunZeroplan(check + " --model gpt2").exit_code == 2);

  // What another build would write, whose program is another one.
  const std::string fingerprint = FormatFingerprint(read.program->fingerprint);
  const std::string other =
      fingerprint == std::string(16, '0') ? std::string(16, '1') : std::string(16, '0');
  std::string edited = text;
  edited.replace(edited.find(fingerprint), 16, other);
  WriteText(path("m.jsonl"), edited);
  const RunResult result = RunZeroplan(check);
  CHECK(result.exit_code == 0);
  CHECK(Has(result.out, " (#) | "));
  CHECK(Has(result.out, "(#) " + path("m.jsonl") + ": what ran is the program " + other));
  CHECK(Has(result.out, "predicted here is " + fingerprint));

  // A damaged record is named by line and key.
  std::string damaged = "\n" + text;
  const std::string chunk = "\"logits_chunk_bytes\":";
  damaged.replace(damaged.find(chunk) + chunk.size(), 1, "-");
  const std::string message = ErrorOf(ExitCode::kUsage, [&] { ReadMetrics(damaged, "m.jsonl"); });
  CAPTURE(message);
  CHECK(message.starts_with("m.jsonl:2: program.lower.logits_chunk_bytes: "));
}

TEST_CASE("hw check names what it cannot compare") {
  const TempDir folder;
  const std::string file = folder.path() + "/run.jsonl";
  const uint64_t params = LoadModel("gpt2").ParamCount();
  const std::string good = MadeUpMetrics(params, {1, 0, 0, 0});
  struct Refused {
    std::string text, options;
    std::vector<std::string> said;
  };
  const std::string first = good.substr(0, good.find('\n') + 1);
  std::string cpu = good;
  cpu.replace(cpu.find("\"cuda\""), 6, "\"cpu\"");
  std::string swapped = MadeUpMetrics(params, {1, 0, 0, 0}, 1000);
  swapped.replace(swapped.find("\"total\":1001"), 12, "\"total\":999");
  const std::vector<Refused> corpus = {
      {"", "", {"run.jsonl", "no step"}},
      {first, "", {"run.jsonl", "no step"}},
      {good.substr(first.size()), "", {"run.jsonl:1", "start"}},
      {first + "{\"event\":\"step\"", "", {"run.jsonl:2", "cut off", "no step"}},
      {first + "{\"event\":\"step\"\n", "", {"run.jsonl:2", "not a line"}},
      {first + "[]\n", "", {"run.jsonl:2", "not a line"}},
      {first + "{\"event\":\"step\",\"step_seconds\":0,\"tokens_per_second\":1}\n",
       "",
       {"run.jsonl:2", "step_seconds", "above 0"}},
      {first + "{\"event\":\"step\",\"step_seconds\":null}\n", "", {"run.jsonl:2"}},
      {swapped, "", {"run.jsonl:1", "runtime 1000", "total 999"}},
      {first + "{\"event\":\"step\",\"step_seconds\":\"x\"}\n", "", {"run.jsonl:2"}},
      {cpu, "", {"run.jsonl:1", "plan.backend", "cpu"}},
      {MadeUpMetrics(params + 1, {1, 0, 0, 0}), "", {"plan.params", "--model"}},
      {good, "--model gpt2-xl", {"plan.params", "gpt2-xl"}},
      {good, "--plan p.json --model gpt2", {"--model", "--plan"}},
  };
  for (const Refused& refused : corpus) {
    WriteText(file, refused.text);
    const RunResult result = RunZeroplan("hw check --hw hgx-h200 " + file + " " + refused.options);
    CAPTURE(result.err);
    CHECK(result.exit_code == 2);
    for (const std::string& said : refused.said) CHECK(Has(result.err, said));
  }
}

}  // namespace
}  // namespace zeroplan
