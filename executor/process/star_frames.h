// The frames of a star's collectives, to and from bytes that a peer may have made up.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

enum class CollectiveCall : uint8_t { kBarrier, kBroadcast, kAllGather };

// The longest wait, which stands for "for ever".
inline constexpr std::chrono::hours kLongestLimit(24 * 30);

// "barrier 12".
std::string NameOfCall(CollectiveCall call, uint64_t number);

// A rank's part of a collective.
struct Part {
  uint64_t number = 0;  // of the collective, from 0
  CollectiveCall call = CollectiveCall::kBarrier;
  uint64_t size = 0;  // of a broadcast, in bytes: the same on all ranks
  std::chrono::milliseconds limit{0};
  std::string purpose;  // what the rank is at, SetDeadline()
  std::string bytes;
};
std::string WritePart(const Part& part);
std::optional<Part> ReadPart(std::string_view payload);  // nothing if it is none

// What the parts made: one text for each rank (kAllGather), rank 0's (kBroadcast) or none.
struct Result {
  uint64_t number = 0;
  CollectiveCall call = CollectiveCall::kBarrier;
  std::vector<std::string> texts;
};
std::string WriteResult(const Result& result);
std::optional<Result> ReadResult(std::string_view payload);

// What a rank is at, in words, and for how long.
struct Doing {
  std::chrono::milliseconds since{0};
  std::string what;
};
std::string WriteDoing(const Doing& doing);
std::optional<Doing> ReadDoing(std::string_view payload);

}  // namespace zeroplan
