// train --watch and --monitor: what is shown, on terminals of any size, and that the terminal comes
// back whatever ends the run.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/ioctl.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "cli/run/train/watch_view.h"
#include "machine/machine_load.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/screen.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

constexpr int kEndless = 10'000'000;  // steps

WatchState SomeState() {
  WatchState state;
  state.model = "gpt2";
  state.ranks = 2;
  state.step = 5000;
  state.steps = 10'000;
  state.elapsed_seconds = 61;
  state.left_seconds = 3700;
  for (int i = 0; i < 5000; ++i) {
    state.losses.Add(4 + 4 * std::exp(-i / 500.0));
    state.speeds.Add(1000 + i % 7);
  }
  state.parts = {{"step 5000/10000", 0}, {"loss 4.0002", 0}, {"norm 1.0", 2}};
  state.planned_gpu_bytes = 60'000'000'000;
  state.planned_host_bytes = 10'000'000'000;
  GpuLoad gpu;
  gpu.used_bytes = 40'000'000'000;
  gpu.memory_bytes = 80'000'000'000;
  gpu.watts = 412;
  gpu.limit_watts = 700;
  gpu.clock_hz = 1.755e9;
  gpu.busy_share = 0.98;
  gpu.pcie_sent = 12.1e9;
  gpu.pcie_received = 3.2e9;
  state.load.gpus = {gpu, gpu};
  state.load.host = {256'000'000'000, 200'000'000'000, 9'000'000'000, 12.5, 10.5, 32};
  return state;
}

TEST_CASE("the view fits a terminal of any size") {
  const WatchState state = SomeState();
  for (size_t columns = 1; columns < 160; columns += 3) {
    for (size_t rows = 1; rows < 60; rows += 4) {
      CAPTURE(columns);
      CAPTURE(rows);
      const auto lines = WatchLines(state, columns, rows, {"warning: one", "two"});
      CHECK(lines.size() <= rows);
      if (columns < 60) continue;  // less is cut by FullScreen::Draw
      for (const std::string& line : lines) CHECK(line.size() <= columns);
    }
  }
}

TEST_CASE("the view holds memory against the plan, and draws the loss") {
  const auto lines = WatchLines(SomeState(), 79, 24, {"warning: one"});
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  CAPTURE(text);
  for (const char* said :
       {"gpt2 on 2 ranks", "5000 of 10000 steps", "elapsed 1m01s", "ETA 1h01m", "50 %",
        "loss 4.0002", "loss, steps 1 to 5000", "40.0 GB of 80.0 GB  planned 60.0 GB", "GPU 1 busy",
        "412 of 700 W", "1755 MHz", "PCIe 12.1 GB/s out, 3.2 in",
        "56.0 GB of 256 GB  this process 9.00 GB  planned 10.0 GB", "12.5 of 32 cores",
        "warning: one"}) {
    CHECK(Has(text, said));
  }
  // Half of the memory is full, and the mark stands at three quarters.
  const std::string bar = text.substr(text.find("GPU 0 mem"));
  const size_t begin = bar.find('['), end = bar.find(']'), mark = bar.find('|');
  const auto width = static_cast<double>(end - begin - 1);
  CHECK(static_cast<double>(std::count(bar.begin(), bar.begin() + static_cast<ptrdiff_t>(end),
                                       '#')) == doctest::Approx(width / 2).epsilon(0.1));
  CHECK(static_cast<double>(mark - begin - 1) == doctest::Approx(width * 0.75).epsilon(0.1));
  // The curve falls: its first point stands in its first row, its last in its last.
  const size_t curve = text.find("loss, steps");
  const size_t first = text.find('\n', curve) + 1;
  CHECK(text[first + 10] == '*');
  CHECK(text[first + 78] == ' ');
}

TEST_CASE("a series keeps its shape in bounded memory") {
  Series series;
  CHECK(series.empty());
  for (int i = 0; i < 100'000; ++i) series.Add(i);
  series.Add(std::nan(""));  // counts in nothing
  const std::vector<double> means = series.Means(10);
  REQUIRE(means.size() == 10);
  for (size_t i = 0; i < means.size(); ++i) {
    CHECK(means[i] == doctest::Approx(1e4 * (static_cast<double>(i) + 0.5)).epsilon(0.02));
  }
  CHECK(series.Means(Series::kMost * 2).size() <= Series::kMost);
  Series two;
  two.Add(1);
  two.Add(3);
  CHECK(two.Means(10) == std::vector<double>{1, 3});
  CHECK(two.Means(1) == std::vector<double>{2});
}

TEST_CASE("what the machine is doing: the driver's numbers, and /proc") {
  // The stand-in is the library of that name from here on; it has GPUs as long as FAKE_GPUS is set.
  const std::string driver = BinaryPath("fake_nvml/libnvidia-ml.so.1");
  REQUIRE(dlopen(driver.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr);
  const char* off = std::getenv("ZEROPLAN_NO_DETECT");
  const std::string before = off == nullptr ? "" : off;
  unsetenv("ZEROPLAN_NO_DETECT");
  const std::pair<const char*, const char*> said[] = {{"FAKE_GPUS", "4"},
                                                      {"FAKE_BUSY", "97"},
                                                      {"FAKE_POWER_MW", "412500"},
                                                      {"FAKE_LIMIT_MW", "450000"},
                                                      {"FAKE_CLOCK_MHZ", "2520"}};
  for (const auto& [name, value] : said) setenv(name, value, 1);
  const auto gpus = [](int most) { return MachineMeter(most).Look().gpus.size(); };
  CHECK(gpus(2) == 2);
  CHECK(gpus(8) == 4);
  CHECK(gpus(0) == 0);
  setenv("CUDA_VISIBLE_DEVICES", "3,1,-1,0", 1);
  CHECK(gpus(8) == 2);
  unsetenv("CUDA_VISIBLE_DEVICES");
  MachineMeter meter(1);
  volatile double work = 0;
  for (const clock_t begin = clock(); clock() - begin < CLOCKS_PER_SEC / 5;) work = work + 1;
  const MachineLoad load = meter.Look();
  REQUIRE(load.gpus.size() == 1);
  const GpuLoad& gpu = load.gpus[0];
  CHECK(gpu.name == "NVIDIA GeForce RTX 4090");
  CHECK(gpu.memory_bytes == (24564ull << 20));
  CHECK(gpu.watts.value() == doctest::Approx(412.5));
  CHECK(gpu.limit_watts.value() == doctest::Approx(450));
  CHECK(gpu.clock_hz.value() == doctest::Approx(2.52e9));
  CHECK(gpu.busy_share.value() == doctest::Approx(0.97));
  CHECK_FALSE(gpu.pcie_sent.has_value());  // this driver does not say
  CHECK(load.host.memory_bytes > load.host.available_bytes);
  CHECK(load.host.process_bytes > 1'000'000);
  CHECK(load.host.process_cores > 0.01);
  CHECK(load.host.busy_cores >= 0.01);
  CHECK(load.host.busy_cores <= load.host.cores * 1.2);
  const std::string line = JoinParts(LoadParts(load), SIZE_MAX);
  CHECK(Has(line, wording::kMhzBusyHost));
  CHECK(Lacks(line, "PCIe"));
  setenv("FAKE_PCIE_KB", "12100000", 1);
  CHECK(meter.Look().gpus[0].pcie_sent.value() == doctest::Approx(12.1e9));
  unsetenv("FAKE_PCIE_KB");
  setenv("ZEROPLAN_NO_DETECT", "1", 1);
  CHECK(gpus(8) == 0);
  for (const auto& [name, value] : said) unsetenv(name);
  if (before.empty()) unsetenv("ZEROPLAN_NO_DETECT");
}

TerminalRun Watch(const Workspace& work, const std::string& more, int steps,
                  const std::function<void(pid_t, int, TerminalRun&)>& seen = nullptr) {
  return RunInTerminal(
      "env ZEROPLAN_NO_DETECT=1 " + BinaryPath("zeroplan") + " " + work.Train(more, steps), 80, 24,
      seen);
}

void CheckRestored(const TerminalRun& run) {
  CAPTURE(run.text.substr(run.text.size() - std::min<size_t>(run.text.size(), 2000)));
  CHECK(run.screen.entered == 1);
  CHECK(run.screen.left == 1);
  CHECK_FALSE(run.screen.cursor_hidden);
  CHECK(run.screen.unknown() == "");
  CHECK(run.screen.overflows().empty());
}

TEST_CASE("--watch shows the run, and gives the terminal back at its end") {
  const Workspace work;
  const TerminalRun run = Watch(work, "--watch --save " + work.path("out"), 300);
  CheckRestored(run);
  CHECK(run.exit_code == 0);
  CHECK(Has(run.screen.full_text, wording::kZeroplanTrainZeroplanTest));
  CHECK(Has(run.screen.full_text, "host busy"));
  CHECK(run.screen.widest <= 79);
  CHECK(run.screen.lowest < 24);
  // What was held back stands on the screen now.
  std::string after;
  for (const std::string& line : run.screen.lines()) after += line + "\n";
  CAPTURE(after);
  CHECK(Has(after, "saved " + work.path("out")));
  CHECK(Has(after, "300 steps, median"));
}

TEST_CASE("--watch gives the terminal back to whatever ends the run") {
  struct End {
    int signal, times, exit_code, killed_by;
  };
  for (const End& end :
       {End{SIGINT, 1, 130, 0}, End{SIGTERM, 1, 130, 0}, End{SIGINT, 2, -1, SIGINT},
        End{SIGSEGV, 1, -1, SIGSEGV}, End{SIGABRT, 1, -1, SIGABRT}, End{SIGQUIT, 1, -1, SIGQUIT}}) {
    CAPTURE(end.signal);
    CAPTURE(end.times);
    const Workspace work;
    bool sent = false;
    const TerminalRun run =
        Watch(work, "--watch --save " + work.path("out"), kEndless,
              [&](pid_t pid, int, TerminalRun& so_far) {
                if (sent || so_far.screen.full_text.find("loss, steps") == std::string::npos)
                  return;
                sent = true;
                for (int i = 0; i < end.times; ++i) kill(pid, end.signal);
              });
    CHECK(sent);
    CheckRestored(run);
    // Two of a kind at once may be one.
    if (end.times == 1) {
      CHECK(run.exit_code == end.exit_code);
      CHECK(run.signal == end.killed_by);
    }
  }
}

TEST_CASE("--watch gives the terminal back after an error") {
  const TerminalRun run = RunInTerminal(
      "env ZEROPLAN_NO_DETECT=1 " + BinaryPath("zeroplan") +
          " train --params 1M --seq-len 32 --lr 900 --watch --data " + SourcePath("LICENSE"),
      80, 24);
  CheckRestored(run);
  CHECK(run.exit_code == 5);
}

TEST_CASE("--watch follows the terminal's size, and lets the shell in between") {
  const Workspace work;
  int stage = 0;
  const TerminalRun run =
      Watch(work, "--watch", kEndless, [&](pid_t pid, int terminal, TerminalRun& so_far) {
        Screen& screen = so_far.screen;
        if (stage == 0 && screen.full_text.find("loss, steps") != std::string::npos) {
          winsize size{};
          size.ws_col = 50;
          size.ws_row = 12;
          ioctl(terminal, TIOCSWINSZ, &size);
          screen.full_text.clear();
          stage = 1;
        } else if (stage == 1 && screen.full_text.find("\n") != std::string::npos) {
          // From the second frame on, all of it is of the new size.
          if (screen.full_text.find('\n', screen.full_text.find('\n') + 1) == std::string::npos)
            return;
          screen.widest = screen.lowest = 0;
          screen.full_text.clear();
          stage = 2;
        } else if (stage == 2 && screen.full_text.find("host busy") != std::string::npos) {
          stage = 3;
          kill(pid, SIGTSTP);
        } else if (stage == 3 && screen.left == 1) {
          char state = 0;
          while (state != 'T') {
            std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
            std::string text;
            std::getline(stat, text);
            state = text.at(text.rfind(") ") + 2);
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
          }
          CHECK_FALSE(screen.cursor_hidden);
          stage = 4;
          kill(pid, SIGCONT);
        } else if (stage == 4 && screen.entered == 2) {
          stage = 5;
          kill(pid, SIGTERM);
        }
      });
  CHECK(stage == 5);
  CHECK(run.screen.widest <= 49);
  CHECK(run.screen.lowest < 12);
  CHECK(run.screen.left == 2);
  CHECK_FALSE(run.screen.cursor_hidden);
  CHECK(run.exit_code == 130);
}

TEST_CASE("a rank that is killed leaves the terminal as it was") {
  const Workspace work;
  int killed = 0;
  const TerminalRun run =
      Watch(work, "--watch --restarts 1 --save " + work.path("out"), kEndless,
            [&](pid_t pid, int, TerminalRun& so_far) {
              if (so_far.screen.entered <= killed || so_far.screen.left < killed) return;
              ++killed;
              const std::string of = std::to_string(pid);
              std::ifstream children("/proc/" + of + "/task/" + of + "/children");
              pid_t rank = 0;
              REQUIRE(bool(children >> rank));
              kill(rank, SIGKILL);
            });
  CAPTURE(run.text);
  CHECK(killed == 2);
  CHECK(run.screen.left == 2);
  CHECK_FALSE(run.screen.cursor_hidden);
  CHECK(run.exit_code == 4);
  std::string after;
  for (const std::string& line : run.screen.lines()) after += line + " ";
  CHECK(Has(after, wording::kAllRestartsAreUsed));
}

TEST_CASE("--watch is refused where there is no terminal for it") {
  const Workspace work;
  const RunResult piped = RunZeroplan(work.Train("--watch", 2));
  CHECK(piped.exit_code == 2);
  CHECK(Has(piped.err, wording::kStderrIsNoTerminalLeave));
  const TerminalRun both = Watch(work, "--watch --no-progress", 2);
  CHECK(both.exit_code == 2);
  CHECK(both.screen.entered == 0);
  CHECK(Has(both.text, "--no-progress"));
  const TerminalRun hosts = Watch(work, "--watch --hosts a:1", 2);
  CHECK(hosts.exit_code == 2);
}

TEST_CASE("--monitor says in each line what the machine is doing") {
  const Workspace work;
  const RunResult run = RunZeroplan(work.Train("--monitor", 200));
  CAPTURE(run.err);
  CHECK(run.exit_code == 0);
  CHECK(Has(run.err, " cores\n"));
  CHECK(Has(run.err, "  host "));
  CHECK(Lacks(run.err, " MHz"));  // no GPU takes part
  CHECK(Lacks(RunZeroplan(work.Train("", 200)).err, " cores\n"));
}

}  // namespace
}  // namespace zeroplan
