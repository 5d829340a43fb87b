#include "core/base/thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstring>
#include <string>

#include "core/base/error.h"

namespace zeroplan {
namespace {

constexpr size_t kWholeStack = size_t{8} << 20;

}  // namespace

std::string WhyNoThread(int error) {
  rlimit limit{};
  std::string text = std::strerror(error);
  if (getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    text += fmt::format(
        "; ulimit -u allows this user {} processes and threads, and the control group's pids.max "
        "may "
        "allow fewer",
        limit.rlim_cur);
  } else {
    text += "; ulimit -u is not set, so the control group's pids.max may allow no more";
  }
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    text += fmt::format("; ulimit -v allows {} bytes, stacks too", limit.rlim_cur);
  }
  return text + "; raise that limit, or end other processes";
}

void ThrowNoThread(std::string_view what, int error) {
  ThrowRuntime("cannot start a thread for {}: {}", what, WhyNoThread(error));
}

void RunOnWholeStack(const std::function<void()>& body) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kWholeStack);
  pthread_setattr_default_np(&attributes);
  rlimit limit{};
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kWholeStack) {
    pthread_attr_destroy(&attributes);
    return body();
  }
  pthread_t thread{};
  const auto main = [](void* raw) -> void* {
    (*static_cast<const std::function<void()>*>(raw))();
    return nullptr;
  };
  const int error =
      pthread_create(&thread, &attributes, main, const_cast<std::function<void()>*>(&body));
  pthread_attr_destroy(&attributes);
  if (error != 0) {
    ThrowRuntime("ulimit -s leaves {} bytes of stack, and a thread with {} cannot be started: {}",
                 limit.rlim_cur, kWholeStack, WhyNoThread(error));
  }
  // Signals are the other thread's, as they would be this one's.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pthread_join(thread, nullptr);
}

}  // namespace zeroplan
