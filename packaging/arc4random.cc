// The C library has arc4random from 2.36 on, and the libstdc++ that a release links calls it for
// std::random_device. With this one the program starts on older systems, too.
#include <sys/random.h>

#include <cerrno>
#include <cstdlib>

extern "C" unsigned arc4random() {
  unsigned value = 0;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
    if (errno != EINTR) std::abort();
  }
  return value;
}
