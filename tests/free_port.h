// A TCP port of this host that nobody listens at.
#pragma once

#include "core/base/files.h"
#include "executor/process/connection.h"

namespace zeroplan {

inline int FreePort() {
  int port = 0;
  const UniqueFd listener = Listen("127.0.0.1", false, port);
  return port;
}

}  // namespace zeroplan
