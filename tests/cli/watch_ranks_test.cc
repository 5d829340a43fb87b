// train --watch with several ranks, each a process: what the others say.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/stop_signals.h"
#include "executor/process/launcher.h"
#include "executor/process/pipe_lines.h"
#include "tests/cli/screen.h"
#include "tests/cli/train_workspace.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

TEST_CASE("--watch shows what other ranks say while it runs, and prints all of it at the end") {
  const Workspace work;
  const std::string shown = work.path("shown");
  // Rank 0 is a run of its own, since the CPU backend has no ranks that are processes.
  const std::string script = R"(
    if [ $ZEROPLAN_RANK != 0 ]; then
      echo "warning: disk $ZEROPLAN_RANK is $(printf '\033[31m')slow"
      while [ ! -e )" + shown +
                             R"( ]; do sleep 0.02; done
      echo "last words of $ZEROPLAN_RANK"
      exit 0
    fi
    unset ZEROPLAN_RANK ZEROPLAN_WORLD_SIZE ZEROPLAN_LOCAL_RANK ZEROPLAN_LOCAL_WORLD_SIZE
    unset ZEROPLAN_ADDRESS ZEROPLAN_PORT ZEROPLAN_RUN_TOKEN ZEROPLAN_LISTEN_FD
    ZEROPLAN_NO_DETECT=1 exec )" +
                             BinaryPath("zeroplan ") + work.Train("--watch", 10'000'000);
  const auto launch = [&] {
    LaunchOptions options;
    options.program = "/bin/sh";
    options.arguments = {"sh", "-c", script, "--watch"};
    options.ranks = 3;
    const StopSignalsBlocked blocked;
    return Launch(options).exit_code;
  };
  const auto says = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  int stage = 0;
  const TerminalRun run =
      RunProcessInTerminal(launch, 100, 30, [&](pid_t pid, int, TerminalRun& so_far) {
        const std::string& text = so_far.screen.full_text;
        if (stage == 0 && says(text, "rank 1: warning: disk 1 is \\x1b[31mslow") &&
            says(text, "rank 2: warning: disk 2 is")) {
          stage = 1;
          CHECK(so_far.screen.left == 0);
          fclose(fopen(shown.c_str(), "w"));
        } else if (stage == 1 && says(text, "rank 1: last words") &&
                   says(text, "rank 2: last words")) {
          stage = 2;
          kill(pid, SIGTERM);
        }
      });
  CAPTURE(run.text);
  CHECK(stage == 2);
  CHECK(run.exit_code == 130);
  CHECK(run.screen.left == 1);
  CHECK(run.screen.unknown() == "");
  std::string after;
  for (const std::string& line : run.screen.lines()) after += line + "\n";
  for (const char* rank : {"1", "2"}) {
    const size_t first = after.find(std::string("rank ") + rank + ": warning: disk");
    const size_t last = after.find(std::string("rank ") + rank + ": last words of " + rank);
    CHECK(first < last);
    CHECK(last != std::string::npos);
    CHECK(after.find(std::string("rank ") + rank + ": last words", last + 1) == std::string::npos);
  }
}

TEST_CASE("messages for the view: a line a packet, and never a wait") {
  auto [sender, receiver] = MakeRankMessages();
  const std::string number = std::to_string(fcntl(receiver.get(), F_DUPFD, 0));
  setenv(kRankMessagesVariable, number.c_str(), 1);
  {
    RankMessages messages;
    CHECK(messages.Take().empty());
    SendRankMessages(sender, "rank 1: a\n\nrank 2: b\n" + std::string(5000, 'x') + "\n");
    const std::vector<std::string> want = {"rank 1: a", "rank 2: b", std::string(1024, 'x')};
    CHECK(messages.Take() == want);
    for (int i = 0; i < 100'000; ++i) SendRankMessages(sender, "rank 1: again\n");
    const std::vector<std::string> kept = messages.Take();
    CHECK(!kept.empty());
    CHECK(kept.size() < 100'000);
    SendRankMessages(sender, "rank 1: room again\n");
    CHECK(messages.Take() == std::vector<std::string>{"rank 1: room again"});
    receiver.Close();
  }
  SendRankMessages(sender, "rank 1: nobody is there\n");  // no signal
  // A number that is something else is left alone.
  setenv(kRankMessagesVariable, "2", 1);
  { CHECK(RankMessages().Take().empty()); }
  CHECK(fcntl(2, F_GETFD) >= 0);
  unsetenv(kRankMessagesVariable);
}

}  // namespace
}  // namespace zeroplan
