#include "executor/process/pipe_lines.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/strings.h"

namespace zeroplan {

void WriteWhole(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR && errno != EAGAIN) return;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
}

PipeLines::PipeLines(UniqueFd pipe) : pipe_(std::move(pipe)) {
  if (pipe_) fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);
}

std::vector<std::string> PipeLines::Read() {
  std::vector<std::string> lines;
  if (!pipe_) return lines;
  char buffer[1 << 14];
  ssize_t got = 0;
  while ((got = read(pipe_.get(), buffer, sizeof buffer)) > 0) {
    partial_.append(buffer, static_cast<size_t>(got));
  }
  const bool over = got == 0 || (errno != EAGAIN && errno != EINTR);
  size_t begin = 0;
  for (size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.push_back(partial_.substr(begin, end - begin));
  }
  partial_.erase(0, begin);
  if (over) {
    pipe_.Close();
    if (!partial_.empty()) lines.push_back(std::move(partial_));
    partial_.clear();
  }
  return lines;
}

namespace {

constexpr size_t kMostOfLine = 1024;  // no terminal shows more of one

}  // namespace

std::pair<UniqueFd, UniqueFd> MakeRankMessages() {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    ThrowRuntime("⟦watch⟧: cannot make a socket for messages of other ranks: {}",
                 std::strerror(errno));
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void SendRankMessages(const UniqueFd& to, std::string_view text) {
  for (const std::string_view line : Split(text, '\n')) {
    // An empty packet would read as the end.
    if (line.empty()) continue;
    send(to.get(), line.data(), std::min(line.size(), kMostOfLine), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

RankMessages::RankMessages() {
  const char* text = std::getenv(kRankMessagesVariable);
  if (text == nullptr) return;
  int fd = -1, type = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), fd);
  socklen_t size = sizeof type;
  // Whatever else has that number is not ours to read or close.
  if (error != std::errc() || *end != '\0' ||
      getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET) {
    return;
  }
  from_ = UniqueFd(fd);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
}

std::vector<std::string> RankMessages::Take() {
  std::vector<std::string> lines;
  char line[kMostOfLine];
  while (from_) {
    const ssize_t got = recv(from_.get(), line, sizeof line, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    lines.emplace_back(line, static_cast<size_t>(got));
  }
  return lines;
}

}  // namespace zeroplan
