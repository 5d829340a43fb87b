// What the system may send a run: signals, files that shrink, readers that go away.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/cli/run_binary.h"
#include "tests/cli/tokenizer_model.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/run_metrics.h"

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
  CHECK(Has(ReadWhole(work.path("err")), "saved, continue with --resume"));
  CHECK(RunZeroplan("checkpoint verify " + work.path("out")).exit_code == 0);
}

TEST_CASE("train: a limit of processor time stops the run after its step, saved") {
  const Workspace work;
  const std::string arguments =
      work.Train("--save " + work.path("out") + " --metrics " + work.path("m.jsonl"), kForEver);
  const Started run(arguments, work.path("err"), "ulimit -S -t 2; ");
  CHECK(run.Wait() == 130);
  CHECK(Has(ReadWhole(work.path("err")), "saved, continue with --resume"));
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
  for (const int signal : {SIGTERM, SIGINT}) {
    const Started run(
        "data tokenize " + text + " --threads 1 --tokenizer " + model + " -o " + out + "/text.bin",
        work.path("err"));
    REQUIRE(IsWriting(run, out));
    run.Signal(signal);
    CHECK(run.Wait() == 130);
    CHECK(Has(ReadWhole(work.path("err")), "interrupted; nothing was saved"));
    CHECK(fs::is_empty(out));
  }
  const Started train("train --model " + model + " --data " + text + " --threads 1 --steps 3 " +
                          "--save " + work.path("run"),
                      work.path("err"), "export ZEROPLAN_CACHE_DIR=" + cache + "; ");
  REQUIRE(IsWriting(train, cache + "/tokens"));
  train.Signal(SIGTERM);
  CHECK(train.Wait() == 130);
  CHECK(Has(ReadWhole(work.path("err")), "interrupted; nothing was saved"));
  for (const auto& entry : fs::directory_iterator(cache + "/tokens")) {
    CHECK(entry.path().extension() == ".lock");
  }
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
