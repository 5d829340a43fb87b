// A view over the whole of stderr's terminal, in its alternate screen: what was there before comes
// back at the process's end, whatever ends it but SIGKILL.
#pragma once

#include <signal.h>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// What asks for one on a command line; a launcher of processes looks for it.
inline constexpr std::string_view kFullScreenOption = "--watch";
// Shows the cursor again, and leaves the alternate screen.
inline constexpr std::string_view kLeaveFullScreen = "\x1b[?25h\x1b[?1049l";

class FullScreen {
 public:
  // Why there can be none, "stderr is no terminal"; "" if there can.
  static std::string WhyNot();

  // Enters it. While it lives, what is written to stderr (core/base/log.h) is held back, and
  // printed when it is left. REQUIRES: WhyNot() is "", and no other one lives.
  FullScreen();
  ~FullScreen();
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  // The terminal's size at this moment: whoever resizes it finds the next Draw fitted.
  struct Size {
    size_t columns = 0, rows = 0;
  };
  Size size() const;
  // Replaces what is shown; what does not fit is cut. Any thread, one at a time.
  void Draw(const std::vector<std::string>& lines);
  // The last lines that were held back or only shown, the newest last; escaped.
  static std::vector<std::string> Messages(size_t most);

 private:
  static constexpr std::array kCrashes = {SIGSEGV, SIGBUS,  SIGABRT, SIGFPE,
                                          SIGILL,  SIGQUIT, SIGSYS,  SIGTSTP};
  static void OnCrash(int signal, siginfo_t* info, void* context);
  static void OnStop(int signal);

  static std::array<struct sigaction, kCrashes.size()> before_;
  Size drawn_;
};

// For SetMessageWriter (core/base/log.h): wipes the progress line, and keeps the message where a
// full screen is shown. Fields are named as options.
void WriteOnTerminal(std::string_view text, const char* end);

bool FullScreenIsShown() noexcept;

// Keeps `text` for when the full screen is left; false where none is shown. Never throws.
bool HoldMessage(std::string_view text) noexcept;

// Shows a message that another process keeps and prints. Never throws.
void ShowMessage(std::string_view text) noexcept;

// Leaves it, and prints what was held back, for whoever ends the process at once (_exit, a signal).
// Calls nothing but what a signal handler may call, and does nothing where none is shown.
void LeaveFullScreenNow() noexcept;

}  // namespace zeroplan
