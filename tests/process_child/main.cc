// A program for tests of processes: starts its own ranks as `zeroplan train` does, or is one.
//
//   zeroplan_process_child launch RANKS PATIENCE_MS rank BEHAVIOUR [RANK [LIMIT_MS]]
//   zeroplan_process_child relaunch RANKS RESTARTS rank BEHAVIOUR [RANK]
//   zeroplan_process_child hosts HOSTS SHELL START_MS rank BEHAVIOUR [RANK]    SHELL in place of
//   ssh
//
// Each behaviour is one way for rank RANK to end and for the others to hear of it. Limits are so
// long that nobody runs into them, but for those that are named.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/stop_signals.h"
#include "executor/process/host_launcher.h"
#include "executor/process/launch_environment.h"
#include "executor/process/launcher.h"
#include "executor/process/tcp_group.h"
#include "tests/patience.h"

namespace zeroplan {
namespace {

using std::chrono::milliseconds;

[[noreturn]] void SleepForEver() {
  for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
}

void Collectives(TcpGroup& group) {
  for (int round = 0; round < 50; ++round) {
    std::vector<std::byte> bytes(1000);
    if (group.rank() == 0) bytes.assign(bytes.size(), static_cast<std::byte>(round));
    group.Broadcast(bytes);
    for (const std::byte byte : bytes) ZEROPLAN_CHECK(byte == static_cast<std::byte>(round));
    const std::vector<std::string> texts =
        group.AllGather(std::string(static_cast<size_t>(group.rank()), 'x'));
    ZEROPLAN_CHECK(texts.size() == static_cast<size_t>(group.world_size()));
    for (size_t r = 0; r < texts.size(); ++r) ZEROPLAN_CHECK(texts[r].size() == r);
    group.Barrier();
  }
  fmt::print(stderr, "ok\n");
}

using Clock = std::chrono::steady_clock;  // one for all processes of a host

double MsSince(int64_t begin) {
  const auto time = Clock::now().time_since_epoch() - Clock::duration(begin);
  return std::chrono::duration<double, std::milli>(time).count();
}

// How long many ranks take to meet, to gather 1 KB of each, and to hear of a failure.
int Swarm(TcpGroup& group) {
  const char* started = std::getenv("SWARM_STARTED");
  group.Barrier();
  if (group.rank() == 0) {
    fmt::print(stderr, "met {} ms\n", MsSince(started == nullptr ? 0 : std::atoll(started)));
  }
  for (int round = 0; round < 3; ++round) {
    group.Barrier();
    const int64_t begin = Clock::now().time_since_epoch().count();
    const auto texts = group.AllGather(std::string(1024, static_cast<char>('a' + round)));
    if (group.rank() == 0) fmt::print(stderr, "gathered {} ms\n", MsSince(begin));
    ZEROPLAN_CHECK(texts.size() == static_cast<size_t>(group.world_size()));
    for (const std::string& text : texts) ZEROPLAN_CHECK(text.size() == 1024);
  }
  group.Barrier();
  if (group.rank() == group.world_size() - 1) {
    group.FailWith(ExitCode::kDiverged, fmt::format("{}", Clock::now().time_since_epoch().count()));
  }
  try {
    group.Barrier();
  } catch (const Error& error) {
    const std::string text = error.what();
    fmt::print(stderr, "heard {} ms\n", MsSince(std::atoll(text.c_str() + text.find(": ") + 2)));
    return static_cast<int>(error.code());
  }
  return 0;
}

int RunRank(const std::string& behaviour, int chosen, milliseconds limit, bool resumes) {
  const auto place = PlaceFromEnvironment([](const char* name) { return std::getenv(name); });
  ZEROPLAN_CHECK(place.has_value(), "no launcher in the environment");
  const bool me = place->rank == chosen;
  const char* restart = std::getenv(kRestartVariable);
  const int starts = restart == nullptr ? 0 : std::atoi(restart);
  if (behaviour == "die-early" && me) raise(SIGKILL);
  TcpGroupOptions options;
  options.meet_limit = options.silence_limit = options.collective_limit = kNoLimit;
  options.verdict_limit = options.leave_limit = kNoLimit;
  if (behaviour == "stuck") options.exit_when_stuck = milliseconds(500);
  if (behaviour == "freeze") options.silence_limit = limit;
  options.stop_requested = StopRequested;
  const InterruptScope interrupts;
  if (behaviour == "ending" && me) signal(SIGTERM, SIG_DFL);  // as a rank that is through
  if (behaviour == "ending" || (behaviour == "never-comes" && me)) {
    fmt::print(stderr, "ready\n");
    while (!StopRequested()) std::this_thread::sleep_for(milliseconds(10));
    return static_cast<int>(ExitCode::kInterrupted);
  }
  if (behaviour == "never-comes") fmt::print(stderr, "meeting\n");
  TcpGroup group(*place, options);
  if (behaviour == "collectives") {
    Collectives(group);
    return 0;
  }
  if (behaviour == "swarm") return Swarm(group);
  group.Barrier();
  if (behaviour == "stop") {
    fmt::print(stderr, "ready\n");
    while (!StopRequested()) std::this_thread::sleep_for(milliseconds(10));
    std::this_thread::sleep_for(milliseconds(300));  // a second signal would end it here
    fmt::print(stderr, "saved\n");
    group.Barrier();
    return static_cast<int>(ExitCode::kInterrupted);
  }
  if (me && (behaviour == "die" || behaviour == "stuck")) raise(SIGKILL);
  if (me && behaviour == "freeze") raise(SIGSTOP);
  if (me && behaviour == "fail") {
    group.FailWith(ExitCode::kDiverged, "the loss is no number");
    return static_cast<int>(ExitCode::kDiverged);
  }
  if (behaviour == "dies-twice") {
    if (me && starts < 2) raise(SIGKILL);
    group.Barrier();
    fmt::print(stderr, "done{}\n", resumes ? " resumed" : "");
    return 0;
  }
  if (behaviour == "same-words") {  // as when rank 0 is gone
    fmt::print(stderr, "zeroplan: rank 0: lost\nzeroplan: by rank {}\n", place->rank);
    return 0;
  }
  if (me && behaviour == "leave") return 0;
  if (behaviour == "wait") {  // until another fails
    fmt::print(stderr, "ready\n");
    while (!group.failed()) std::this_thread::sleep_for(milliseconds(10));
  }
  if (behaviour == "deaf" || behaviour == "asleep") {  // its launcher has to end it
    if (me) _exit(static_cast<int>(ExitCode::kUsage));
    if (behaviour == "asleep") signal(SIGTERM, SIG_DFL);
    SleepForEver();
  }
  if (behaviour == "stuck") SleepForEver();
  group.Barrier();
  return 0;
}

int Run(const std::vector<std::string>& words) {
  try {
    if (IsHostAgent()) {
      LaunchOptions options;
      options.arguments = words;
      options.patience = options.kill_after = options.settle_after = kNoLimit;
      return RunHostAgent(options, [](int ranks) {
        if (ranks > 4) ThrowUsage("--hosts: {} ranks, and this host has 4 GPUs", ranks);
      });
    }
    const std::string now = fmt::format("{}", Clock::now().time_since_epoch().count());
    setenv("SWARM_STARTED", now.c_str(), /*overwrite=*/0);
    if (words.size() > 4 && words[1] == "launch") {
      LaunchOptions options;
      options.ranks = std::stoi(words[2]);
      options.patience = milliseconds(std::stoi(words[3]));
      options.kill_after = std::min(options.patience, milliseconds(1'000));
      options.settle_after = kNoLimit;
      options.arguments = {words[0]};
      options.arguments.insert(options.arguments.end(), words.begin() + 4, words.end());
      return Launch(options).exit_code;
    }
    if (words.size() > 5 && words[1] == "relaunch") {
      LaunchOptions options;
      options.ranks = std::stoi(words[2]);
      // Who is deaf has to be ended.
      options.patience = options.kill_after = words[5] == "deaf" ? milliseconds(1'000) : kNoLimit;
      options.settle_after = kNoLimit;
      options.arguments = {words[0]};
      options.arguments.insert(options.arguments.end(), words.begin() + 4, words.end());
      return LaunchWithRestarts(options, {std::stoi(words[3]), [] { return "step 7"; }});
    }
    if (words.size() > 6 && words[1] == "hosts") {
      LaunchOptions options;
      options.hosts = RemoteHosts{
          ParseHosts(words[2], "--hosts"), {words[3]}, milliseconds(std::stoi(words[4]))};
      options.patience = options.kill_after = options.settle_after = kNoLimit;
      options.ranks = RanksOf(options.hosts->hosts);
      options.program = std::filesystem::read_symlink("/proc/self/exe").string();
      options.arguments = {words[0]};
      options.arguments.insert(options.arguments.end(), words.begin() + 5, words.end());
      return Launch(options).exit_code;
    }
    ZEROPLAN_CHECK(words.size() > 2 && words[1] == "rank", "usage: see main.cc");
    const bool resumes = words.back() == "--resume";
    const size_t said = words.size() - (resumes ? 1 : 0);
    return RunRank(words[2], said > 3 ? std::stoi(words[3]) : -1,
                   said > 4 ? milliseconds(std::stoi(words[4])) : kNoLimit, resumes);
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) { return zeroplan::Run({argv, argv + argc}); }
