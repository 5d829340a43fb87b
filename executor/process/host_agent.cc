#include "executor/process/host_agent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sstream>

#include "core/base/error.h"
#include "executor/process/launch_environment.h"
#include "executor/process/pipe_lines.h"
#include "executor/process/tcp_sockets.h"

namespace zeroplan {
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
    ThrowUsage("{}: '{}' in the environment is not what --hosts sets; unset it", kHostPartVariable,
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
