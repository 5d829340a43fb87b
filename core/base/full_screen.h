// A full-screen view in stderr's terminal, on its alternate screen. The earlier contents come back
// when the process ends, by anything but SIGKILL.
#pragma once

#include <signal.h>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// The option that requests a full screen; a launcher of processes looks for it.
inline constexpr std::string_view kFullScreenOption = "--watch";
// Shows the cursor again, and leaves the alternate screen.
inline constexpr std::string_view kLeaveFullScreen = "\x1b[?25h\x1b[?1049l";

class FullScreen {
 public:
  // The reason why no full screen is possible, "stderr is no terminal"; "" if it is.
  static std::string WhyNot();

  // Enters the full screen. During its lifetime, text written to stderr (core/base/log.h) is held
  // back, and printed on leaving. REQUIRES: WhyNot() is "", and no other one exists.
  FullScreen();
  ~FullScreen();
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  // The terminal's present size: after a resize the next Draw fits the new size.
  struct Size {
    size_t columns = 0, rows = 0;
  };
  Size size() const;
  // Replaces the contents; cuts lines that do not fit. Any thread, one at a time.
  void Draw(const std::vector<std::string>& lines);
  // The last messages that were held back or only shown, the newest last; escaped.
  static std::vector<std::string> Messages(size_t most);

 private:
  static constexpr std::array kCrashes = {SIGSEGV, SIGBUS,  SIGABRT, SIGFPE,
                                          SIGILL,  SIGQUIT, SIGSYS,  SIGTSTP};
  static void OnCrash(int signal, siginfo_t* info, void* context);
  static void OnStop(int signal);

  static std::array<struct sigaction, kCrashes.size()> before_;
  Size drawn_;
};

// For SetMessageWriter (core/base/log.h): wipes the progress line, and holds the message back while
// a full screen is shown. Fields are named as options.
void WriteOnTerminal(std::string_view text, const char* end);

bool FullScreenIsShown() noexcept;

// Holds `text` back until the full screen is left; false if none is shown. Never throws.
bool HoldMessage(std::string_view text) noexcept;

// Shows a message that another process holds and prints. Never throws.
void ShowMessage(std::string_view text) noexcept;

// Leaves the full screen and prints the messages held back, for callers that end the process at
// once (_exit, a signal). Async-signal-safe; does nothing if no full screen is shown.
void LeaveFullScreenNow() noexcept;

}  // namespace zeroplan
