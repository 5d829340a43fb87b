// Maps what went wrong to the exit codes of core/base/error.h.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <functional>
#include <new>
#include <string_view>
#include <system_error>

#include "cli/common/output.h"
#include "cli/programs/app.h"
#include "core/base/error.h"
#include "core/base/full_screen.h"
#include "core/base/log.h"
#include "core/base/thread.h"

namespace {

// A closed one would be given to the next file that is opened, and messages would be written into
// that file. What is written to stdout is the result: where it was closed that fails, as on a full
// disk.
void OpenStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    if (open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR) != fd) return;
  }
}

void Say(std::string_view what, std::string_view more = "") {
  zeroplan::WriteStderr(fmt::format("zeroplan: {}\n{}", what, more));
}

constexpr std::string_view kBug =
    "This is a bug in zeroplan; please report it with the command line.\n";

int ExitCodeOf(const std::function<void()>& run) {
  try {
    run();
    return static_cast<int>(zeroplan::ExitCode::kDone);
  } catch (const zeroplan::Error& error) {
    // No message: another process of the run has said it.
    if (*error.what() != '\0') Say(error.what());
    return static_cast<int>(error.code());
  } catch (const zeroplan::CheckFailure& failure) {
    Say(failure.what(), kBug);
  } catch (const std::bad_alloc&) {
    Say("out of host memory");
  } catch (const std::system_error& error) {
    // A library has started a thread.
    if (error.code() != std::errc::resource_unavailable_try_again) {
      Say(error.what(), kBug);
    } else {
      Say("cannot start a thread: " + zeroplan::WhyNoThread(error.code().value()));
    }
  } catch (const std::exception& error) {
    Say(error.what(), kBug);
  }
  return static_cast<int>(zeroplan::ExitCode::kRuntime);
}

}  // namespace

int main(int argc, char** argv) {
  OpenStandardStreams();
  zeroplan::SetMessageWriter(zeroplan::WriteOnTerminal);
  std::signal(SIGXFSZ, SIG_IGN);  // a file past the limit is a failed write, with a message
  std::signal(SIGPIPE, SIG_IGN);  // a reader that goes away, too (cli/common/output.h)
  int code = 0;
  const auto run = [&] {
    const int ended = ExitCodeOf([&] {
      code = zeroplan::RunProgram(argc, argv);
      if (code == 0) zeroplan::EndIfReaderGone();
    });
    if (ended != 0) code = ended;
  };
  const int started = ExitCodeOf([&] { zeroplan::RunOnWholeStack(run); });
  return started != 0 ? started : code;
}
