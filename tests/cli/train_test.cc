// zeroplan train as a user runs it: what it prints and writes, how it fails, and that a run killed
// at any instant goes on as if nothing had happened.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "executor/checkpoint/safetensors.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/tokenizer_model.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/patience.h"
#include "tests/run_metrics.h"
#include "tests/tiny_config.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// Starts zeroplan and sends it `signal` once `wait(process)` is over; the exit status as waitpid
// has it.
int RunAndSignal(const std::string& arguments, const std::function<void(pid_t)>& wait, int signal) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const int null = open("/dev/null", O_WRONLY);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    const std::string command =
        "exec env ZEROPLAN_NO_DETECT=1 " + BinaryPath("zeroplan ") + arguments;
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  wait(child);
  kill(child, signal);
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST_CASE("closed or full standard streams change nothing") {
  const Workspace work;
  const auto run = [&](const std::string& name, const std::string& streams) {
    const std::string nvme = work.path(name + "-nvme");
    fs::create_directory(nvme);
    const std::string command =
        "ZEROPLAN_NO_DETECT=1 " + BinaryPath("zeroplan ") +
        work.Train("--stage 1 --offload-optimizer nvme --nvme-path " + nvme + " --metrics " +
                       work.path(name + ".jsonl") + " --save " + work.path(name),
                   8) +
        " " + streams;
    CAPTURE(command);
    const int status = system(command.c_str());
    CHECK(WEXITSTATUS(status) == 0);
    std::ifstream lines(work.path(name + ".jsonl"));
    int steps = 0;
    for (std::string line; std::getline(lines, line);) {
      const Json json = Json::parse(line, nullptr, false);
      CHECK(json.is_object());
      steps += json.contains("loss") ? 1 : 0;
    }
    CHECK(steps >= 8);
    return ReadWhole(work.path(name + "/model.safetensors"));
  };
  const std::string weights = run("plain", "2>/dev/null");
  CHECK(!weights.empty());
  CHECK(run("closed", "<&- >&- 2>&-") == weights);
  CHECK(run("closed_errors", "2>&-") == weights);
  if (fs::exists("/dev/full")) CHECK(run("full", "2>/dev/full") == weights);
}

TEST_CASE("what is trained on as bytes is said, and records are not") {
  const Workspace work;
  const std::string records = work.path("chats.jsonl"), large = work.path("large.json");
  {
    std::ofstream out(records);
    for (int i = 0; i < 40; ++i) out << "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
    std::ofstream(large)
        << R"({"model_type":"gpt2","n_layer":1,"n_embd":32,"n_head":2,"n_positions":32,"vocab_size":300})";
  }
  const std::string model = work.path("config.json"), text = SourcePath("LICENSE");
  const auto run = [&](const std::string& of, const std::string& data, int exit_code = 0) {
    const RunResult result =
        RunZeroplan("train --backend cpu --threads 1 --steps 1 --model " + of + " --data " + data);
    CHECK(result.exit_code == exit_code);
    return result.err;
  };
  for (const char* more : {"", " --fresh-weights"}) {
    CHECK(Has(run(model, records + more, 2), wording::kChatsJsonlBytesAreTokens2));
    CHECK(Has(run(large, records + more, 2), wording::kChatsJsonlBytesAreTokens3));
  }
  CHECK(Has(run(large, text), wording::kTokensBytesAsNoTokenizer));
  CHECK(run(model, text).find("tokenizer.json") == std::string::npos);
  CHECK(Has(run(large, text + " --data-repeats 2"), "Tokens: bytes, as no tokenizer.json lies"));

  // Beside a token file it is refused, however often either is read.
  const std::string tokens = work.path("tokens.bin");
  REQUIRE(RunZeroplan("data tokenize " + text + " -o " + tokens).exit_code == 0);
  const std::string made = MakeTokenizerModel(work.path("made"));
  for (const std::string& of : {large, made}) {
    for (const char* more : {"", " --data-repeats 2,1"}) {
      const RunResult mixed =
          RunZeroplan("train --backend cpu --threads 1 --steps 1 --model " + of + " --data " +
                          text + " " + tokens + more,
                      "ZEROPLAN_NO_DETECT=1 ZEROPLAN_CACHE_DIR=" + work.path("cache"));
      CAPTURE(mixed.err);
      CHECK(mixed.exit_code == 2);
      CHECK(Has(mixed.err, wording::kTokensBinIsFileOf));
      CHECK(Lacks(mixed.err, "Tokens: "));
    }
  }
}

TEST_CASE("metrics, planned memory and final weights") {
  const Workspace work;
  const RunResult run = RunZeroplan(work.Train(
      "--gpus 2 --stage 2 --offload-optimizer cpu --validate-every 10 "
      "--metrics " +
      work.path("m.jsonl") + " --trace " + work.path("t.json") + " --save " + work.path("out")));
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.err.find("differs") == std::string::npos);  // planned against touched bytes
  const std::vector<Json> lines = ReadMetricsLines(work.path("m.jsonl"));
  REQUIRE(lines.size() > kTrainSteps + 2);
  CHECK(lines.front()["schema"] == "zeroplan.metrics/1");
  const Json& gpu = lines.front()["planned_bytes"]["gpu"];
  const uint64_t classes = gpu["params"].get<uint64_t>() + gpu["grads"].get<uint64_t>() +
                           gpu["optimizer"].get<uint64_t>() + gpu["activations"].get<uint64_t>() +
                           gpu["buffers"].get<uint64_t>();
  CHECK(classes == gpu["total"].get<uint64_t>());
  CHECK(lines.back()["event"] == "end");
  CHECK(lines.back()["high_water_bytes"] == lines.back()["planned_arena_bytes"]);
  CHECK(lines.back()["device_used_bytes"].is_null());
  const auto losses = LossesByStep(work.path("m.jsonl"));
  CHECK(losses.at(kTrainSteps) < 0.7 * losses.at(1));
  for (const Json& line : lines) {
    if (line["event"] != "step") continue;
    const bool looked = line["step"] == 16;
    CHECK(line["slowest_rank"].is_number() == looked);
    CHECK(line["slowest_rank_seconds"].is_number() == looked);
    CHECK((looked ? line["slowest_rank_share"] >= 1 : line["slowest_rank_share"].is_null()));
  }
  CHECK(fs::exists(work.path("out/model.safetensors")));
  const Json trace = Json::parse(ReadWhole(work.path("t.json")));
  CHECK(trace["traceEvents"].size() > 1000);
  const RunResult text =
      RunZeroplan("generate " + work.path("out") + " --prompt ab --tokens 20 --seed 3");
  CHECK(text.exit_code == 0);
  CHECK(text.out.size() == 23);  // prompt, 20 bytes, line feed
  CHECK(text.out ==
        RunZeroplan("generate " + work.path("out") + " --prompt ab --tokens 20 --seed 3").out);
}

TEST_CASE(
    "train --freeze: what is named stays as it was loaded, and the memory is what was planned") {
  const Workspace work;
  const std::string model = SourcePath("tests/fixtures/llama_tiny");
  std::ofstream tokens(work.path("data.u16"), std::ios::binary);
  for (int i = 0; i < 3000; ++i) tokens.put(static_cast<char>(i * i % 61)).put('\0');
  tokens.close();
  const RunResult run =
      RunZeroplan("train --data " + work.path("data.u16") + " --model " + model +
                  " --threads 1 --steps 2 --seq-len 16 --save " + work.path("out") +
                  " --freeze 'model.embed_tokens.*,model.layers.0.*'");
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(Has(run.err, wording::kParametersAreTrained));
  const auto before = SafetensorsFile::Open(model + "/model.safetensors");
  const auto after = SafetensorsFile::Open(work.path("out/model.safetensors"));
  for (const SafetensorsEntry& entry : after.entries()) {
    CAPTURE(entry.name);
    const SafetensorsEntry* old = before.Find(entry.name);
    REQUIRE(old != nullptr);
    std::vector<float> was(entry.elements), is(entry.elements);
    before.ReadFloats(*old, 0, was);
    after.ReadFloats(entry, 0, is);
    const bool frozen =
        entry.name.starts_with("model.embed_tokens.") || entry.name.starts_with("model.layers.0.");
    CHECK((was == is) == frozen);
  }
  const RunResult other =
      RunZeroplan("train --resume --data " + work.path("data.u16") + " --model " + model +
                  " --threads 1 --steps 3 --seq-len 16 --save " + work.path("out"));
  CHECK(other.exit_code == 2);
  CHECK(Has(other.err, "frozen tensors"));
  CHECK(RunZeroplan("plan --params 1B --gpus 1 --runtime fsdp2 --freeze '*.bias'").exit_code == 2);
}

TEST_CASE("a run killed again and again has the losses of an uninterrupted one, bit by bit") {
  const Workspace work;
  const std::string layout = "--gpus 2 --stage 3 --offload-optimizer nvme --nvme-path /tmp ";
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(RunZeroplan(work.Train(layout + "--metrics " + work.path("control.jsonl"))).exit_code ==
          0);
  const auto control = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - begin);
  const std::string again =
      work.Train(layout + "--save-every 2 --resume --save " + work.path("out") + " --metrics " +
                 work.path("killed.jsonl"));
  std::mt19937 random(std::random_device{}());
  int kills = 0;
  for (; kills < 300; ++kills) {
    // The first one early enough to hit, the others anywhere.
    const int64_t latest = kills == 0 ? control.count() / 3 : 150'000;
    const std::chrono::microseconds delay(
        std::uniform_int_distribution<int64_t>(std::min<int64_t>(5'000, latest), latest)(random));
    const auto wait = [&](pid_t) { std::this_thread::sleep_for(delay); };
    const int status = RunAndSignal(again, wait, SIGKILL);
    if (WIFEXITED(status)) {
      REQUIRE(WEXITSTATUS(status) == 0);
      break;
    }
  }
  // However unlucky the kills were, the last run is left alone.
  if (kills == 300) REQUIRE(RunZeroplan(again).exit_code == 0);
  CHECK(kills > 0);
  CHECK(LossesByStep(work.path("killed.jsonl")) == LossesByStep(work.path("control.jsonl")));
}

TEST_CASE("metrics: a refused run leaves them, a resume mends them, a full disk ends them alone") {
  const Workspace work;
  const std::string metrics = work.path("m.jsonl");
  const std::string save = " --save " + work.path("out") + " --metrics " + metrics;
  REQUIRE(RunZeroplan(work.Train(save, 3)).exit_code == 0);
  const std::string whole = ReadWhole(metrics);
  // The folder holds checkpoints already.
  CHECK(RunZeroplan(work.Train(save, 3)).exit_code == 2);
  CHECK(ReadWhole(metrics) == whole);
  std::ofstream(metrics, std::ios::app) << R"({"event":"st)";
  const RunResult resumed = RunZeroplan(work.Train("--resume" + save, 5));
  CAPTURE(resumed.err);
  CHECK(resumed.exit_code == 0);
  CHECK(resumed.err.find("half a line at its end") != std::string::npos);
  const std::string after = ReadWhole(metrics);
  CHECK(after.starts_with(whole));
  std::istringstream lines(after);
  for (std::string line; std::getline(lines, line);) CHECK(Json::accept(line));
  if (!fs::exists("/dev/full")) return;
  const RunResult full = RunZeroplan(work.Train("--metrics /dev/full --save " + work.path("b"), 3));
  CAPTURE(full.err);
  CHECK(full.exit_code == 0);
  CHECK(full.err.find("the run goes on without it") != std::string::npos);
  CHECK(fs::exists(work.path("b/model.safetensors")));
}

TEST_CASE("a resume names what it would change, and changes samples only when told to") {
  const Workspace work;
  const std::string save = " --save " + work.path("out");
  REQUIRE(RunZeroplan(work.Train("--micro-batch 4" + save, 4)).exit_code == 0);
  const auto train = [&](const std::string& data, const std::string& more) {
    return "train --model " + work.path("config.json") + " --data " + SourcePath(data) +
           " --threads 1 --lr 1e-3 --resume" + save + " " + more;
  };
  const RunResult other_rate =
      RunZeroplan(train("LICENSE", "--micro-batch 2 --grad-accum 2 --steps 5"));
  CAPTURE(other_rate.err);
  CHECK(other_rate.exit_code == 0);
  CHECK(other_rate.err.find("warning: lr: 0.003 in the checkpoint, 0.001 from here on") !=
        std::string::npos);
  CHECK(other_rate.err.find("global batch") == std::string::npos);
  const std::string other_data = train("README.md", "--micro-batch 4 --steps 6");
  const RunResult refused = RunZeroplan(other_data);
  CAPTURE(refused.err);
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("data: ") != std::string::npos);
  CHECK(refused.err.find("--allow-change data trains") != std::string::npos);
  const RunResult allowed = RunZeroplan(other_data + " --allow-change data");
  CAPTURE(allowed.err);
  CHECK(allowed.exit_code == 0);
  CHECK(allowed.err.find("warning: data: ") != std::string::npos);
  CHECK(RunZeroplan(other_data + " --allow-change lr").exit_code == 2);
  CHECK(RunZeroplan(work.Train("--allow-change data" + save)).exit_code == 2);
}

TEST_CASE("weights that are not there are asked for, not drawn in silence") {
  const Workspace work;
  const std::string chats = work.path("chats.jsonl"), text = SourcePath("LICENSE");
  std::ofstream(chats) << R"({"prompt": "a", "completion": "b"})" << "\n";
  const auto run = [&](const std::string& arguments) {
    return RunZeroplan("train --backend cpu --threads 1 --steps 1 --seq-len 16 --global-batch 1 " +
                       arguments);
  };
  const auto refused = [&](const std::string& arguments, const std::string& why) {
    CAPTURE(arguments);
    const RunResult result = run(arguments);
    CAPTURE(result.err);
    CHECK(result.exit_code == 2);
    CHECK(Has(result.err, why));
    CHECK(Has(result.err, "add --fresh-weights"));
  };
  const std::string folder = MakeTokenizerModel(work.path("made"));
  std::filesystem::remove(folder + "/model.safetensors");
  refused("--model " + folder + " --data " + text, wording::kHoldsNoModelSafetensors);
  refused("--model gpt2 --data " + chats, wording::kHasRecordsToTune);
  refused("--model gpt2 --method lora --data " + text, wording::kAdaptersAreTrainedBeside);
  refused("--model gpt2 --method lora --data " + text, "hf download openai-community/gpt2");
  const RunResult drawn = run("--model " + folder + " --fresh-weights --data " + text);
  CAPTURE(drawn.err);
  CHECK(drawn.exit_code == 0);
  // A preset, and plain text: what is missing is the text's length alone.
  const RunResult fresh =
      RunZeroplan("train --backend cpu --threads 1 --model gpt2 --data " + chats + ".txt");
  CHECK(fresh.exit_code == 2);
}

TEST_CASE("a run to resume that another program left says so") {
  const Workspace work;
  for (const char* of : {"out/global_step10/mp_rank_00_model_states.pt", "out/trainer_state.json",
                         "out/step-10/.metadata"}) {
    CAPTURE(of);
    std::filesystem::remove_all(work.path("out"));
    const std::filesystem::path file = work.path(of);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << "{}";
    std::ofstream(file.parent_path() / "__0_0.distcp") << "x";
    const RunResult run = RunZeroplan(work.Train("--resume --save " + work.path("out")));
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(Has(run.err, "--resume: " + work.path("out") + " "));
    CHECK(Lacks(run.err, "starting afresh"));
  }
}

TEST_CASE("a run's end says where its result lies, and the next commands work") {
  const Workspace work;
  const std::string out = work.path("out");
  const RunResult whole = RunZeroplan(work.Train("--save " + out, 2));
  CAPTURE(whole.err);
  REQUIRE(whole.exit_code == 0);
  const auto next = [](const std::string& said, const std::string& before) {
    const size_t at = said.find(before);
    REQUIRE(at != std::string::npos);
    const size_t begin = at + before.size();
    return said.substr(begin, said.find('\n', begin) - begin);
  };
  CHECK(Has(whole.err, wording::kSavedTheModelAsTransformers + out));
  CHECK(RunZeroplan(next(whole.err, "Next: zeroplan ") + " --max-new-tokens 2").exit_code == 0);
  const RunResult tuned =
      RunZeroplan("train --backend cpu --threads 1 --method lora --steps 1 --data " +
                  SourcePath("LICENSE") + " --model " + out + " --save " + work.path("tuned"));
  CAPTURE(tuned.err);
  REQUIRE(tuned.exit_code == 0);
  CHECK(Has(tuned.err, wording::kSavedTheAdapterAsPeft + work.path("tuned")));
  CHECK(Has(tuned.err, wording::kLearningRateOfAdapters));
  CHECK(RunZeroplan(next(tuned.err, "Next: zeroplan ") + " --max-new-tokens 2").exit_code == 0);
  const RunResult merged = RunZeroplan(next(tuned.err, "  or: zeroplan "));
  CAPTURE(merged.err);
  CHECK(merged.exit_code == 0);
}

TEST_CASE("Ctrl-C saves, exits 130, and --resume continues at another layout") {
  const Workspace work;
  REQUIRE(RunZeroplan(work.Train("--micro-batch 4 --metrics " + work.path("control.jsonl")))
              .exit_code == 0);
  const std::string save = " --save " + work.path("out") + " --metrics " + work.path("m.jsonl");
  // Long enough that the signal finds it at work, wherever it is by then.
  const std::string first = work.Train("--micro-batch 4" + save, 100'000);
  const int status =
      RunAndSignal(first, [&](pid_t run) { HasSteps(run, work.path("m.jsonl")); }, SIGINT);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 130);
  const auto control = LossesByStep(work.path("control.jsonl"));
  const auto before = LossesByStep(work.path("m.jsonl"));
  const int done = before.rbegin()->first;
  for (const auto& [step, loss] : before) {
    if (control.count(step)) CHECK(loss == control.at(step));
  }
  const RunResult more =
      RunZeroplan(work.Train("--gpus 4 --micro-batch 1 --stage 3 --resume" + save, done + 5));
  CAPTURE(more.err);
  REQUIRE(more.exit_code == 0);
  CHECK(LossesByStep(work.path("m.jsonl")).rbegin()->first == done + 5);
}

TEST_CASE("a run whose rank is stuck ends, naming it, though its thread never returns") {
  const Workspace work;
  std::string said;
  // No other step is to take as long.
  const auto names_it = [&](std::chrono::milliseconds limit) {
    const std::string pipe = work.path(fmt::format("pipe{}", limit.count()));
    REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    // Nobody reads: once the pipe is full, the rank's thread is stuck in writing metrics.
    const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
    REQUIRE(reader >= 0);
    const RunResult run = RunZeroplan(work.Train(
        fmt::format("--step-timeout {} --metrics {}", limit.count() / 1'000, pipe), 100'000));
    close(reader);
    said = run.err;
    return run.exit_code == 4 && Has(said, wording::kHoldsItUpItIs) &&
           Has(said, wording::kDidNotEndWithinOf);
  };
  CHECK_MESSAGE(WithLongerLimits(std::chrono::seconds(2), names_it), said);
}

TEST_CASE("what cannot be run is refused with the option, the value and the fix") {
  const Workspace work;
  const struct {
    std::string arguments;
    int exit_code;
    std::string needle;
  } cases[] = {
      {work.Train("--offload-optimizer cpu"), 2, "stage"},
      {work.Train("--stage 1 --offload-param cpu"), 2, "stage 3"},
      {work.Train("--stage 1 --offload-optimizer nvme"), 2, "nvme"},
      {work.Train("--stage 1 --offload-optimizer nvme --nvme-path /no/such/dir"), 2,
       "/no/such/dir"},
#ifndef ZEROPLAN_WITH_CUDA
      {work.Train("--backend cuda"), 2, "-DZEROPLAN_CUDA=ON"},
#endif
      {work.Train("--backend tpu"), 2, "cpu, cuda"},
      {work.Train("--hw h200x8 --backend cpu"), 2, "--hw"},
      {work.Train("--gpu-memory 8GB --backend cpu"), 2, "--gpu-memory"},
      {work.Train("--gpu-memory lots --backend cpu"), 2, "lots"},
      {work.Train("--stage all"), 2, "one"},
      {work.Train("--resume"), 2, "--save"},
      {"train --model gpt2 --data x --lr nan", 2, "--lr"},
      // The most, too, where there is one.
      {"train --model gpt2 --data x --lr 1e6", 2, "use a number above 0 and below 1000, such as"},
      {"train --model gpt2 --data x --epochs 1e7", 2, "above 0 and up to 1000000, such as 3"},
      {"train --model gpt2 --data x --max-grad-norm 1e10", 2, "use a number from 0 to below 1e9"},
      {work.Train("--max-bad-steps -1"), 2, "--max-bad-steps"},
      {work.Train("--skip-loss-spike 0.5"), 2,
       "0.5 is not allowed; use a number above 1 and below 1000000"},
      {work.Train("--step-timeout soon"), 2, "--step-timeout: soon is not allowed"},
      {work.Train("--skip-loss-spike 3x"), 2, "--skip-loss-spike: 3x is not allowed"},
      {work.Train("--seq-len 64"), 2, "64"},
      {"train --model gpt2 --data /no/such/file", 2, "/no/such/file"},
      {work.Train("--metrics /no/such/dir/m.jsonl"), 2, "there is no folder /no/such/dir"},
      {work.Train("--trace /no/such/dir/t.json"), 2, "there is no folder /no/such/dir"},
      {work.Train("--init-from /no/such/dir"), 2, "/no/such/dir"},
      {"train --params 1M --data " + SourcePath("LICENSE") + " --seq-len 32 --lr 900", 5,
       "Nothing was saved (no --save)"},
      {"train --model gpt3-13b --data " + SourcePath("LICENSE") + " --gpus 16", 3, "short by"},
      {"generate /no/such/dir", 2, "/no/such/dir"},
      {"train --data x", 2, "--model"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.arguments);
    const RunResult run = RunZeroplan(c.arguments);
    CAPTURE(run.err);
    CHECK(run.exit_code == c.exit_code);
    CHECK(run.err.find(c.needle) != std::string::npos);
    CHECK(run.err.find("bug in zeroplan") == std::string::npos);
  }
}

// A model's folder as somebody publishes it, made by a short run.
std::string PublishedFolder(const Workspace& work, const std::string& config,
                            const std::string& more) {
  const RunResult run =
      RunZeroplan("train --model " + config + " --data " + SourcePath("LICENSE") +
                  " --threads 1 --steps 2 --seed 5 --save " + work.path("made") + more);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const fs::path folder = work.path("published");
  fs::create_directory(folder);
  for (const auto& entry : fs::directory_iterator(work.path("made"))) {
    if (entry.is_regular_file()) fs::copy(entry.path(), folder / entry.path().filename());
  }
  std::ofstream(folder / "tokenizer.json") << "{}";
  std::ofstream(folder / "LICENSE") << "as you like";
  return folder.string();
}

std::string TrainFolder(const Workspace& work, const std::string& more) {
  return "train --data " + SourcePath("LICENSE") + " --threads 1 --steps 2 --metrics " +
         work.path("m.jsonl") + " " + more;
}

TEST_CASE("--model DIR starts from the weights in it, and what lies beside them goes along") {
  const Workspace work;
  const std::string config = work.path("wide.json");  // 1.7 MB of weights
  testing::WriteGpt2Config(config, {.hidden = 128});
  const std::string folder = PublishedFolder(work, config, " --max-shard-size 1MB");
  REQUIRE(fs::exists(folder + "/model.safetensors.index.json"));
  const auto first_loss = [&](const std::string& more, const std::string& line) {
    fs::remove(work.path("m.jsonl"));
    const RunResult run = RunZeroplan(TrainFolder(work, more));
    CAPTURE(more);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    CHECK(run.err.find(line) != std::string::npos);
    return LossesByStep(work.path("m.jsonl")).at(1);
  };
  const std::string read = "weights: read from " + folder + " (2 files, F32)";
  const double fresh =
      first_loss("--model " + config, "weights: fresh, drawn with seed 1; --init-from DIR");
  const double trained = first_loss("--model " + config + " --init-from " + folder, read);
  CHECK(trained != fresh);
  CHECK(first_loss("--model " + folder + " --save " + work.path("out") + " --save-dtype fp16",
                   read) == trained);
  CHECK(first_loss("--fresh-weights --model " + folder, "weights: fresh") == fresh);
  // On two ranks each reads its part.
  const double sharded = first_loss("--gpus 2 --stage 3 --model " + folder, read);
  CHECK(std::abs(sharded - trained) < 0.2);  // twice the samples
  CHECK(ReadWhole(work.path("out/LICENSE")) == "as you like");
  CHECK(ReadWhole(work.path("out/tokenizer.json")) == "{}");
  CHECK(Json::parse(ReadWhole(work.path("out/config.json")))["torch_dtype"] == "float16");
  CHECK(fs::exists(work.path("out/model.safetensors")));
  CHECK(RunZeroplan("generate " + work.path("out") + " --tokens 5").exit_code == 0);
  CHECK(RunZeroplan("generate " + folder + " --tokens 5").exit_code == 0);
}

TEST_CASE("weights, tokens and their options that cannot be used are refused") {
  const Workspace work;
  const std::string folder = PublishedFolder(work, work.path("config.json"), "");
  const std::string model = " --model " + folder;
  const auto copy_without = [&](const char* name, const std::string& file) {
    const std::string copy = work.path(name);
    fs::copy(folder, copy);
    fs::remove(copy + "/" + file);
    return copy;
  };
  const std::string torch = copy_without("torch", "model.safetensors");
  std::ofstream(torch + "/pytorch_model.bin") << "x";
  const std::string cut = copy_without("cut", "none");
  fs::resize_file(cut + "/model.safetensors", 5000);
  testing::WriteGpt2Config(work.path("deeper.json"), {.layers = 3, .heads = 4});
  std::vector<uint32_t> ids(500, 7);
  ids[400] = 256;
  std::ofstream(work.path("ids.u32"), std::ios::binary)
      .write(reinterpret_cast<const char*>(ids.data()), 2000);
  const struct {
    std::string arguments, needle;
  } cases[] = {
      {TrainFolder(work, model + " --save-dtype bf16"), "--save-dtype: bf16 needs --save DIR"},
      {TrainFolder(work, model + " --max-shard-size 1GB"), "--max-shard-size: 1GB needs --save"},
      {TrainFolder(work, model + " --max-shard-size 5 --save x"),
       "--max-shard-size: 5 is not allowed; use a size of at least 1MB, such as 5GB"},
      {"train --steps 2 --data " + SourcePath("LICENSE") + model + " --gpus 64 --threads 1000",
       "--threads: 1000 for each of 64 ranks are 64000 threads"},
      {TrainFolder(work, model + " --save-dtype int8 --save x"), "--save-dtype"},
      {TrainFolder(work, model + " --fresh-weights --init-from " + folder), "--fresh-weights"},
      {TrainFolder(work, model + " --save " + folder),
       "holds config.json, and no checkpoints of a run: it would be"},
      {TrainFolder(work, " --model " + torch), "only pytorch_model.bin, which is not read"},
      {TrainFolder(work, " --model " + cut), "cut short"},
      {TrainFolder(work, " --model " + work.path("deeper.json") + " --init-from " + folder),
       "n_layer is 2, but the model to train has 3, n_head is 2, not 4"},
      {"train --steps 2 --model " + work.path("config.json") + " --data " + work.path("ids.u32"),
       "ids.u32: token 256 at position 400 is outside the model's vocabulary of 256"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.arguments);
    const RunResult run = RunZeroplan(c.arguments);
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.err.find(c.needle) != std::string::npos);
  }
  CHECK_FALSE(fs::exists("x"));
}

TEST_CASE("a folder with checkpoints is not overwritten by a new run") {
  const Workspace work;
  REQUIRE(RunZeroplan(work.Train("--save " + work.path("out"))).exit_code == 0);
  const RunResult run = RunZeroplan(work.Train("--save " + work.path("out")));
  CHECK(run.exit_code == 2);
  CHECK(run.err.find("--resume") != std::string::npos);
}

}  // namespace
}  // namespace zeroplan
