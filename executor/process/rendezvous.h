// The meeting of a run's ranks: rank 0 listens, the others connect and identify themselves.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "executor/process/connection.h"
#include "executor/process/process_group.h"

namespace zeroplan {

struct MeetOptions {
  std::chrono::milliseconds limit{120'000};  // for all ranks to arrive
  // Called several times a second; true ends the meeting with Error(kInterrupted). Null: never.
  std::function<bool()> stop_requested;
};

// The reason why the meeting failed, as received from rank 0, which also prints it.
class ToldByRankZero : public Error {
 public:
  using Error::Error;
};

// Rank 0: connections to ranks 1.. (index 0 is closed), once all have joined. A peer that does not
// prove in time that it belongs to the run (handshake.h) is disconnected, and neither disturbs nor
// blocks a rank. Throws Error(kRuntime) naming the ranks that did not arrive within the limit, or
// the one that arrived and was lost, and tells those that had joined.
std::vector<Connection> MeetAsHub(const ProcessPlace& place, const MeetOptions& options);
// The other ranks: the connection to rank 0, once all have joined. Retries until the limit while
// nobody listens, or while the listener cannot prove that it is rank 0. Throws Error(kRuntime)
// naming the address, or what rank 0 refused and why, and ToldByRankZero.
Connection MeetHub(const ProcessPlace& place, const MeetOptions& options);
// Calls the one of the two for this rank. Returns its connections, by rank; ranks other than 0 only
// have the one to rank 0.
std::vector<Connection> Meet(const ProcessPlace& place, const MeetOptions& options);

}  // namespace zeroplan
