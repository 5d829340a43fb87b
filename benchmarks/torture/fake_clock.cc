// Loaded before the C library (LD_PRELOAD): the wall clock jumps.
//
//     FAKE_CLOCK_SEED=7      and the process's id, of the jumps: within three years either way, one
//     at each call FAKE_CLOCK_LOG=FILE    gets a line at the first call
//
// Clocks that only go forward (CLOCK_MONOTONIC) stay as they are.
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

using GetTime = int(clockid_t, timespec*);

std::atomic<uint64_t> g_calls{0};
uint64_t Random(uint64_t turn) {
  const char* seed = std::getenv("FAKE_CLOCK_SEED");
  uint64_t x = (seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10)) * 0x9e3779b97f4a7c15 +
               turn + static_cast<uint64_t>(getpid());
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Seconds.
int64_t Offset() {
  constexpr int64_t kYears = 3 * 365 * 86'400;
  const uint64_t call = g_calls++;
  const char* path = std::getenv("FAKE_CLOCK_LOG");
  if (call == 0 && path != nullptr) {
    if (std::FILE* file = std::fopen(path, "a")) {
      std::fputs("asked\n", file);
      std::fclose(file);
    }
  }
  return static_cast<int64_t>(Random(call) % (2 * kYears)) - kYears;
}

int RealTime(clockid_t clock, timespec* out) {
  static GetTime* const real = reinterpret_cast<GetTime*>(dlsym(RTLD_NEXT, "clock_gettime"));
  return real(clock, out);
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* out) noexcept {
  const int result = RealTime(clock, out);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    out->tv_sec += Offset();
  }
  return result;
}
int gettimeofday(timeval* out, void*) noexcept {
  timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}
time_t time(time_t* out) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}

}  // extern "C"
