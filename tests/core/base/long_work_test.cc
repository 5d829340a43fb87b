// Who hears that long work is to stop.
#include "core/base/long_work.h"

#include <doctest/doctest.h>
#include <signal.h>

#include "core/base/error.h"
#include "tests/error_of.h"

namespace zeroplan {
namespace {

bool Always() { return true; }
bool Never() { return false; }

TEST_CASE("long work: a stop that is asked for ends it, while it is listened to") {
  CHECK_NOTHROW(ThrowIfInterrupted());
  HearStops(Never);
  CHECK_NOTHROW(ThrowIfInterrupted());
  HearStops(Always);
  CHECK(ErrorOf(ExitCode::kInterrupted, [] { ThrowIfInterrupted(); }) ==
        "interrupted; nothing was saved");
  CHECK_THROWS_AS(LongWork("Searching").Show([] { return ""; }), Error);
  HearStops(nullptr);
  CHECK_NOTHROW(ThrowIfInterrupted());
}

TEST_CASE("long work: so does a signal that waits to be heard") {
  sigset_t signals, before;
  sigemptyset(&signals);
  for (const int signal : kStopSignals) sigaddset(&signals, signal);
  REQUIRE(pthread_sigmask(SIG_BLOCK, &signals, &before) == 0);
  for (const int signal : kStopSignals) {
    CAPTURE(signal);
    raise(signal);
    CHECK_THROWS_AS(ThrowIfInterrupted(), Error);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    int taken = 0;
    REQUIRE(sigwait(&one, &taken) == 0);
    CHECK_NOTHROW(ThrowIfInterrupted());
  }
  REQUIRE(pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
}

}  // namespace
}  // namespace zeroplan
