#include "core/base/stop_signals.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>

namespace zeroplan {
namespace {

TEST_CASE("a stop signal waits until it is asked for, whatever other threads there are") {
  for (const int signal : {SIGINT, SIGTERM}) {
    const StopSignalsBlocked blocked;
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
    // A library's thread: it would get the signal, and the process would end.
    std::thread other([&] {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return over; });
    });
    kill(getpid(), signal);
    {
      const InterruptScope scope;  // delivers it to this thread
      CHECK(StopRequested());
    }
    {
      const std::lock_guard lock(mutex);
      over = true;
    }
    changed.notify_one();
    other.join();
  }
}

}  // namespace
}  // namespace zeroplan
