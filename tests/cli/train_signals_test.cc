// What the system may send a run: signals, files that shrink, readers that go away.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/run_binary.h"
#include "tests/cli/tokenizer_model.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/run_metrics.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// zeroplan in the background; `before`: what its shell does first.
class Started {
 public:
  Started(const std::string& arguments, const std::string& err, const std::string& before = "")
      : pid_(fork()) {
    REQUIRE(pid_ >= 0);
    if (pid_ != 0) return;
    const std::string command = before + "exec env ZEROPLAN_NO_DETECT=1 " +
                                BinaryPath("zeroplan ") + arguments + " >/dev/null 2>" + err;
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  pid_t pid() const { return pid_; }
  void Signal(int signal) const { kill(pid_, signal); }
  // Its exit code; -1 if a signal has ended it.
  int Wait() const {
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;
};

constexpr int kForEver = 10'000'000;

TEST_CASE("train: a terminal that goes away stops the run after its step, saved") {
  const Workspace work;
  const std::string arguments =
      work.Train("--save " + work.path("out") + " --metrics " + work.path("m.jsonl"), kForEver);
  const Started run(arguments, work.path("err"));
  REQUIRE(HasSteps(run.pid(), work.path("m.jsonl")));
  run.Signal(SIGHUP);
  run.Signal(SIGHUP);
  CHECK(run.Wait() == 130);
  const std::string said = ReadWhole(work.path("err"));
  CHECK(Has(said, wording::kSavedContinueWith));
  // Once, however many signals come.
  const size_t answer = said.find(wording::kStopsAfterThisStepAnd);
  REQUIRE(answer != std::string::npos);
  CHECK(said.find(wording::kStopsAfterThisStepAnd, answer + 1) == std::string::npos);
  CHECK(RunZeroplan("checkpoint verify " + work.path("out")).exit_code == 0);
}

TEST_CASE("train: a limit of processor time stops the run after its step, saved") {
  const Workspace work;
  const std::string arguments =
      work.Train("--save " + work.path("out") + " --metrics " + work.path("m.jsonl"), kForEver);
  const Started run(arguments, work.path("err"), "ulimit -S -t 2; ");
  CHECK(run.Wait() == 130);
  CHECK(Has(ReadWhole(work.path("err")), wording::kSavedContinueWith));
  CHECK(RunZeroplan("checkpoint verify " + work.path("out")).exit_code == 0);
  // The system says it again each second: that ends nothing at once.
  const Started again(work.Train("--metrics " + work.path("m2.jsonl"), kForEver),
                      work.path("err2"));
  REQUIRE(HasSteps(again.pid(), work.path("m2.jsonl")));
  for (int i = 0; i < 3; ++i) again.Signal(SIGXCPU);
  CHECK(again.Wait() == 130);
}

// Whether `folder` has a file that is being written, before `run` ends.
bool IsWriting(const Started& run, const std::string& folder) {
  while (true) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      if (entry.path().filename().string().ends_with(".tmp")) return true;
    }
    if (HasEnded(run.pid())) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

TEST_CASE("a stop is heard while text becomes tokens, and nothing half written stays") {
  const Workspace work;
  const std::string model = MakeTokenizerModel(work.path("model"));
  const std::string text = work.path("text.txt"), out = work.path("out"),
                    cache = work.path("cache");
  {
    // Half a minute of work, of which the test waits for none.
    std::ofstream file(text);
    std::string line;
    for (int word = 0; word < 1000; ++word) line += "word" + std::to_string(word * 7919) + " ";
    for (int i = 0; i < 10'000; ++i) file << line << i << '\n';
  }
  fs::create_directory(out);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    const Started run(
        "data tokenize " + text + " --threads 1 --tokenizer " + model + " -o " + out + "/text.bin",
        work.path("err"));
    REQUIRE(IsWriting(run, out));
    run.Signal(signal);
    CHECK(run.Wait() == 130);
    CHECK(Has(ReadWhole(work.path("err")), wording::kInterruptedNothingWasSaved));
    CHECK(fs::is_empty(out));
  }
  const Started train("train --model " + model + " --data " + text +
                          " --threads 1 --steps 3 --fresh-weights --save " + work.path("run"),
                      work.path("err"), "export ZEROPLAN_CACHE_DIR=" + cache + "; ");
  REQUIRE(IsWriting(train, cache + "/tokens"));
  train.Signal(SIGTERM);
  CHECK(train.Wait() == 130);
  CHECK(Has(ReadWhole(work.path("err")), wording::kInterruptedNothingWasSaved));
  for (const auto& entry : fs::directory_iterator(cache + "/tokens")) {
    CHECK(entry.path().extension() == ".lock");
  }
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

const std::string kPreload = "LD_PRELOAD=" + BinaryPath("fake_io/libfake_io.so");

// zeroplan that waits before its `at`th call of this name below `folder`, until it is let go on.
class Held {
 public:
  Held(const std::string& arguments, const Workspace& work, const std::string& folder,
       const char* call, int at, const std::string& environment = "")
      : file_(work.path("held")),
        run_(arguments, work.path("err"),
             "export " + environment + " FAKE_IO_UNDER=" + folder + " FAKE_IO_HOLD=" + call +
                 " FAKE_IO_HOLD_AT=" + std::to_string(at) + " FAKE_IO_HOLD_FILE=" + file_ + " " +
                 kPreload + "; ") {
    while (!fs::exists(file_) && !HasEnded(run_.pid())) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    INFO(ReadWhole(work.path("err")));
    REQUIRE(fs::exists(file_));
  }
  void Signal(int signal) const { run_.Signal(signal); }
  int GoOn() const {
    fs::remove(file_);
    return run_.Wait();
  }

 private:
  std::string file_;
  Started run_;
};

TEST_CASE("merge: a stop leaves nothing, and a kill at its end nothing that is taken for a model") {
  const Workspace work;
  const std::string base = work.path("base"), lora = work.path("lora"), out = work.path("out");
  REQUIRE(RunZeroplan(work.Train("--save " + base, 2)).exit_code == 0);
  std::ofstream(base + "/tokenizer_config.json") << R"({"eos_token":"."})";
  REQUIRE(RunZeroplan("train --model " + base + " --data " + SourcePath("LICENSE") +
                      " --threads 1 --steps 2 --method lora --save " + lora)
              .exit_code == 0);
  const std::string merge = "merge " + lora + " -o ";
  REQUIRE(RunZeroplan(merge + work.path("whole")).exit_code == 0);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    CAPTURE(signal);
    const Held run(merge + out, work, out, "pwrite", 0);
    CHECK(Has(fmt::format("{}", fmt::join(NamesIn(out), " ")), ".tmp"));
    run.Signal(signal);
    if (signal == SIGHUP) run.Signal(signal);  // as a terminal sends it
    CHECK(run.GoOn() == 130);
    CHECK(Has(ReadWhole(work.path("err")), wording::kInterruptedNothingWasSaved));
    CHECK(NamesIn(out).empty());
  }
  // Killed once some of it has its name: no reader takes it, and the next merge replaces it.
  const size_t files = NamesIn(work.path("whole")).size();
  REQUIRE(files >= 3);
  for (size_t named = 1; named < files; ++named) {
    CAPTURE(named);
    fs::remove_all(out);
    const Held run(merge + out, work, out, "rename", static_cast<int>(named));
    run.Signal(SIGKILL);
    CHECK(run.GoOn() == -1);
    CHECK(NamesIn(out).size() == files);
    CHECK_FALSE(fs::exists(out + "/config.json"));
    CHECK(RunZeroplan("generate " + out).exit_code == 2);
    CHECK(RunZeroplan(merge + out).exit_code == 0);
    CHECK(NamesIn(out) == NamesIn(work.path("whole")));
    for (const std::string& name : NamesIn(out)) {
      CHECK(ReadWhole(out + "/" + name) == ReadWhole(work.path("whole/" + name)));
    }
  }
  // Somebody else's files are not.
  fs::remove(out + "/config.json");
  CHECK(RunZeroplan(merge + out).exit_code == 2);
}

TEST_CASE("plan: a signal while it writes leaves no temporary file, and why writes none") {
  const Workspace work;
  const std::string out = work.path("out");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(signal);
    fs::remove_all(out);
    fs::create_directory(out);
    const Held run("plan --model gpt2 --hw a10 --quick --plan-out " + out + "/plan.json", work, out,
                   "fsync", 0);
    run.Signal(signal);
    CHECK(run.GoOn() == -1);
    CHECK(NamesIn(out) == std::vector<std::string>{"plan.json"});
  }
  const RunResult why =
      RunZeroplan("why " + SourcePath("tests/fixtures/why/deepspeed_backward.log") + " --hw a10",
                  "TMPDIR=/no/such/folder");
  CHECK(Has(why.out, wording::kItRanOutOfGpu));
  CHECK(Lacks(why.err, "/no/such"));
}

TEST_CASE("where no thread can be started work goes on with fewer, or the limit is named") {
  const Workspace work;
  const auto with_threads = [&](const std::string& arguments, int threads) {
    return RunZeroplan(
        arguments, "ZEROPLAN_NO_DETECT=1 FAKE_THREADS=" + std::to_string(threads) + " " + kPreload);
  };
  const std::string plan = "plan --model gpt2 --hw dgx-a100-80gb --gpus 2 --format json";
  const auto found = [](const RunResult& run) {
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    auto json = nlohmann::json::parse(run.out);
    json["search"].erase("seconds");
    return json.dump();
  };
  CHECK(found(with_threads(plan, 0)) == found(RunZeroplan(plan)));

  const std::string model = MakeTokenizerModel(work.path("model"));
  const std::string tokenize = "data tokenize " + SourcePath("LICENSE") + " " +
                               SourcePath("CONTRIBUTING.md") + " --threads 4 --tokenizer " + model +
                               " -o ";
  REQUIRE(RunZeroplan(tokenize + work.path("all.bin")).exit_code == 0);
  CHECK(with_threads(tokenize + work.path("one.bin"), 0).exit_code == 0);
  CHECK(ReadWhole(work.path("one.bin")) == ReadWhole(work.path("all.bin")));

  const std::string train = "train --model " + work.path("config.json") + " --data " +
                            SourcePath("LICENSE") + " --gpus 2 --stage 2 --threads 3 --steps 4 " +
                            "--save-every 2 --save ";
  REQUIRE(RunZeroplan(train + work.path("usual")).exit_code == 0);
  for (const std::string async : {"on", "off"}) {
    CAPTURE(async);
    bool went_on = false, with_fewer = false;
    for (int threads = 0; !went_on; ++threads) {
      CAPTURE(threads);
      REQUIRE(threads < 30);
      const std::string out = work.path(async + std::to_string(threads));
      const RunResult run = with_threads(train + out + " --async-save " + async, threads);
      INFO(run.err);
      CHECK(Lacks(run.err, "bug"));
      if (run.exit_code == 0) {
        CHECK(ReadWhole(out + "/model.safetensors") ==
              ReadWhole(work.path("usual/model.safetensors")));
        const bool fewer = run.err.find(" of 3 threads compute") != std::string::npos;
        with_fewer = with_fewer || fewer;
        went_on = !fewer;
        continue;
      }
      CHECK(run.exit_code == 4);
      CHECK(Has(run.err, wording::kCannotStartThreadFor));
      CHECK(Has(run.err, "ulimit -u"));
    }
    CHECK(with_fewer == (async == "off"));  // the writer's thread is the last
  }
}

TEST_CASE("a small limit of the stack changes nothing") {
  const Workspace work;
  const std::string model = MakeTokenizerModel(work.path("model"));
  const std::string commands[] = {
      "estimate --model gpt2 --hw a10",
      "plan --model gpt2 --hw a10 --quick",
      "data tokenize " + SourcePath("LICENSE") + " --tokenizer " + model + " -o " +
          work.path("small.bin"),
      work.Train("--gpus 2 --stage 3 --save " + work.path("out"), 2),
      "generate " + work.path("out") + " --tokens 3",
  };
  for (const std::string& command : commands) {
    CAPTURE(command);
    const RunResult run = RunZeroplan(command, "ulimit -s 64; ZEROPLAN_NO_DETECT=1");
    CAPTURE(run.err);
    CHECK(run.exit_code == 0);
  }
  // Signals reach the thread that runs it.
  const Started run(work.Train("--metrics " + work.path("m.jsonl"), kForEver), work.path("err"),
                    "ulimit -s 64; ");
  REQUIRE(HasSteps(run.pid(), work.path("m.jsonl")));
  run.Signal(SIGTERM);
  CHECK(run.Wait() == 130);
  CHECK(Has(RunZeroplan("plan --model gpt2 --hw a10",
                        "ulimit -s 64; ZEROPLAN_NO_DETECT=1 FAKE_THREADS=0 " + kPreload)
                .err,
            "zeroplan: ulimit -s leaves 65536 bytes of stack"));
}

TEST_CASE("train: with nohup a hang-up changes nothing") {
  const Workspace work;
  const Started run(work.Train("--metrics " + work.path("m.jsonl"), 500), work.path("err"),
                    "trap '' HUP; ");
  REQUIRE(HasSteps(run.pid(), work.path("m.jsonl")));
  run.Signal(SIGHUP);
  CHECK(run.Wait() == 0);
}

TEST_CASE("train: data that is cut during the run ends it with the file's name") {
  const Workspace work;
  const std::string data = work.path("data.txt");
  std::ofstream(data) << std::string(3'000'000, 'x');
  const Started run("train --model " + work.path("config.json") + " --data " + data +
                        " --threads 1 --steps 10000000 --metrics " + work.path("m.jsonl"),
                    work.path("err"));
  REQUIRE(HasSteps(run.pid(), work.path("m.jsonl")));
  fs::resize_file(data, 5000);
  CHECK(run.Wait() == 4);
  CHECK(Has(ReadWhole(work.path("err")), "zeroplan: " + data + ": was cut short"));
}

TEST_CASE("train: files past the limit are failed writes, not a signal") {
  const Workspace work;
  const Started metrics(work.Train("--metrics " + work.path("m.jsonl")), work.path("err"),
                        "ulimit -f 1; ");
  CHECK(metrics.Wait() == 0);
  CHECK(Has(ReadWhole(work.path("err")), "--metrics "));
  const Started save(work.Train("--save " + work.path("out")), work.path("err2"), "ulimit -f 16; ");
  CHECK(save.Wait() == 2);
  CHECK(Has(ReadWhole(work.path("err2")), "ulimit -f"));
}

TEST_CASE("train: pipes and devices in the place of files are refused at once") {
  const Workspace work;
  const std::string out = work.path("out"), pipe = work.path("pipe");
  REQUIRE(RunZeroplan(work.Train("--save " + out, 5)).exit_code == 0);
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  const auto refused = [&](const std::string& arguments, const char* why) {
    const RunResult run = RunZeroplan(arguments);
    CHECK(run.exit_code == 2);
    return Has(run.err, why);
  };
  const std::string data = " --data " + SourcePath("LICENSE");
  CHECK(refused("train --model " + pipe + data, "is a pipe or a device"));
  CHECK(refused("train --config " + pipe + " --model " + work.path("config.json") + data,
                "is a pipe or a device"));
  CHECK(refused("train --data " + pipe + " --model " + work.path("config.json"),
                "not a regular file"));
  CHECK(
      refused("train --data /dev/zero --model " + work.path("config.json"), "not a regular file"));
  const fs::path step = fs::path(out) / "checkpoints/step-00000005";
  const std::string verify = "checkpoint verify " + out;
  for (const fs::path& file :
       {step / "rank-0000.safetensors", step / "meta.json", fs::path(out) / "checkpoints/latest"}) {
    CAPTURE(file.string());
    fs::rename(file, work.path("kept"));
    REQUIRE(mkfifo(file.c_str(), 0600) == 0);
    const RunResult run = RunZeroplan(verify);
    CHECK(run.exit_code == 2);
    CHECK((run.out.find("not a regular file") != std::string::npos ||
           run.out.find("is a pipe or a device") != std::string::npos));
    CHECK(refused(work.Train("--resume --strict-resume --save " + out, 6), file.c_str()));
    fs::remove(file);
    fs::rename(work.path("kept"), file);
  }
  CHECK(RunZeroplan(verify).exit_code == 0);
}

TEST_CASE("generate: weights that are no numbers are an error") {
  const Workspace work;
  const std::string out = work.path("out");
  REQUIRE(RunZeroplan(work.Train("--save " + out, 2)).exit_code == 0);
  REQUIRE(RunZeroplan("generate " + out + " --tokens 3").exit_code == 0);
  // A NaN as the last value: of the final norm's bias.
  std::fstream weights(out + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  weights.seekp(-4, std::ios::end);
  weights.write("\xff\xff\xff\x7f", 4);
  weights.close();
  const RunResult run = RunZeroplan("generate " + out + " --tokens 3");
  CHECK(run.exit_code == 2);
  CHECK(Has(run.err, out + ": 256 of 256 tokens have no finite score"));
}

}  // namespace
}  // namespace zeroplan
