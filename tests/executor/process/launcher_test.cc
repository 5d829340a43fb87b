// Ranks as processes: started, killed, stuck, interrupted. tests/process_child is the program.
#include "executor/process/launcher.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "executor/process/connection.h"
#include "tests/executor/process/launched.h"
#include "tests/patience.h"

namespace zeroplan {
namespace {

using std::chrono::milliseconds;

TEST_CASE("ranks exchange what they have, and their lines carry their names") {
  Launched run(4, kNoLimit, {"collectives"});
  const int code = run.End();
  CAPTURE(run.text());
  CHECK(code == 0);
  CHECK(run.Count("ok\n") == 4);
  for (int r = 1; r < 4; ++r) CHECK(run.Count("rank " + std::to_string(r) + ": ok\n") == 1);
}

// The largest of the times that lines of this kind end with, in seconds.
double Longest(const std::string& text, const std::string& kind) {
  double longest = -1;
  for (size_t at = text.find(kind); at != std::string::npos; at = text.find(kind, at + 1)) {
    longest = std::max(longest, std::stod(text.substr(at + kind.size())) / 1e3);
  }
  return longest;
}

// What they said.
std::string Swarm(int ranks, rlim_t open_files) {
  Launched run(ranks, kNoLimit, {"swarm"}, false, open_files);
  const int code = run.End();
  CAPTURE(run.text());
  CHECK(code == 5);
  CHECK(run.Count("heard ") == ranks);
  return run.text();
}

TEST_CASE("hundreds of ranks meet, gather and fail together, with few open files allowed") {
  Swarm(200, 128);
}

// ZEROPLAN_SWARM=1000 runs it with as many (docs/multi-gpu.md has the times).
TEST_CASE("hundreds of ranks meet and hear of a failure in time" * doctest::test_suite("timing")) {
  const char* wanted = std::getenv("ZEROPLAN_SWARM");
  const int ranks = wanted == nullptr ? 200 : std::stoi(wanted);
  const std::string text = Swarm(ranks, 1024);
  MESSAGE(ranks, " ranks met in ", Longest(text, "met "), " s, gathered in ",
          Longest(text, "gathered "), " s, all heard of a failure in ", Longest(text, "heard "),
          " s");
  CHECK(Longest(text, "met ") < 30);
  CHECK(Longest(text, "heard ") < 10);
}

TEST_CASE("a hard limit of open files that does not suffice is named") {
  Launched run(200, kNoLimit, {"swarm"}, false, 64, /*hard=*/true);
  CHECK(run.End() == 4);
  CAPTURE(run.text());
  CHECK(run.Count("the outputs of the ranks need ") == 1);
  CHECK(run.Count("ulimit -Hn") == 1);
}

TEST_CASE("a killed rank ends the run, and everybody says which it was") {
  for (const int victim : {0, 2}) {
    CAPTURE(victim);
    Launched run(3, kNoLimit, {"die", std::to_string(victim)});
    const int code = run.End();
    CAPTURE(run.text());
    CHECK(code == 4);
    const std::string name = "rank " + std::to_string(victim);
    CHECK(run.Count(name + ": lost (connection closed)\n") == 2);
    CHECK(run.Count("zeroplan: " + name + " was killed by signal 9") == 1);
  }
}

TEST_CASE("a rank that dies before the others have met it does not keep them waiting") {
  Launched run(3, milliseconds(300), {"die-early", "1"});
  const int code = run.End();
  CAPTURE(run.text());
  CHECK(code == 4);
  CHECK(run.Count("rank 1 was killed by signal 9") == 1);
}

TEST_CASE("a rank's failure is everybody's, with its exit code") {
  Launched run(3, kNoLimit, {"fail", "1"});
  const int code = run.End();
  CAPTURE(run.text());
  CHECK(code == 5);
  CHECK(run.Count("rank 1: the loss is no number\n") == 2);
}

TEST_CASE("what several ranks say of a run's end is passed on once") {
  Launched run(5, kNoLimit, {"same-words"});
  const int code = run.End();
  CAPTURE(run.text());
  CHECK(code == 0);
  CHECK(run.Count(": zeroplan: rank 0: lost\n") == 1);
  CHECK(run.Count(": zeroplan: by rank ") == 4);
}

TEST_CASE("a rank that leaves while others need it is a failure") {
  for (const int leaver : {0, 1}) {
    CAPTURE(leaver);
    Launched run(3, kNoLimit, {"leave", std::to_string(leaver)});
    const int code = run.End();
    CAPTURE(run.text());
    CHECK(code == 4);
    CHECK(run.Count("rank " + std::to_string(leaver) +
                    ": left the run while others still needed it") == 2);
  }
}

// Rank 1 stops (SIGSTOP), so that its launcher has to kill it; the others are heard within
// `silence`.
Launched OneFrozen(milliseconds patience, milliseconds silence) {
  return Launched(3, patience, {"freeze", "1", std::to_string(silence.count())});
}

TEST_CASE("a rank without a word is lost") {
  std::string text;
  CHECK_MESSAGE(WithLongerLimits(milliseconds(300),
                                 [&](milliseconds patience) {
                                   Launched run = OneFrozen(patience, 5 * patience);
                                   const int code = run.End();
                                   text = run.text();
                                   return code == 4 && run.Count("rank 1: lost (no word for ") == 2;
                                 }),
                text);
}

TEST_CASE("a stopped rank does not use up the launcher's patience") {
  std::string text;
  CHECK_MESSAGE(WithLongerLimits(milliseconds(1'500),
                                 [&](milliseconds silence) {
                                   Launched run = OneFrozen(kNoLimit, silence);
                                   const int code = run.End();
                                   text = run.text();
                                   return code == 4 &&
                                          run.Count("rank 1: lost (no word for ") == 2 &&
                                          run.Count("rank 1 is stopped (SIGSTOP); ending it") == 1;
                                 }),
                text);
}

TEST_CASE("ranks stuck in a call end themselves after a failure") {
  Launched run(3, kNoLimit, {"stuck", "2"});
  const int code = run.End();
  CAPTURE(run.text());
  CHECK(code == 4);
  CHECK(run.Count("zeroplan: rank 2: lost (connection closed)\n") == 2);
  CHECK(run.Count("did not end within") == 2);
}

TEST_CASE("ranks that do not hear of it are ended by the launcher, and are not who failed first") {
  for (const char* behaviour : {"deaf", "asleep"}) {  // to SIGTERM, and to the failure alone
    CAPTURE(behaviour);
    Launched run(3, milliseconds(300), {behaviour, "1"});
    const int code = run.End();
    CAPTURE(run.text());
    CHECK(code == 2);
    CHECK(run.Count("rank 1 ended with exit code 2") == 1);
    CHECK(run.Count("ending it") == 2);
    CHECK(run.Count("was killed") == 0);
  }
}

TEST_CASE("one stop asks every rank once, however it comes") {
  SUBCASE("to the launcher alone") {
    Launched run(3, kNoLimit, {"stop"});
    run.Await("ready", 3);
    kill(run.pid(), SIGTERM);
    const int code = run.End();
    CAPTURE(run.text());
    CHECK(code == 130);
    CHECK(run.Count("saved\n") == 3);
  }
  SUBCASE("to all of them, as from a terminal") {
    Launched run(3, kNoLimit, {"stop"}, /*own_group=*/true);
    run.Await("ready", 3);
    kill(-run.pid(), SIGINT);
    const int code = run.End();
    CAPTURE(run.text());
    CHECK(code == 130);
    CHECK(run.Count("saved\n") == 3);
  }
}

TEST_CASE("a stop while the ranks meet ends them, not the meeting's limit") {
  for (const int absent : {0, 2}) {
    for (const int signal : {SIGINT, SIGTERM}) {
      CAPTURE(absent);
      Launched run(3, kNoLimit, {"never-comes", std::to_string(absent)});
      run.Await("ready", 1);
      run.Await("meeting", 2);
      std::this_thread::sleep_for(milliseconds(200));  // they are likely to wait by then
      kill(run.pid(), signal);
      const int code = run.End();
      CAPTURE(run.text());
      CHECK(code == 130);
    }
  }
}

TEST_CASE("a rank that was ending when its stop came is not one that was killed") {
  for (const int ending : {0, 1}) {
    Launched run(2, kNoLimit, {"ending", std::to_string(ending)});
    run.Await("ready", 2);
    kill(run.pid(), SIGTERM);
    const int code = run.End();
    CAPTURE(run.text());
    CHECK(code == 130);
    CHECK(run.Count("killed") == 0);
  }
}

TEST_CASE("a second stop ends the ranks at once") {
  Launched run(2, kNoLimit, {"stop"});
  run.Await("ready", 2);
  kill(run.pid(), SIGINT);
  std::this_thread::sleep_for(milliseconds(100));
  kill(run.pid(), SIGINT);
  const int code = run.End();
  CAPTURE(run.text());
  // Unless this machine was so slow that the ranks were through by then.
  CHECK((code == 128 + SIGINT || code == 130));
}

Launched Relaunched(int ranks, int restarts, const std::vector<std::string>& behaviour) {
  return Launched({"relaunch", std::to_string(ranks), std::to_string(restarts)}, behaviour);
}

TEST_CASE("ranks that were killed are started again, as often as allowed") {
  Launched enough = Relaunched(3, 2, {"dies-twice", "1"});
  int code = enough.End();
  CAPTURE(enough.text());
  CHECK(code == 0);
  CHECK(enough.Count("done resumed\n") == 3);
  const std::string why = ", since rank 1 was killed by signal 9 (Killed): going on from step 7\n";
  CHECK(enough.Count("zeroplan: restart 1 of 2" + why) == 1);
  CHECK(enough.Count("zeroplan: restart 2 of 2" + why) == 1);

  Launched too_few = Relaunched(3, 1, {"dies-twice", "1"});
  code = too_few.End();
  CAPTURE(too_few.text());
  CHECK(code == 4);
  CHECK(too_few.Count("zeroplan: restart 1 of 1" + why) == 1);
  CHECK(too_few.Count("all 1 restarts are used up") == 1);
  CHECK(too_few.Count("done") == 0);
}

TEST_CASE("what is the user's to mend, or was asked for, starts nothing again") {
  Launched diverged = Relaunched(3, 2, {"fail", "1"});
  CHECK(diverged.End() == 5);
  CHECK(diverged.Count("restart") == 0);
  Launched usage = Relaunched(2, 2, {"deaf", "0"});
  CHECK(usage.End() == 2);
  CHECK(usage.Count("restart") == 0);
  Launched stopped = Relaunched(2, 2, {"stop"});
  stopped.Await("ready", 2);
  kill(stopped.pid(), SIGTERM);
  CHECK(stopped.End() == 130);
  CHECK(stopped.Count("restart") == 0);
}

TEST_CASE("the ranks die with their launcher") {
  Launched run(3, kNoLimit, {"stop"});
  run.Await("ready", 3);
  kill(run.pid(), SIGKILL);
  CHECK(run.End() == 1000 + SIGKILL);  // returns when nobody holds the pipe any more
  CHECK(run.Count("saved") == 0);
}

}  // namespace
}  // namespace zeroplan
