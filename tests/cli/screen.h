// Runs the built zeroplan in a terminal of its own (a pseudo-terminal), and keeps what it shows.
#pragma once

#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "tests/paths.h"

namespace zeroplan {

// As far as zeroplan uses one: characters, line feeds, returns, "\x1b[K", colours, the alternate
// screen with its cursor. Whatever else arrives is kept in `unknown`.
class Screen {
 public:
  explicit Screen(size_t columns) : columns_(columns) {}

  void Feed(std::string_view bytes) {
    pending_ += bytes;
    size_t at = 0;
    while (at < pending_.size()) {
      const size_t taken = Take(std::string_view(pending_).substr(at));
      if (taken == 0) break;  // the rest of a sequence is yet to come
      at += taken;
    }
    pending_.erase(0, at);
  }

  // As they stand, the last included; of the normal screen alone.
  const std::vector<std::string>& lines() const { return lines_; }
  // Lines that passed the right edge.
  const std::vector<std::string>& overflows() const { return overflows_; }
  const std::string& unknown() const { return unknown_; }
  // The alternate screen: how often it was entered and left, whether the cursor is hidden, and the
  // widest line and the largest row that were written there.
  int entered = 0, left = 0;
  bool cursor_hidden = false;
  size_t widest = 0, lowest = 0;
  std::string full_text;  // all that was ever written there

 private:
  size_t Take(std::string_view rest) {
    const char c = rest[0];
    if (c == '\x1b') return Sequence(rest);
    if (c == '\r') {
      column_ = 0;
    } else if (c == '\n') {
      if (alternate_) {
        lowest = std::max(lowest, ++row_);
      } else {
        lines_.emplace_back();
      }
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      unknown_ += c;
    } else {
      const size_t length = Utf8Length(c);
      if (length > rest.size()) return 0;
      Put(rest.substr(0, length));
      return length;
    }
    return 1;
  }

  void Put(std::string_view character) {
    if (alternate_) {
      full_text += character;
      widest = std::max(widest, ++column_);
      return;
    }
    std::string& line = lines_.back();
    if (column_ >= columns_) {
      overflows_.push_back(line);
      lines_.emplace_back(character);
      column_ = 1;
      return;
    }
    // What is written over is ASCII: the progress line after a return.
    if (column_ < line.size() && character.size() == 1) {
      line.replace(column_, 1, character);
    } else {
      line += character;
    }
    ++column_;
  }

  size_t Sequence(std::string_view rest) {
    if (rest.size() < 2) return 0;
    if (rest[1] != '[') {
      unknown_ += rest.substr(0, 2);
      return 2;
    }
    size_t end = 2;
    while (end < rest.size() && (rest[end] < 0x40 || rest[end] > 0x7e)) ++end;
    if (end == rest.size()) return 0;
    const std::string_view sequence = rest.substr(2, end - 1);
    if (sequence == "K" || sequence == "J") {
      if (!alternate_) lines_.back().resize(std::min(lines_.back().size(), column_));
    } else if (sequence == "?1049h") {
      alternate_ = true;
      ++entered;
      row_ = column_ = 0;
    } else if (sequence == "?1049l") {
      alternate_ = false;
      ++left;
      column_ = lines_.back().size();
    } else if (sequence == "?25l" || sequence == "?25h") {
      cursor_hidden = sequence.back() == 'l';
    } else if (sequence == "H") {
      row_ = column_ = 0;
      full_text += '\n';
    } else if (sequence.back() != 'm') {
      unknown_ += rest.substr(0, end + 1);
    }
    return end + 1;
  }

  const size_t columns_;
  std::vector<std::string> lines_{""}, overflows_;
  std::string unknown_, pending_;
  size_t column_ = 0, row_ = 0;
  bool alternate_ = false;
};

struct TerminalRun {
  int exit_code = -1;
  int signal = 0;  // that ended it
  Screen screen;
  std::string text;  // as it came
};

// Called with the process and what has come so far, each time more comes; may send signals.
using SeenInTerminal = std::function<void(pid_t, int, TerminalRun&)>;

// `process` in a process of its own, with stdin, stdout and stderr on a terminal of that size. Its
// result is the exit code.
inline TerminalRun RunProcessInTerminal(const std::function<int()>& process, size_t columns,
                                        size_t rows = 40, const SeenInTerminal& seen = nullptr) {
  TerminalRun run{-1, 0, Screen(columns), ""};
  winsize size{};
  size.ws_col = static_cast<unsigned short>(columns);
  size.ws_row = static_cast<unsigned short>(rows);
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    unsetenv("COLUMNS");
    _exit(process());
  }
  if (child < 0) return run;
  char buffer[4096];
  // At the child's end a read fails with EIO.
  for (ssize_t got = 0; (got = read(terminal, buffer, sizeof buffer)) > 0;) {
    run.text.append(buffer, static_cast<size_t>(got));
    run.screen.Feed({buffer, static_cast<size_t>(got)});
    if (seen) seen(child, terminal, run);
  }
  close(terminal);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status)) run.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) run.signal = WTERMSIG(status);
  return run;
}

// The same of `command` in a shell.
inline TerminalRun RunInTerminal(const std::string& command, size_t columns, size_t rows = 40,
                                 const SeenInTerminal& seen = nullptr) {
  const auto shell = [&] {
    execl("/bin/sh", "sh", "-c", ("exec " + command).c_str(), nullptr);
    return 127;
  };
  return RunProcessInTerminal(shell, columns, rows, seen);
}

}  // namespace zeroplan
