// What another process said, before it reaches a terminal or decides an exit code.
#pragma once

#include <string>
#include <string_view>

#include "core/base/error.h"

namespace zeroplan {

// On one line, of at most kMaxPeerText bytes: control characters (C0, delete, and C1 in UTF-8)
// become '?', line feeds ' '.
std::string PeerText(std::string_view text);
inline constexpr size_t kMaxPeerText = 2000;

// A run's failure, as a frame carries it: its exit code (1 byte), then its message.
struct Failure {
  ExitCode code = ExitCode::kRuntime;
  std::string message;
};
std::string WriteFailure(const Failure& failure);
// Of whatever bytes. The code is one of a failure: kDone and unknown ones become kRuntime.
Failure ReadFailure(std::string_view payload);

// "rank 3: MESSAGE", where it does not begin like this already.
std::string OfRank(int rank, std::string_view message);

}  // namespace zeroplan
