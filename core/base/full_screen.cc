#include "core/base/full_screen.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "core/base/terminal.h"

namespace zeroplan {
namespace {

constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[J";
constexpr size_t kMostHeld = size_t{64} << 10;

std::atomic<bool> shown{false};
std::atomic<bool> redraw{false};  // all of it: the terminal was resized, or stopped meanwhile

// A plain array: a signal handler writes it.
char held[kMostHeld];
std::atomic<size_t> held_bytes{0};
std::mutex held_mutex;

constexpr size_t kMostShown = 64;
std::deque<std::string> latest;  // lines for the view; guarded by held_mutex, too

// `text` is escaped. REQUIRES: held_mutex.
void AddLatest(std::string_view text) {
  for (const std::string_view line : Split(text, '\n')) {
    latest.emplace_back(line);
    if (latest.size() > kMostShown) latest.pop_front();
  }
}

// A terminal that takes nothing (Ctrl-S) does not hold up an end.
void WriteNow(std::string_view text) noexcept {
  while (!text.empty()) {
    pollfd terminal{STDERR_FILENO, POLLOUT, 0};
    const int ready = poll(&terminal, 1, 1000);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return;
    const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno != EINTR && errno != EAGAIN) return;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

std::array<struct sigaction, FullScreen::kCrashes.size()> FullScreen::before_;

std::string FullScreen::WhyNot() {
  if (isatty(STDERR_FILENO) != 1) return "stderr is no terminal";
  if (!TerminalTakesControl(STDERR_FILENO)) {
    return "the terminal takes no control sequences (TERM is unset or dumb)";
  }
  return "";
}

FullScreen::FullScreen() {
  HideProgress();
  {
    const std::lock_guard lock(held_mutex);
    latest.clear();
  }
  for (size_t i = 0; i < kCrashes.size(); ++i) {
    struct sigaction action {};
    sigemptyset(&action.sa_mask);
    if (kCrashes[i] == SIGTSTP) {
      action.sa_handler = OnStop;
      action.sa_flags = SA_RESTART;
    } else {
      action.sa_sigaction = OnCrash;
      action.sa_flags = SA_SIGINFO;
    }
    sigaction(kCrashes[i], nullptr, &before_[i]);
    // A shell without job control ignores stops, and so do we then.
    if (before_[i].sa_handler != SIG_IGN) sigaction(kCrashes[i], &action, nullptr);
  }
  WriteNow(kEnter);
  shown.store(true);
}

FullScreen::~FullScreen() {
  if (shown.exchange(false)) {
    WriteNow(kLeaveFullScreen);
    const std::lock_guard lock(held_mutex);
    const std::string_view text(held, held_bytes.exchange(0));
    WriteNow(FitLines(text, TerminalColumns(STDERR_FILENO)));
  }
  for (size_t i = 0; i < kCrashes.size(); ++i) sigaction(kCrashes[i], &before_[i], nullptr);
}

void FullScreen::OnCrash(int signal, siginfo_t* info, void* context) {
  LeaveFullScreenNow();
  size_t i = 0;
  while (i + 1 < kCrashes.size() && kCrashes[i] != signal) ++i;
  const struct sigaction& before = before_[i];
  sigaction(signal, &before, nullptr);
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else {
    raise(signal);  // delivered when this returns
  }
}

// Ctrl-Z: the shell gets its own screen back.
void FullScreen::OnStop(int) {
  const int error = errno;
  if (shown.load()) WriteNow(kLeaveFullScreen);
  raise(SIGSTOP);
  if (shown.load()) WriteNow(kEnter);
  redraw.store(true);
  errno = error;
}

FullScreen::Size FullScreen::size() const {
  winsize size{};
  ioctl(STDERR_FILENO, TIOCGWINSZ, &size);
  return {TerminalColumns(STDERR_FILENO), size.ws_row > 0 ? size.ws_row : size_t{24}};
}

void FullScreen::Draw(const std::vector<std::string>& lines) {
  const Size now = size();
  std::string frame = "\x1b[H";
  if (now.columns != drawn_.columns || now.rows != drawn_.rows || redraw.exchange(false)) {
    frame += "\x1b[J";
  }
  drawn_ = now;
  const size_t rows = std::min(lines.size(), now.rows);
  for (size_t i = 0; i < rows; ++i) {
    // The last column stays free: writing there moves some terminals to the next line.
    frame += JoinParts({{lines[i], 0}}, now.columns - 1) + "\x1b[K";
    if (i + 1 < rows) frame += "\r\n";
  }
  frame += "\x1b[J";
  if (!shown.load()) return;
  flockfile(stderr);
  std::fwrite(frame.data(), 1, frame.size(), stderr);
  std::fflush(stderr);
  funlockfile(stderr);
}

std::vector<std::string> FullScreen::Messages(size_t most) {
  const std::lock_guard lock(held_mutex);
  const size_t shown_lines = std::min(most, latest.size());
  return {latest.end() - static_cast<ptrdiff_t>(shown_lines), latest.end()};
}

bool FullScreenIsShown() noexcept { return shown.load(); }

bool HoldMessage(std::string_view message) noexcept try {
  if (!shown.load()) return false;
  const std::string text = Escaped(message);
  const std::string_view kept = std::string_view(text).substr(0, kMostHeld / 2);
  const std::lock_guard lock(held_mutex);
  AddLatest(kept);
  size_t bytes = held_bytes.load();
  if (bytes + kept.size() > kMostHeld) {  // the oldest make room
    const size_t dropped = bytes + kept.size() - kMostHeld / 2;
    std::memmove(held, held + dropped, bytes - dropped);
    bytes -= dropped;
  }
  std::memcpy(held + bytes, kept.data(), kept.size());
  held_bytes.store(bytes + kept.size());
  // Whoever left it meanwhile did not see this.
  if (!shown.load()) {
    WriteNow({held, held_bytes.exchange(0)});
  }
  return true;
} catch (...) {
  return false;
}

void ShowMessage(std::string_view message) noexcept try {
  const std::string text = Escaped(message);
  const std::lock_guard lock(held_mutex);
  AddLatest(text);
} catch (...) {  // without memory for it, it is not shown
}

void LeaveFullScreenNow() noexcept {
  if (!shown.exchange(false)) return;
  WriteNow(kLeaveFullScreen);
  WriteNow({held, held_bytes.exchange(0)});
}

void WriteOnTerminal(std::string_view text, const char* end) {
  HideProgress();
  const std::string named = NameFields(text);
  if (FullScreenIsShown() && HoldMessage(named + end)) return;
  const std::string message = MessageFor(STDERR_FILENO, named) + end;
  std::fwrite(message.data(), 1, message.size(), stderr);
}

}  // namespace zeroplan
