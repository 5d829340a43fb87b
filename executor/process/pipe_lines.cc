#include "executor/process/pipe_lines.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

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

}  // namespace zeroplan
