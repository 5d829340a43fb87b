// How the ranks of a run find each other: rank 0 listens, the others connect and say who they are.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "executor/process/connection.h"
#include "executor/process/process_group.h"

namespace zeroplan {

struct MeetOptions {
  std::chrono::milliseconds limit{120'000};  // for all ranks to come
  // Asked several times a second; true ends the meeting with Error(kInterrupted). Null: never.
  std::function<bool()> stop_requested;
};

// Why the meeting failed, as rank 0 told it: rank 0 says it itself.
class ToldByRankZero : public Error {
 public:
  using Error::Error;
};

// Rank 0: connections to ranks 1.. (index 0 is closed), once all have joined. Who does not show in
// time that it belongs to the run (handshake.h) is sent away and neither disturbs nor keeps a rank
// out. Throws Error(kRuntime) naming the ranks that did not come within the limit, or the one that
// came and was lost; those that had joined are told.
std::vector<Connection> MeetAsHub(const ProcessPlace& place, const MeetOptions& options);
// The others: the connection to rank 0, once all have joined. Tries again until the limit while
// nobody listens, or while whoever does cannot show that it is rank 0. Throws Error(kRuntime)
// naming the address, or what rank 0 refused and why, and ToldByRankZero.
Connection MeetHub(const ProcessPlace& place, const MeetOptions& options);
// What this rank has to do of the two: its connections, by rank; the others have that to rank 0
// alone.
std::vector<Connection> Meet(const ProcessPlace& place, const MeetOptions& options);

}  // namespace zeroplan
