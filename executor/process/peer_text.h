// What another process said, before it reaches a terminal or decides an exit code.
#pragma once

#include <string>
#include <string_view>

#include "core/base/error.h"

namespace zeroplan {

// The text's first kMaxPeerText bytes at most, where '?' stands for each byte that UnprintableBytes
// (core/base/strings.h) names. Line feeds become ' ', unless `lines`: then they stay.
std::string PeerText(std::string_view text, bool lines = false);
inline constexpr size_t kMaxPeerText = 4000;

// A run's failure, as a frame carries it: its exit code (1 byte), then its message.
struct Failure {
  ExitCode code = ExitCode::kRuntime;
  std::string message;
};
std::string WriteFailure(const Failure& failure);
// Reads whatever bytes a process sent that has shown that it belongs to the run. The code is one of
// a failure: kDone and unknown ones become kRuntime.
Failure ReadFailure(std::string_view payload);

// How many ranks a message names; it counts the rest.
inline constexpr size_t kRanksNamed = 8;

// "rank 3: MESSAGE", where it does not begin like this already.
std::string OfRank(int rank, std::string_view message);

}  // namespace zeroplan
