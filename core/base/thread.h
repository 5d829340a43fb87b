// Starting threads, which the system may refuse (ulimit -u, the control group's pids.max), on
// stacks that do not depend on `ulimit -s`.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace zeroplan {

// The reason why no further thread or process can start: "Resource temporarily unavailable; ulimit
// -u allows this user 64 ...", with the limits that apply. `error`: errno of pthread_create or
// fork.
std::string WhyNoThread(int error);
// Throws Error(kRuntime): "cannot start a thread for WHAT: " and the reason.
[[noreturn]] void ThrowNoThread(std::string_view what, int error);

// Runs `body` on a thread of its own. Throws as ThrowNoThread.
template <typename Body>
std::jthread StartThread(std::string_view what, Body&& body) {
  try {
    return std::jthread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    ThrowNoThread(what, error.code().value());
  }
}

// Runs `body` on up to `count` more threads, on fewer if the system allows no more: for work whose
// pieces are claimed by any thread, the caller's included. The destructor joins them.
template <typename Body>
std::vector<std::jthread> StartHelpers(size_t count, const Body& body) {
  std::vector<std::jthread> helpers;
  helpers.reserve(count);
  try {
    while (helpers.size() < count) helpers.emplace_back(body);
  } catch (const std::system_error&) {
    // The threads that have started do the work.
  }
  return helpers;
}

// To be called first in a program. Gives threads that are started later, by libraries too, stacks
// of 8 MiB, and `body` too, on a thread of its own if `ulimit -s` leaves this one less. By default
// a thread's stack is as large as that limit, which may be too little or too much. `body` must not
// throw. Throws Error(kRuntime) if that thread cannot be started.
void RunOnWholeStack(const std::function<void()>& body);

}  // namespace zeroplan
