// The frames of a star's collectives, converted to and from bytes that a peer may have forged.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace zeroplan {

enum class CollectiveCall : uint8_t { kBarrier, kBroadcast, kAllGather };

// The longest wait, which represents "for ever".
inline constexpr std::chrono::hours kLongestLimit(24 * 30);

// "barrier 12".
std::string NameOfCall(CollectiveCall call, uint64_t number);
// " (saving step 40)"; "" without a purpose.
std::string InPurpose(const std::string& purpose);

// A rank's part of a collective.
struct Part {
  uint64_t number = 0;  // the collective's, from 0
  CollectiveCall call = CollectiveCall::kBarrier;
  uint64_t size = 0;  // bytes of a broadcast: the same on all ranks
  std::chrono::milliseconds limit{0};
  std::string purpose;  // the rank's activity, from SetDeadline()
  std::string bytes;
};
std::string WritePart(const Part& part);
std::optional<Part> ReadPart(std::string_view payload);  // nothing if it is no part

// The result of the parts: one text for each rank (kAllGather), rank 0's (kBroadcast) or none.
struct Result {
  uint64_t number = 0;
  CollectiveCall call = CollectiveCall::kBarrier;
  std::vector<std::string> texts;
};
std::string WriteResult(const Result& result);
std::optional<Result> ReadResult(std::string_view payload);

// A rank's activity, as text, and its duration.
struct Doing {
  std::chrono::milliseconds since{0};
  std::string what;
};
std::string WriteDoing(const Doing& doing);
std::optional<Doing> ReadDoing(std::string_view payload);

// Text from another process, cleaned before it reaches a terminal or determines an exit code.

// At most the first kMaxPeerText bytes of the text, with '?' for each byte that UnprintableBytes
// (core/base/strings.h) reports. Line feeds become ' ', unless `lines`: then they stay.
std::string PeerText(std::string_view text, bool lines = false);
inline constexpr size_t kMaxPeerText = 4000;

// A run's failure in the form of a frame: its exit code (1 byte), then its message.
struct Failure {
  ExitCode code = ExitCode::kRuntime;
  std::string message;
};
std::string WriteFailure(const Failure& failure);
// Parses any bytes from a process that is authenticated. The code is one of a failure: kDone and
// unknown ones become kRuntime.
Failure ReadFailure(std::string_view payload);

// The number of ranks that a message names; it counts the rest.
inline constexpr size_t kRanksNamed = 8;

// "rank 3: MESSAGE", or the message unchanged if it begins so already.
std::string OfRank(int rank, std::string_view message);

}  // namespace zeroplan
