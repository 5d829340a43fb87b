#include "executor/process/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

#include "core/base/error.h"
#include "core/base/full_screen.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/stop_signals.h"
#include "core/base/terminal.h"
#include "core/base/thread.h"
#include "executor/process/connection.h"
#include "executor/process/handshake.h"
#include "executor/process/host_launcher.h"
#include "executor/process/pipe_lines.h"
#include "executor/process/star_frames.h"

extern char** environ;

namespace zeroplan {
namespace {

constexpr int kMaxRanksOfHost = 1024;

// Nothing that ssh or a shell could take for anything but a host.
bool IsHostName(std::string_view name) {
  if (name.empty() || name.front() == '-') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-@:%").find(c) != std::string_view::npos;
  });
}

// `where`: the option, or file and line.
void Add(std::string_view name, std::string_view count, const std::string& where,
         std::vector<HostShare>& hosts) {
  if (!IsHostName(name)) {
    ThrowUsage("{}: '{}' is no host's name; use letters, digits, '.', '_', '-', such as node1",
               where, PeerText(std::string(name)));
  }
  int ranks = 0;
  const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), ranks);
  if (error != std::errc() || end != count.data() + count.size() || ranks < 1 ||
      ranks > kMaxRanksOfHost) {
    ThrowUsage("{}: '{}' is no number of ranks for {}; use the number of its GPUs, from 1 to {}",
               where, PeerText(std::string(count)), name, kMaxRanksOfHost);
  }
  for (const HostShare& host : hosts) {
    if (host.name == name) ThrowUsage("{}: {} is named twice; add its ranks up", where, name);
  }
  hosts.push_back({std::string(name), ranks});
}

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

}  // namespace

std::string HostShare::address() const {
  const size_t at = name.rfind('@');
  return at == std::string::npos ? name : name.substr(at + 1);
}

std::vector<HostShare> ParseHosts(const std::string& text, const std::string& option) {
  std::vector<HostShare> hosts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view entry = Trim(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    std::string_view name = entry, count;
    if (const size_t closed = entry.find("]:"); closed != std::string_view::npos) {
      // "[fe80::1]:8" and "user@[fe80::1]:8": brackets set the address apart from the count.
      const size_t open = entry.find('[');
      if (open == std::string_view::npos || open > closed) {
        ThrowUsage("{}: '{}' has ] without [", option, PeerText(std::string(entry)));
      }
      const std::string bare = std::string(entry.substr(0, open)) +
                               std::string(entry.substr(open + 1, closed - open - 1));
      Add(bare, entry.substr(closed + 2), option, hosts);
      continue;
    }
    const size_t colon = entry.rfind(':');
    if (colon != std::string_view::npos) {
      name = entry.substr(0, colon);
      count = entry.substr(colon + 1);
    }
    if (name.find(':') != std::string_view::npos) {
      ThrowUsage("{}: '{}' needs brackets around an IPv6 address, such as [fe80::1]:8", option,
                 PeerText(std::string(entry)));
    }
    if (count.empty()) {
      ThrowUsage("{}: '{}' is not HOST:GPUS; use for example node1:8,node2:8", option,
                 PeerText(std::string(entry)));
    }
    Add(name, count, option, hosts);
  }
  return hosts;
}

std::vector<HostShare> ReadHostFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) ThrowUsage("{}: cannot read: {}", path, std::strerror(errno));
  std::vector<HostShare> hosts;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    const std::string where = path + ":" + std::to_string(++number);
    const std::string_view text = Trim(std::string_view(line).substr(0, line.find('#')));
    if (text.empty()) continue;
    const size_t gap = std::min(text.find_first_of(" \t"), text.size());
    const std::string_view rest = Trim(text.substr(gap));
    constexpr std::string_view kSlots = "slots=";
    if (!rest.starts_with(kSlots)) {
      ThrowUsage("{}: '{}' is not 'HOST slots=GPUS'; use for example: node1 slots=8", where,
                 PeerText(std::string(text)));
    }
    Add(text.substr(0, gap), rest.substr(kSlots.size()), where, hosts);
  }
  if (hosts.empty()) ThrowUsage("{}: names no host; give each a line such as: node1 slots=8", path);
  return hosts;
}

int RanksOf(const std::vector<HostShare>& hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), 0,
                         [](int sum, const HostShare& host) { return sum + host.ranks; });
}

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTurn(200);
constexpr int kFilesToSpare = 16;
constexpr milliseconds kOutputLimit(1'000);  // for a pipe that outlives its rank

struct Child {
  int rank = 0;
  pid_t pid = -1;
  PipeLines output;  // closed for rank 0
  std::optional<int> status;
};

std::string RandomToken() {
  const std::string bytes = RandomBytes(32);
  return BytesToHex(bytes.data(), bytes.size());
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

class Ranks {
 public:
  explicit Ranks(const LaunchOptions& options)
      : options_(options),
        part_(options.part),
        first_rank_(part_ == nullptr ? 0 : part_->first_rank),
        world_size_(part_ == nullptr ? options.ranks : part_->world_size),
        arguments_(options.arguments),
        token_(part_ == nullptr ? RandomToken() : part_->secret),
        port_(part_ == nullptr ? 0 : part_->port),
        listener_(part_ == nullptr ? Listen("127.0.0.1", false, port_)
                                   : std::move(part_->listener)) {
    getrlimit(RLIMIT_NOFILE, &files_of_ranks_);
    NeedOpenFiles(options.ranks + kFilesToSpare, "the outputs of the ranks");
    if (owns_terminal_) std::tie(to_view_, view_) = MakeRankMessages();
    try {
      for (int rank = 0; rank < options.ranks; ++rank) Start(rank);
    } catch (...) {
      KillAll(SIGKILL);
      throw;
    }
    listener_.Close();  // rank 0's now: the others see at once if it goes
    view_.Close();      // likewise
  }
  ~Ranks() { KillAll(SIGKILL); }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  LaunchEnd Watch() {
    Clock::time_point all_ended;
    for (;;) {
      if (Poll()) Reap();
      for (const int signal : signals_.TakeStops()) Forward(signal);
      if (part_ != nullptr && !TakeOrders()) {
        KillAll(SIGKILL);
        return {.exit_code = static_cast<int>(ExitCode::kRuntime),
                .failure = "the launcher is gone"};
      }
      const auto now = Clock::now();
      SayWhoFailed(now);
      if (AllEnded()) {
        if (all_ended == Clock::time_point()) all_ended = now;
        const bool silent = std::none_of(children_.begin(), children_.end(),
                                         [](const Child& c) { return c.output.open(); });
        if (silent || now - all_ended > kOutputLimit) {
          LaunchEnd end;
          end.exit_code = Result();
          end.stopped = stops_ > 0;
          if (first_failed_) {
            end.failure = WhoFailed();
            end.killed = WIFSIGNALED(StatusOf(*first_failed_));
          }
          return end;
        }
      } else {
        EndStragglers(now);
      }
    }
  }

 private:
  std::vector<std::string> EnvironmentOf(int rank) const {
    std::vector<std::string> environment;
    for (char** at = environ; *at != nullptr; ++at) environment.emplace_back(*at);
    const auto set = [&](const std::string& name, const std::string& value) {
      std::erase_if(environment, [&](const auto& e) { return e.starts_with(name + "="); });
      environment.push_back(name + "=" + value);
    };
    set("ZEROPLAN_RANK", std::to_string(first_rank_ + rank));
    set("ZEROPLAN_WORLD_SIZE", std::to_string(world_size_));
    set("ZEROPLAN_LOCAL_RANK", std::to_string(rank));
    set("ZEROPLAN_LOCAL_WORLD_SIZE", std::to_string(options_.ranks));
    set("ZEROPLAN_ADDRESS", part_ == nullptr ? "127.0.0.1" : part_->address);
    set("ZEROPLAN_PORT", std::to_string(port_));
    set("ZEROPLAN_RUN_TOKEN", token_);
    set("ZEROPLAN_LISTEN_FD", IsRankZero(rank) ? std::to_string(listener_.get()) : "");
    set(kRankMessagesVariable,
        IsRankZero(rank) && view_ ? std::to_string(view_.get()) : std::string());
    for (const auto& [name, value] : options_.environment) set(name, value);
    return environment;
  }

  // `rank` is the place among this host's ranks, here and below.
  bool IsRankZero(int rank) const { return first_rank_ + rank == 0; }

  void Start(int rank) {
    std::vector<std::string> environment = EnvironmentOf(rank);
    const std::vector<char*> argv = Pointers(arguments_), envp = Pointers(environment);
    int ends[2] = {-1, -1};
    if (!IsRankZero(rank) && pipe2(ends, O_CLOEXEC) != 0) {
      ThrowRuntime("rank {}: cannot make a pipe: {}", first_rank_ + rank, std::strerror(errno));
    }
    Child child;
    child.rank = rank;
    child.output = PipeLines(UniqueFd(ends[0]));
    const UniqueFd write_end(ends[1]);
    const pid_t parent = getpid();
    child.pid = fork();
    if (child.pid < 0) {
      ThrowRuntime("rank {}: cannot fork: {}", first_rank_ + rank, WhyNoThread(errno));
    }
    if (child.pid == 0) Become(rank, parent, write_end.get(), argv, envp);
    children_.push_back(std::move(child));
  }

  // In the child: nothing but system calls until the program is another.
  [[noreturn]] void Become(int rank, pid_t parent, int output, const std::vector<char*>& argv,
                           const std::vector<char*>& envp) const {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(static_cast<int>(ExitCode::kRuntime));
    if (IsRankZero(rank)) {
      fcntl(listener_.get(), F_SETFD, 0);
      if (view_) fcntl(view_.get(), F_SETFD, 0);
    }
    if (!IsRankZero(rank) || part_ != nullptr) {
      const int null = open("/dev/null", O_RDONLY);
      if (null >= 0) dup2(null, STDIN_FILENO);
    }
    if (!IsRankZero(rank)) {
      dup2(output, STDOUT_FILENO);
      dup2(output, STDERR_FILENO);
    }
    setrlimit(RLIMIT_NOFILE, &files_of_ranks_);
    const sigset_t mask = signals_.MaskOfRanks();
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    execve(options_.program.c_str(), argv.data(), envp.data());
    constexpr char kMessage[] = "zeroplan: cannot start the program of a rank\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
    _exit(static_cast<int>(ExitCode::kRuntime));
  }

  // Waits for something to happen and passes on what ranks said. True if one may have ended.
  bool Poll() {
    // A file of -1 is passed over.
    std::vector<pollfd> polled = {{signals_.fd(), POLLIN, 0},
                                  {part_ == nullptr ? -1 : part_->orders, POLLIN, 0}};
    const size_t first = polled.size();
    std::vector<size_t> of;
    for (size_t c = 0; c < children_.size(); ++c) {
      if (!children_[c].output.open()) continue;
      polled.push_back({children_[c].output.fd(), POLLIN, 0});
      of.push_back(c);
    }
    const int ready = poll(polled.data(), polled.size(), static_cast<int>(kTurn.count()));
    for (size_t i = 0; ready > 0 && i < of.size(); ++i) {
      if (polled[first + i].revents != 0) PassOn(children_[of[i]]);
    }
    has_orders_ = ready > 0 && polled[1].revents != 0;
    return ready <= 0 || polled[0].revents != 0;
  }

  // Does what the launcher says. False if it is gone.
  bool TakeOrders() {
    if (!has_orders_) return true;
    char buffer[256];
    const ssize_t got = read(part_->orders, buffer, sizeof buffer);
    if (got < 0) return errno == EINTR || errno == EAGAIN;
    if (got == 0) return false;
    orders_.append(buffer, static_cast<size_t>(got));
    for (size_t end; (end = orders_.find('\n')) != std::string::npos; orders_.erase(0, end + 1)) {
      int signal = 0;
      if (std::sscanf(orders_.c_str(), "stop %d", &signal) == 1 &&
          std::find(std::begin(kStopSignals), std::end(kStopSignals), signal) !=
              std::end(kStopSignals)) {
        Forward(signal);
      }
    }
    return true;
  }

  void Forward(int signal) {
    ++stops_;
    last_stop_ = signal;
    for (const Child& child : children_) {
      if (!child.status) sigqueue(child.pid, signal, ForwardedSignal(stops_));
    }
  }

  // Whole lines, each after its rank's name.
  void PassOn(Child& child) {
    std::string text;
    for (const std::string& line : child.output.Read()) {
      // What ended the run is said by many in the same words: once is enough.
      const bool said = line.starts_with("zeroplan: ") && !last_words_.insert(line).second;
      if (!said) text += fmt::format("rank {}: {}\n", first_rank_ + child.rank, line);
    }
    Say(text);
  }

  // Rank 0 may show its progress on the same terminal, or have all of it: then its end is waited
  // for, and it shows what it can of this.
  void Say(std::string_view text) {
    held_ += text;
    if (held_.empty()) return;
    if (owns_terminal_ && !children_.front().status) {
      SendRankMessages(to_view_, text);
      return;
    }
    WriteWhole(STDERR_FILENO, MessageFor(STDERR_FILENO, held_, /*wipe=*/true));
    held_.clear();
  }

  // A rank that was killed (SIGKILL) leaves the terminal as it was.
  void TakeTerminalBack(const Child& child) {
    if (!owns_terminal_ || child.rank != 0) return;
    if (WIFSIGNALED(*child.status) && TerminalTakesControl(STDERR_FILENO)) {
      WriteWhole(STDERR_FILENO, kLeaveFullScreen);
    }
    Say("");
  }

  void Reap() {
    for (Child& child : children_) {
      int status = 0;
      if (child.status || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
      child.status = status;
      TakeTerminalBack(child);
      PassOn(child);  // its last words before ours
      if (!Failed(status) || EndedByStop(status) || said_who_) continue;
      if (!first_failed_) failed_at_ = Clock::now();
      const bool known = first_failed_ && WIFSIGNALED(StatusOf(*first_failed_));
      if (!first_failed_ || (WIFSIGNALED(status) && !known)) first_failed_ = child.rank;
    }
  }

  // A killed rank's connections close before it can be reaped, so that others, which end on its
  // account, may be reaped first: who failed is said a little later.
  void SayWhoFailed(Clock::time_point now) {
    if (!first_failed_ || said_who_) return;
    const int status = StatusOf(*first_failed_);
    // Said before stragglers are ended: their signals are the launcher's own.
    const milliseconds limit = std::min(options_.settle_after, options_.patience);
    if (!WIFSIGNALED(status) && !AllEnded() && now - failed_at_ <= limit) return;
    said_who_ = true;
    if (part_ == nullptr) Say(fmt::format("zeroplan: {}\n", WhoFailed()));
  }

  // REQUIRES: a rank has failed.
  std::string WhoFailed() const {
    const int status = StatusOf(*first_failed_);
    const std::string who =
        world_size_ == 1 ? "the process" : fmt::format("rank {}", first_rank_ + *first_failed_);
    return who + " " + HowEnded(status);
  }

  // REQUIRES: the rank has ended.
  int StatusOf(int rank) const { return *children_[static_cast<size_t>(rank)].status; }
  static bool Failed(int status) {
    if (!WIFEXITED(status)) return true;
    const int code = WEXITSTATUS(status);
    return code != 0 && code != static_cast<int>(ExitCode::kInterrupted);
  }

  // By the first stop's own signal: the rank had heard of the stop from another one, and was ending
  // when its own came.
  bool EndedByStop(int status) const {
    return stops_ == 1 && WIFSIGNALED(status) && WTERMSIG(status) == last_stop_;
  }

  void EndStragglers(Clock::time_point now) {
    if (!first_failed_) return;
    if (!terminated_ && now - failed_at_ > options_.patience) {
      terminated_ = true;
      for (const Child& child : children_) {
        if (child.status) continue;
        Say(fmt::format("zeroplan: rank {} has not ended {} s after rank {} failed; ending it\n",
                        first_rank_ + child.rank,
                        std::chrono::duration_cast<std::chrono::seconds>(options_.patience).count(),
                        first_rank_ + *first_failed_));
        kill(child.pid, SIGTERM);
      }
    }
    if (now - failed_at_ > options_.patience + options_.kill_after) {
      for (const Child& child : children_) {
        if (!child.status) kill(child.pid, SIGKILL);
      }
    }
    // A stopped process hears of nothing, so it would only use the others' patience up.
    if (now - failed_at_ > std::min(options_.patience, options_.kill_after)) {
      for (const Child& child : children_) {
        if (child.status || !IsStopped(child.pid)) continue;
        Say(fmt::format("zeroplan: rank {} is stopped (SIGSTOP); ending it\n",
                        first_rank_ + child.rank));
        kill(child.pid, SIGKILL);
      }
    }
  }

  // Whether a signal has stopped the process: state T of /proc/PID/stat, behind "(name) ".
  static bool IsStopped(pid_t pid) {
    std::ifstream file(fmt::format("/proc/{}/stat", pid));
    std::string text;
    std::getline(file, text);
    const size_t name_end = text.rfind(") ");
    return name_end != std::string::npos && name_end + 2 < text.size() && text[name_end + 2] == 'T';
  }

  bool AllEnded() const {
    return std::all_of(children_.begin(), children_.end(),
                       [](const Child& child) { return child.status.has_value(); });
  }

  int Result() const {
    if (first_failed_) {
      const int status = StatusOf(*first_failed_);
      if (WIFEXITED(status)) return WEXITSTATUS(status);
      const bool asked = stops_ > 0 && WTERMSIG(status) == last_stop_;
      return asked ? 128 + last_stop_ : static_cast<int>(ExitCode::kRuntime);
    }
    for (const Child& child : children_) {
      if (WIFEXITED(*child.status) && WEXITSTATUS(*child.status) != 0) {
        return WEXITSTATUS(*child.status);
      }
    }
    const bool stopped = std::any_of(children_.begin(), children_.end(),
                                     [](const Child& c) { return WIFSIGNALED(*c.status); });
    return stopped ? 128 + last_stop_ : 0;
  }

  void KillAll(int signal) {
    for (Child& child : children_) {
      if (child.status) continue;
      kill(child.pid, signal);
      int status = 0;
      waitpid(child.pid, &status, 0);
      child.status = status;
    }
  }

  const LaunchOptions& options_;
  HostPart* const part_;
  const int first_rank_, world_size_;
  std::vector<std::string> arguments_;
  const std::string token_;
  int port_;
  UniqueFd listener_;
  SignalFile signals_;
  rlimit files_of_ranks_{};
  std::vector<Child> children_;
  std::set<std::string> last_words_;  // of ranks above 0
  const bool owns_terminal_ =         // rank 0: it shows a full screen
      part_ == nullptr &&
      std::find(arguments_.begin(), arguments_.end(), kFullScreenOption) != arguments_.end();
  std::string held_;         // meanwhile
  UniqueFd to_view_, view_;  // that screen's messages: our end, and rank 0's until it has started
  int stops_ = 0, last_stop_ = 0;
  std::optional<int> first_failed_;
  bool said_who_ = false;
  bool has_orders_ = false;
  std::string orders_;  // of the line under way
  Clock::time_point failed_at_;
  bool terminated_ = false;
};

}  // namespace

std::string HowEnded(int status) {
  if (WIFEXITED(status)) return fmt::format("ended with exit code {}", WEXITSTATUS(status));
  return fmt::format("was killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
}

LaunchEnd Launch(const LaunchOptions& options) {
  ZEROPLAN_CHECK(options.ranks >= 1 && !options.arguments.empty(), "{} ranks", options.ranks);
  std::fflush(nullptr);  // nothing of ours may be printed by a child
  if (options.hosts) return LaunchOnHosts(options);
  return Ranks(options).Watch();
}

int LaunchWithRestarts(LaunchOptions options, const RestartOptions& restarts) {
  for (int attempt = 0;; ++attempt) {
    options.environment = {{kRestartVariable, std::to_string(attempt)}};
    const LaunchEnd end = Launch(options);
    const bool worth_it =
        end.exit_code == static_cast<int>(ExitCode::kRuntime) && end.started && !end.stopped;
    if (!worth_it || restarts.restarts == 0) return end.exit_code;
    if (attempt == restarts.restarts) {
      WriteStderr(fmt::format("zeroplan: {}; all {} restarts are used up (⟦restarts⟧)\n",
                              end.failure, restarts.restarts));
      return end.exit_code;
    }
    WriteStderr(fmt::format("zeroplan: restart {} of {}, since {}: going on from {}\n", attempt + 1,
                            restarts.restarts, end.failure, restarts.where()));
    if (std::find(options.arguments.begin(), options.arguments.end(), "--resume") ==
        options.arguments.end()) {
      options.arguments.push_back("--resume");
    }
  }
}

}  // namespace zeroplan
