#include "core/base/unique_fd.h"

#include <unistd.h>

#include <cerrno>

namespace zeroplan {

int UniqueFd::Close() noexcept {
  if (fd_ < 0) return 0;
  // Not repeated on EINTR: Linux has closed the descriptor by then, and another thread may own its
  // number already.
  const int result = ::close(Release());
  return result == 0 || errno == EINTR ? 0 : errno;
}

}  // namespace zeroplan
