#include "cli/doctor/limited_child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>

#include "core/base/error.h"
#include "core/base/files.h"

namespace zeroplan {
namespace {

constexpr size_t kMostText = 1 << 20;
using Clock = std::chrono::steady_clock;

struct Pipe {
  UniqueFd read, write;

  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) ThrowRuntime("cannot make a pipe: {}", std::strerror(errno));
    read = UniqueFd(ends[0]);
    write = UniqueFd(ends[1]);
  }
};

[[noreturn]] void RunChild(const Pipe& out, const Pipe& err, const std::function<int()>& work) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(out.write.get(), STDOUT_FILENO);
  dup2(err.write.get(), STDERR_FILENO);
  int code = 1;
  try {
    code = work();
  } catch (const std::exception& error) {
    std::fputs(error.what(), stderr);
  }
  std::fflush(nullptr);
  _exit(code);
}

int MillisecondsUntil(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 1'000'000));
}

// Until both are closed; false if that takes too long.
bool ReadBoth(Clock::time_point deadline, std::array<UniqueFd*, 2> pipes,
              std::array<std::string*, 2> texts) {
  while (*pipes[0] || *pipes[1]) {
    std::array<pollfd, 2> waits;
    for (size_t i = 0; i < 2; ++i) waits[i] = {pipes[i]->get(), POLLIN, 0};
    const int ready = poll(waits.data(), waits.size(), MillisecondsUntil(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    for (size_t i = 0; i < 2; ++i) {
      if (waits[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t count = read(pipes[i]->get(), buffer, sizeof buffer);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        pipes[i]->Close();
      } else if (texts[i]->size() < kMostText) {
        texts[i]->append(buffer, static_cast<size_t>(count));
      }
    }
  }
  return true;
}

}  // namespace

ChildResult RunLimited(double seconds, const std::function<int()>& work) {
  Pipe out, err;
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) ThrowRuntime("cannot start a process: {}", std::strerror(errno));
  if (child == 0) RunChild(out, err, work);
  out.write.Close();
  err.write.Close();
  ChildResult result;
  const auto deadline =
      Clock::now() + std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
  result.in_time = ReadBoth(deadline, {&out.read, &err.read}, {&result.out, &result.err});
  // One that closed both pipes and goes on is out of time, too.
  int status = 0;
  pid_t ended = 0;
  while (result.in_time && (ended = waitpid(child, &status, WNOHANG)) == 0) {
    if (Clock::now() > deadline) result.in_time = false;
    usleep(1000);
  }
  if (!result.in_time) {
    kill(child, SIGKILL);
    // One that the kernel holds (a dead network disk) ends later; it is not waited for.
    for (int i = 0; i < 100 && waitpid(child, &status, WNOHANG) == 0; ++i) usleep(1000);
    return result;
  }
  if (ended == child && WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (ended == child && WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

}  // namespace zeroplan
