// zeroplan doctor --hosts: the process that starts one on each host and asks them.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "cli/doctor/hosts.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/hash.h"
#include "core/base/json_source.h"
#include "core/base/long_work.h"
#include "core/base/shell_process.h"
#include "core/base/strings.h"
#include "core/base/thread.h"
#include "core/base/timing.h"

namespace zeroplan {
namespace {

using HostClock = std::chrono::steady_clock;

constexpr size_t kMostHosts = 256;          // a remote shell each
constexpr double kFirstAnswerSeconds = 60;  // for a shell to connect and a host to look at itself
constexpr double kAnswerSeconds = 30;       // beyond what an order takes by itself
constexpr double kResolveSeconds = 12;      // a resolver's patience for a name
constexpr double kLastWordsSeconds = 2;     // of a shell whose host is done
constexpr size_t kMostHostText = size_t{4} << 20;  // of what a host may say at a time

// One host's remote shell, with zeroplan behind it.
class RemoteAgent {
 public:
  RemoteAgent(const std::vector<std::string>& shell, const std::string& host,
              const std::string& command) {
    std::vector<std::string> words = shell;
    words.push_back(host);
    words.push_back(command);
    const std::string program = FindProgram(words.front());
    const std::vector<char*> argv = ArgvOf(words);
    StdioPipes pipes = MakeStdioPipes(host);
    in_ = std::move(pipes.in);
    out_ = std::move(pipes.out);
    err_ = std::move(pipes.err);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) ThrowRuntime("{}: cannot fork: {}", host, WhyNoThread(errno));
    if (pid_ > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    pipes.Become();
    execv(program.c_str(), argv.data());
    const char* reason = std::strerror(errno);
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, reason, std::strlen(reason));
    _exit(126);
  }
  ~RemoteAgent() {
    if (status_) return;
    Dismiss();
    constexpr int kLooks = 100;  // within kLastWordsSeconds
    for (int i = 0; i < kLooks; ++i) {
      if (waitpid(pid_, nullptr, WNOHANG) == pid_) return;
      poll(nullptr, 0, static_cast<int>(kLastWordsSeconds * 1000) / kLooks);
    }
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  RemoteAgent(const RemoteAgent&) = delete;
  RemoteAgent& operator=(const RemoteAgent&) = delete;

  // Its host's process ends with its stdin.
  void Dismiss() { in_.Close(); }

  void Tell(const WireJson& order) {
    const std::string line = order.dump() + "\n";
    answer_.reset();
    for (size_t at = 0; at < line.size();) {
      const ssize_t sent = send(in_.get(), line.data() + at, line.size() - at, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return;  // it is gone: its end says why
      at += static_cast<size_t>(sent);
    }
  }

  int out() const { return out_.get(); }
  int err() const { return err_.get(); }
  // Takes what there is, and looks whether the shell has ended.
  void Read() {
    int status = 0;
    if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
    for (UniqueFd* fd : {&out_, &err_}) {
      std::string& text = fd == &out_ ? said_ : errors_;
      pollfd one{fd->get(), POLLIN, 0};
      while (*fd && poll(&one, 1, 0) > 0) {
        char buffer[1 << 16];
        const ssize_t got = read(fd->get(), buffer, sizeof buffer);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
          fd->Close();
          break;
        }
        if (text.size() < kMostHostText) text.append(buffer, static_cast<size_t>(got));
      }
    }
    for (size_t end; (end = said_.find('\n')) != std::string::npos; said_.erase(0, end + 1)) {
      const std::string_view line = std::string_view(said_).substr(0, end);
      if (!line.starts_with(kHostAnswerMark)) continue;  // what a login shell says
      WireJson answer = WireJson::parse(line.substr(kHostAnswerMark.size()), nullptr, false);
      if (!answer.is_discarded()) answer_ = std::move(answer);
    }
  }
  // Of the last order.
  const std::optional<WireJson>& answer() const { return answer_; }
  // Ended. What it said before is read: a process that stays behind may keep its pipes open.
  bool gone() const { return status_.has_value(); }
  // Of the wait; REQUIRES: gone().
  int status() const { return *status_; }
  const std::string& errors() const { return errors_; }

 private:
  UniqueFd in_, out_, err_;
  pid_t pid_ = -1;
  std::optional<int> status_;
  std::optional<WireJson> answer_;
  std::string said_, errors_;
};

class HostsInquiry {
 public:
  explicit HostsInquiry(const HostsQuery& query) : query_(query) {
    facts_.wait_seconds = query.wait_seconds;
    char random[16];
    if (getrandom(random, sizeof random, 0) != sizeof random) {
      ThrowRuntime("cannot get random bytes: {}", std::strerror(errno));
    }
    token_ = BytesToHex(random, sizeof random);
  }
  ~HostsInquiry() {
    for (const auto& agent : agents_) {
      if (agent) agent->Dismiss();
    }
  }
  HostsInquiry(const HostsInquiry&) = delete;
  HostsInquiry& operator=(const HostsInquiry&) = delete;

  HostsFacts Run() {
    const LongWork work(fmt::format("Asking {} hosts", query_.hosts.size()), /*at_once=*/true);
    Start();
    CompareClocks();
    Reach();
    Measure();
    return std::move(facts_);
  }

 private:
  // What a host's shell runs.
  std::string RemoteCommand() const {
    std::vector<std::string> words = {"exec", "/usr/bin/env"};
    for (const char* name : {"ZEROPLAN_NO_DETECT", "ZEROPLAN_DOCTOR_SECONDS", "LD_LIBRARY_PATH"}) {
      const char* value = std::getenv(name);
      if (value != nullptr) words.push_back(fmt::format("{}={}", name, value));
    }
    words.insert(words.end(), {query_.program, kHostAgentCommand});
    return ShellCommand(words);
  }

  void Start() {
    std::vector<int> ports = {0};
    ports.insert(ports.end(), query_.ports.begin(), query_.ports.end());
    for (const std::string& name : query_.hosts) {
      HostReport host;
      host.name = name;
      host.address = name.substr(name.rfind('@') + 1);
      facts_.hosts.push_back(host);
      agents_.push_back(std::make_unique<RemoteAgent>(query_.remote_shell, name, RemoteCommand()));
    }
    Ask(
        All(),
        [&](size_t i) {
          return WireJson{
              {"token", token_}, {"name", i}, {"ports", ports}, {"wait", query_.wait_seconds}};
        },
        DoctorLimit(kFirstAnswerSeconds),
        [&](size_t i, const WireJson& answer) {
          facts_.hosts[i].facts = HostFactsFromWire(answer);
        });
  }

  std::vector<size_t> All() const {
    std::vector<size_t> all;
    for (size_t i = 0; i < agents_.size(); ++i) {
      if (facts_.hosts[i].answers()) all.push_back(i);
    }
    return all;
  }

  // Gives each of `whom` its order and waits for all answers. Who does not answer, or not as it
  // should, is lost.
  void Ask(const std::vector<size_t>& whom, const std::function<WireJson(size_t)>& order,
           double seconds, const std::function<void(size_t, const WireJson&)>& take) {
    for (const size_t i : whom) agents_[i]->Tell(order(i));
    std::set<size_t> waiting(whom.begin(), whom.end());
    const auto begin = HostClock::now();
    while (!waiting.empty()) {
      std::vector<pollfd> polled;
      for (const size_t i : waiting) {
        polled.push_back({agents_[i]->out(), POLLIN, 0});
        polled.push_back({agents_[i]->err(), POLLIN, 0});
      }
      poll(polled.data(), polled.size(), 100);
      ThrowIfInterrupted();
      const bool late = SecondsSince(begin) > seconds;
      for (auto at = waiting.begin(); at != waiting.end();) {
        RemoteAgent& agent = *agents_[*at];
        agent.Read();
        bool done = true;
        if (agent.answer()) {
          try {
            take(*at, *agent.answer());
          } catch (const WireJson::exception& error) {
            Lose(*at, fmt::format("its zeroplan answers in another way ({})", error.what()),
                 "install the same version on all hosts");
          }
        } else if (agent.gone()) {
          LoseEnded(*at);
        } else if (late) {
          Lose(*at, fmt::format("no answer within {:.0f} s", seconds), ByHand(*at));
        } else {
          done = false;
        }
        at = done ? waiting.erase(at) : std::next(at);
      }
    }
  }

  void Lose(size_t i, std::string why, std::string fix) {
    facts_.hosts[i].why = std::move(why);
    facts_.hosts[i].fix = std::move(fix);
    agents_[i].reset();
  }

  std::string ByHand(size_t i) const {
    return fmt::format("this has to work, without a password: {} {} true",
                       fmt::join(query_.remote_shell, " "), ShellWord(facts_.hosts[i].name));
  }

  // Its shell has ended before it answered.
  void LoseEnded(size_t i) {
    constexpr int kCannotStart = 126, kNotFound = 127;  // of POSIX shells and env
    const RemoteAgent& agent = *agents_[i];
    const std::string said = LastLine(agent.errors());
    const int status = agent.status();
    const std::string& shell = query_.remote_shell.front();
    if (WIFSIGNALED(status)) {
      return Lose(i, fmt::format("{} was ended by signal {}", shell, WTERMSIG(status)), ByHand(i));
    }
    const int code = WEXITSTATUS(status);
    if (code == kNotFound || (code == kCannotStart && said.find(query_.program) != said.npos)) {
      return Lose(i,
                  fmt::format("{} cannot be run there ({})", query_.program,
                              said.empty() ? fmt::format("exit code {}", code) : said),
                  "install zeroplan at the same place on all hosts, or say where it is there: "
                  "--remote-path PATH");
    }
    if (code == static_cast<int>(ExitCode::kUsage)) {
      return Lose(i, fmt::format("its zeroplan does not know {}: {}", kHostAgentCommand, said),
                  "install this version there too");
    }
    Lose(i,
         fmt::format("{} ended with exit code {}{}{}", shell, code, said.empty() ? "" : ": ", said),
         ByHand(i));
  }

  // Each against this one, one after the other, so that no answer waits behind another.
  void CompareClocks() {
    constexpr int kTries = 3;
    for (const size_t i : All()) {
      HostReport& host = facts_.hosts[i];
      double best = -1;
      for (int tried = 0; tried < kTries && host.answers(); ++tried) {
        const auto wall = std::chrono::system_clock::now().time_since_epoch();
        const auto begin = HostClock::now();
        Ask(
            {i}, [](size_t) { return WireJson{{"order", "clock"}}; }, DoctorLimit(kAnswerSeconds),
            [&](size_t, const WireJson& answer) {
              const double trip = SecondsSince(begin);
              const double middle = std::chrono::duration<double>(wall).count() + trip / 2;
              const double ahead = answer.at("now").get<double>() - middle;
              if (best >= 0 && trip >= best) return;
              best = trip;
              host.clock_ahead_seconds = ahead;
              host.clock_error_seconds = trip / 2;
            });
      }
    }
  }

  void Reach() {
    const std::vector<size_t> all = All();
    for (const size_t from : all) {
      for (const size_t to : all) {
        if (from != to) facts_.links.push_back({.from = from, .to = to});
      }
    }
    Ask(
        all,
        [&](size_t from) {
          WireJson targets = WireJson::array();
          for (const size_t to : all) {
            if (to == from) continue;
            std::vector<int> ports;
            for (const ProbePort& port : facts_.hosts[to].facts.ports) {
              if (port.port > 0) ports.push_back(port.port);
            }
            targets.push_back(
                {{"host", facts_.hosts[to].address}, {"name", to}, {"ports", std::move(ports)}});
          }
          return WireJson{{"order", "reach"}, {"targets", std::move(targets)}};
        },
        // Four addresses of each host, all their ports, 128 at a time.
        DoctorLimit(kAnswerSeconds) + kResolveSeconds * static_cast<double>(all.size()) +
            query_.wait_seconds *
                std::ceil(static_cast<double>(4 * all.size() * (1 + query_.ports.size())) / 128),
        [&](size_t from, const WireJson& answer) { TakeLinks(from, answer.at("links")); });
  }

  void TakeLinks(size_t from, const WireJson& answer) {
    size_t next = 0;
    for (HostLink& link : facts_.links) {
      if (link.from != from) continue;
      const WireJson& said = answer.at(next++);
      link.tried = true;
      said.at("address").get_to(link.address);
      said.at("why").get_to(link.why);
      if (const WireJson& route = said.at("route"); !route.is_null()) {
        link.route = {route.at("interface").get<std::string>(),
                      route.at("source").get<std::string>(),
                      route.at("gateway").get<std::string>()};
      }
      size_t at = 0;
      for (const ProbePort& port : facts_.hosts[link.to].facts.ports) {
        ProbeReach& reach = link.ports.emplace_back();
        if (port.port == 0 || link.address.empty()) continue;
        const WireJson& one = said.at("ports").at(at++);
        reach = {static_cast<ProbeReach::State>(one.at("state").get<int>()),
                 one.at("why").get<std::string>(), one.at("other").get<uint32_t>()};
      }
    }
  }

  // The way between two of them that the measurement can take, as either may be blocked.
  const HostLink* OpenLink(size_t a, size_t b) const {
    for (const HostLink& link : facts_.links) {
      const bool between = (link.from == a && link.to == b) || (link.from == b && link.to == a);
      if (between && !link.ports.empty() &&
          link.ports.front().state == ProbeReach::State::kReached) {
        return &link;
      }
    }
    return nullptr;
  }

  // In rounds of pairs that share no host (the circle method of round-robin tournaments), so that
  // the time grows with the hosts, not with their pairs.
  void Measure() {
    std::vector<size_t> circle = All();
    constexpr size_t kBye = static_cast<size_t>(-1);
    if (circle.size() % 2 == 1) circle.push_back(kBye);
    const size_t count = circle.size();
    for (size_t round = 0; round + 1 < count; ++round) {
      std::vector<size_t> askers;
      std::vector<const HostLink*> links(agents_.size(), nullptr);
      for (size_t i = 0; i < count / 2; ++i) {
        const size_t a = circle[i], b = circle[count - 1 - i];
        if (a == kBye || b == kBye) continue;
        if (!facts_.hosts[a].answers() || !facts_.hosts[b].answers()) continue;
        const HostLink* link = OpenLink(a, b);
        if (link == nullptr) continue;
        links[link->from] = link;
        askers.push_back(link->from);
      }
      Ask(
          askers,
          [&](size_t i) {
            const HostLink& link = *links[i];
            return WireJson{{"order", "measure"},
                            {"address", link.address},
                            {"port", facts_.hosts[link.to].facts.ports.front().port},
                            {"name", link.to}};
          },
          DoctorLimit(kAnswerSeconds) + 12 * query_.wait_seconds,
          [&](size_t i, const WireJson& answer) {
            LinkSpeed speed{answer.at("why").get<std::string>(),
                            answer.at("round_trip").get<double>(), answer.at("to").get<double>(),
                            answer.at("back").get<double>()};
            facts_.pairs.push_back({links[i]->from, links[i]->to, std::move(speed)});
          });
      std::rotate(circle.begin() + 1, circle.end() - 1, circle.end());
    }
    std::sort(facts_.pairs.begin(), facts_.pairs.end(), [](const HostPair& a, const HostPair& b) {
      return std::minmax(a.from, a.to) < std::minmax(b.from, b.to);
    });
  }

  const HostsQuery& query_;
  std::string token_;
  HostsFacts facts_;
  std::vector<std::unique_ptr<RemoteAgent>> agents_;
};

// "node1" of "node1:8" and "[fd00::1]:8"; an address with several colons is one of IPv6.
std::string WithoutCount(std::string_view entry) {
  if (entry.starts_with('[')) {
    const size_t close = entry.find(']');
    return std::string(entry.substr(1, close == entry.npos ? close : close - 1));
  }
  const size_t colon = entry.find(':');
  return std::string(colon != entry.rfind(':') ? entry : entry.substr(0, colon));
}

std::vector<std::string> CheckNames(std::vector<std::string> names, const std::string& option) {
  for (const std::string& name : names) {
    const bool odd = std::any_of(name.begin(), name.end(), [](char c) {
      return static_cast<unsigned char>(c) <= ' ' || c == 0x7f;
    });
    if (name.empty() || name.starts_with('-') || name.ends_with('@') || odd) {
      ThrowUsage("{}: '{}' is not a host's name; use names as ssh takes them, such as node1,node2",
                 option, PrintableText(name, 60));
    }
    if (std::count(names.begin(), names.end(), name) > 1) {
      ThrowUsage("{}: {} is named twice; name each host once", option, name);
    }
  }
  if (names.size() < 2 || names.size() > kMostHosts) {
    ThrowUsage("{}: {} host{}; name 2 to {}", option, names.size(), names.size() == 1 ? "" : "s",
               kMostHosts);
  }
  return names;
}

}  // namespace

std::vector<std::string> HostNames(const std::string& text, const std::string& option) {
  std::vector<std::string> names;
  for (const std::string_view entry : SplitList(text)) names.push_back(WithoutCount(entry));
  return CheckNames(std::move(names), option);
}

std::vector<std::string> HostNamesInFile(const std::string& path) {
  std::vector<std::string> names;
  const std::string text = ReadTextFile(path);
  for (std::string_view line : Split(text, '\n')) {
    line = line.substr(0, line.find('#'));
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == line.npos) continue;
    const size_t end = line.find_first_of(" \t\r", begin);
    names.push_back(WithoutCount(line.substr(begin, end == line.npos ? end : end - begin)));
  }
  return CheckNames(std::move(names), path);
}

HostsFacts QueryHosts(const HostsQuery& query) { return HostsInquiry(query).Run(); }

}  // namespace zeroplan
