#include "executor/process/host_launcher.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/shell_process.h"
#include "core/base/stop_signals.h"
#include "core/base/strings.h"
#include "core/base/terminal.h"
#include "core/base/thread.h"
#include "executor/process/connection.h"
#include "executor/process/handshake.h"
#include "executor/process/launch_environment.h"
#include "executor/process/pipe_lines.h"

extern char** environ;

namespace zeroplan {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kHostTurn(200);
constexpr milliseconds kShellOutputLimit(1'000);  // for a pipe that outlives its shell
constexpr milliseconds kAgentMargin(10'000);      // beyond an agent's own limits for its ranks

struct Host {
  HostShare share;
  int first_rank = 0;
  pid_t pid = -1;  // of the remote shell
  UniqueFd input;  // a socket: its stdin
  PipeLines output, errors;
  bool ready = false;
  std::optional<LaunchEnd> end;  // as its agent says
  std::optional<int> status;     // of the remote shell
};

// "rank 3: " at a line's begin; 0 where there is none.
size_t RankPrefix(std::string_view line) {
  constexpr std::string_view kRank = "rank ";
  if (!line.starts_with(kRank)) return 0;
  const size_t end = line.find_first_not_of("0123456789", kRank.size());
  if (end == std::string_view::npos || end == kRank.size()) return 0;
  return line.substr(end).starts_with(": ") ? end + 2 : 0;
}

class Hosts {
 public:
  explicit Hosts(const LaunchOptions& options) : options_(options), remote_(*options.hosts) {
    const std::string secret = RandomBytes(32);
    secret_ = BytesToHex(secret.data(), secret.size());
    int first_rank = 0;
    hosts_.reserve(remote_.hosts.size());
    try {
      for (const HostShare& share : remote_.hosts) {
        Start(share, first_rank);
        first_rank += share.ranks;
      }
    } catch (...) {
      KillAll();
      throw;
    }
    ZEROPLAN_CHECK(first_rank == options.ranks, "{} ranks on hosts of {}", options.ranks,
                   first_rank);
  }
  ~Hosts() { KillAll(); }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  LaunchEnd Run() {
    const auto begin = Clock::now();
    while (!AllReady()) {
      Turn();
      if (stops_ > 0) {
        return {.exit_code = static_cast<int>(ExitCode::kInterrupted), .stopped = true};
      }
      if (const Host* host = FirstEnded()) return EndedBeforeTheStart(*host);
      if (Clock::now() - begin > remote_.start_limit) return NotReady();
    }
    Say("zeroplan: {} ranks on {} hosts\n", options_.ranks, hosts_.size());
    for (Host& host : hosts_) {
      Tell(host, fmt::format("start {} {}\n", RankZeroAddress(), port_));
    }
    Clock::time_point all_ended;
    for (;;) {
      Turn();
      const auto now = Clock::now();
      EndStragglers(now);
      if (!AllEnded()) continue;
      if (all_ended == Clock::time_point()) all_ended = now;
      if (Silent() || now - all_ended > kShellOutputLimit) return Result();
    }
  }

 private:
  std::string RankZeroAddress() const {
    const char* given = std::getenv("MASTER_ADDR");
    return given != nullptr && *given != '\0' ? given : remote_.hosts.front().address();
  }

  // What a host's shell runs: the agent, in this folder, with the variables that a run depends on.
  std::string CommandFor(const HostShare& share, int first_rank) const {
    // Not "env": the shell's PATH may name the folder that it has gone to.
    std::vector<std::string> words = {"/usr/bin/env"};
    for (char** at = environ; *at != nullptr; ++at) {
      const std::string_view entry = *at;
      constexpr std::array<std::string_view, 6> kKept = {
          "NCCL_", "GLOO_", "UCX_", "ZEROPLAN_", "MASTER_PORT=", "LD_LIBRARY_PATH="};
      // The run has a secret of its own, and the file may be on this host alone.
      if (entry.starts_with("ZEROPLAN_SECRET_FILE=")) continue;
      if (std::any_of(kKept.begin(), kKept.end(),
                      [&](std::string_view prefix) { return entry.starts_with(prefix); })) {
        words.emplace_back(entry);
      }
    }
    for (const auto& [name, value] : options_.environment) {
      words.push_back(fmt::format("{}={}", name, value));
    }
    words.push_back(fmt::format("{}={} {} {} {}", kHostPartVariable, first_rank, share.ranks,
                                options_.ranks, RankZeroAddress()));
    words.push_back(options_.program);
    words.insert(words.end(), options_.arguments.begin() + 1, options_.arguments.end());
    const std::string folder = std::filesystem::current_path().string();
    return ShellCommand({"cd", folder}) + " && exec " + ShellCommand(words);
  }

  void Start(const HostShare& share, int first_rank) {
    std::vector<std::string> words = remote_.remote_shell;
    words.push_back(share.name);
    words.push_back(CommandFor(share, first_rank));
    const std::string program = FindProgram(words.front());
    const std::vector<char*> argv = ArgvOf(words);
    StdioPipes pipes = MakeStdioPipes(share.name);
    Host host;
    host.share = share;
    host.first_rank = first_rank;
    host.input = std::move(pipes.in);
    host.output = PipeLines(std::move(pipes.out));
    host.errors = PipeLines(std::move(pipes.err));
    const pid_t parent = getpid();
    const sigset_t mask = signals_.MaskOfRanks();
    host.pid = fork();
    if (host.pid < 0) ThrowRuntime("{}: cannot fork: {}", share.name, WhyNoThread(errno));
    if (host.pid == 0) {
      // Nothing but system calls. In a group of its own, so that a terminal's Ctrl-C does not end
      // the shell that has to carry the stop.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(static_cast<int>(ExitCode::kRuntime));
      setpgid(0, 0);
      pipes.Become();
      sigprocmask(SIG_SETMASK, &mask, nullptr);
      execv(program.c_str(), argv.data());
      constexpr char kMessage[] = "cannot start the remote shell (--ssh)\n";
      [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
      _exit(127);
    }
    hosts_.push_back(std::move(host));
    Tell(hosts_.back(), "secret " + secret_ + "\n");
  }

  // A few short lines in all, which the socket's buffer holds: it does not block.
  static void Tell(Host& host, const std::string& line) {
    if (host.input) send(host.input.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // Waits for something to happen, and does what it asks for.
  void Turn() {
    std::vector<pollfd> polled = {{signals_.fd(), POLLIN, 0}};
    for (const Host& host : hosts_) {
      polled.push_back({host.output.fd(), POLLIN, 0});
      polled.push_back({host.errors.fd(), POLLIN, 0});
    }
    poll(polled.data(), polled.size(), static_cast<int>(kHostTurn.count()));
    for (Host& host : hosts_) PassOn(host);
    for (const int signal : signals_.TakeStops()) {
      ++stops_;
      for (Host& host : hosts_) Tell(host, fmt::format("stop {}\n", signal));
    }
    for (Host& host : hosts_) {
      int status = 0;
      if (host.status || waitpid(host.pid, &status, WNOHANG) != host.pid) continue;
      PassOn(host);  // its last words
      host.status = status;
      if (!first_end_ && EndOf(host).exit_code != 0) first_end_ = Clock::now();
    }
  }

  void PassOn(Host& host) {
    std::string text;
    for (const std::string& line : host.output.Read()) {
      if (line.starts_with(kAgentMark)) {
        TakeAgentLine(host, line.substr(kAgentMark.size()));
      } else {
        text += line + "\n";
      }
    }
    WriteWhole(STDOUT_FILENO, text);
    for (std::string& line : host.errors.Read()) {
      if (line.ends_with('\r')) line.pop_back();  // ssh's own lines
      const size_t prefix = RankPrefix(line);
      // What ended the run is said by many in the same words: once is enough.
      const std::string said = line.substr(prefix);
      if (said.starts_with("zeroplan: ") && !last_words_.insert(said).second) continue;
      const bool from_rank = prefix > 0 || (host.first_rank == 0 && host.ready);
      Say("{}{}\n", from_rank ? "" : host.share.name + ": ", line);
    }
  }

  void TakeAgentLine(Host& host, const std::string& line) {
    int port = 0;
    if (std::sscanf(line.c_str(), "ready %d", &port) == 1) {
      host.ready = true;
      if (host.first_rank == 0) port_ = port;
    } else if (auto end = ReadLaunchEnd(line)) {
      host.end = std::move(end);
    }
  }

  template <typename... Args>
  static void Say(fmt::format_string<Args...> format, Args&&... args) {
    const std::string text = fmt::format(format, std::forward<Args>(args)...);
    WriteWhole(STDERR_FILENO, MessageFor(STDERR_FILENO, text, /*wipe=*/true));
  }

  // How a host ended. REQUIRES: its shell has.
  LaunchEnd EndOf(const Host& host) const {
    if (host.end) return *host.end;
    return {.exit_code = static_cast<int>(ExitCode::kRuntime),
            .failure = fmt::format("{}: {} {}", host.share.name, remote_.remote_shell.front(),
                                   HowEnded(*host.status)),
            .killed = true};  // what the other hosts' ranks say is on its account
  }

  LaunchEnd EndedBeforeTheStart(const Host& host) const {
    LaunchEnd end = EndOf(host);
    end.started = false;
    // An agent that refuses, having too few GPUs for example, has said why.
    if (WIFEXITED(*host.status) &&
        WEXITSTATUS(*host.status) == static_cast<int>(ExitCode::kUsage)) {
      end.exit_code = static_cast<int>(ExitCode::kUsage);
      return end;
    }
    Say("zeroplan: {}; nothing was started. To try by hand: {} {} true\n", end.failure,
        fmt::join(remote_.remote_shell, " "), host.share.name);
    return end;
  }

  LaunchEnd NotReady() const {
    std::vector<std::string> missing;
    for (const Host& host : hosts_) {
      if (!host.ready) missing.push_back(host.share.name);
    }
    LaunchEnd end;
    end.exit_code = static_cast<int>(ExitCode::kRuntime);
    end.failure =
        fmt::format("no answer from {} within {} s", fmt::join(missing, ", "),
                    std::chrono::duration_cast<std::chrono::seconds>(remote_.start_limit).count());
    end.started = false;
    Say("zeroplan: {}; nothing was started. To wait longer: {}\n", end.failure,
        NameFields("⟦rendezvous_timeout⟧"));
    return end;
  }

  bool AllReady() const {
    return std::all_of(hosts_.begin(), hosts_.end(), [](const Host& host) { return host.ready; });
  }
  const Host* FirstEnded() const {
    const auto found = std::find_if(hosts_.begin(), hosts_.end(),
                                    [](const Host& host) { return host.status.has_value(); });
    return found == hosts_.end() ? nullptr : &*found;
  }
  bool AllEnded() const {
    return std::all_of(hosts_.begin(), hosts_.end(),
                       [](const Host& host) { return host.status.has_value(); });
  }
  bool Silent() const {
    return std::none_of(hosts_.begin(), hosts_.end(),
                        [](const Host& host) { return host.output.open() || host.errors.open(); });
  }

  // Agents end their own ranks; one that does not is cut off, which ends its ranks too.
  void EndStragglers(Clock::time_point now) {
    if (!first_end_) return;
    if (now - *first_end_ < options_.patience + options_.kill_after + kAgentMargin) return;
    for (Host& host : hosts_) {
      if (!host.status) kill(-host.pid, SIGKILL);
    }
  }

  // A rank that was killed counts before those that ended on its account.
  LaunchEnd Result() const {
    std::optional<LaunchEnd> first;
    bool interrupted = false;
    for (const Host& host : hosts_) {
      const LaunchEnd end = EndOf(host);
      interrupted = interrupted || end.exit_code == static_cast<int>(ExitCode::kInterrupted);
      if (end.exit_code == 0 || end.exit_code == static_cast<int>(ExitCode::kInterrupted)) continue;
      if (!first || (end.killed && !first->killed)) first = end;
    }
    LaunchEnd end = first.value_or(LaunchEnd{});
    if (first) {
      Say("zeroplan: {}\n", end.failure);
    } else if (interrupted) {
      end.exit_code = static_cast<int>(ExitCode::kInterrupted);
    }
    end.stopped = stops_ > 0;
    return end;
  }

  void KillAll() {
    for (Host& host : hosts_) {
      if (host.status) continue;
      kill(-host.pid, SIGKILL);  // with what the shell has started
      kill(host.pid, SIGKILL);   // it may have no group of its own yet
      int status = 0;
      waitpid(host.pid, &status, 0);
      host.status = status;
    }
  }

  const LaunchOptions& options_;
  const RemoteHosts& remote_;
  std::string secret_;
  SignalFile signals_;
  std::vector<Host> hosts_;
  int port_ = 0;  // where rank 0 listens
  std::set<std::string> last_words_;
  int stops_ = 0;
  std::optional<Clock::time_point> first_end_;
};

}  // namespace

LaunchEnd LaunchOnHosts(const LaunchOptions& options) { return Hosts(options).Run(); }

namespace {

// The next line of stdin, and not a byte more: what follows are orders for Launch.
std::string ReadLine() {
  std::string line;
  for (char c = 0;;) {
    const ssize_t got = read(STDIN_FILENO, &c, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) ThrowRuntime("the launcher is gone before the ranks were started");
    if (c == '\n') return line;
    line += c;
  }
}

void WriteLine(const std::string& text) {
  WriteWhole(STDOUT_FILENO, std::string(kAgentMark) + text + "\n");
}

}  // namespace

bool IsHostAgent() {
  const char* part = std::getenv(kHostPartVariable);
  return part != nullptr && *part != '\0';
}

int RunHostAgent(LaunchOptions options, const std::function<void(int ranks)>& check) {
  const std::string text = std::getenv(kHostPartVariable);
  std::istringstream words(text);
  HostPart part;
  words >> part.first_rank >> options.ranks >> part.world_size >> part.address;
  if (!words || part.first_rank < 0 || options.ranks < 1 ||
      part.first_rank + options.ranks > part.world_size) {
    ThrowUsage("{}: '{}' in the environment is not what ⟦hosts⟧ sets; unset it", kHostPartVariable,
               text);
  }
  std::istringstream(ReadLine()) >> std::ws >> part.secret >> part.secret;  // "secret HEX"
  check(options.ranks);
  int port = 0;
  if (part.first_rank == 0) {
    const auto lookup = [](const char* name) { return std::getenv(name); };
    port = PortFromEnvironment(lookup).value_or(0);
    part.listener = Listen(part.address, part.world_size > options.ranks, port);
  }
  WriteLine(fmt::format("ready {}", port));
  std::string word;
  std::istringstream(ReadLine()) >> word >> part.address >> part.port;  // "start ADDRESS PORT"
  if (word != "start" || part.port < 1) ThrowRuntime("the launcher said '{}', not start", word);
  part.orders = STDIN_FILENO;
  options.part = &part;
  options.environment.emplace_back(kHostPartVariable, "");
  const LaunchEnd end = Launch(options);
  WriteLine(WriteLaunchEnd(end));
  return end.exit_code;
}

std::string WriteLaunchEnd(const LaunchEnd& end) {
  return fmt::format("end {} {:d} {:d} {}", end.exit_code, end.killed, end.stopped, end.failure);
}

std::optional<LaunchEnd> ReadLaunchEnd(const std::string& line) {
  std::istringstream words(line);
  std::string word;
  LaunchEnd end;
  words >> word >> end.exit_code >> end.killed >> end.stopped;
  if (!words || word != "end") return std::nullopt;
  std::getline(words >> std::ws, end.failure);
  return end;
}

}  // namespace zeroplan
