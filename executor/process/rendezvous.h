// How the ranks of a run find each other: rank 0 listens, the others connect and say who they are.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "executor/process/connection.h"
#include "executor/process/process_group.h"

namespace zeroplan {

// A socket that listens at `address`:`port`. Where `any_address`, at every address of this host. A
// port of 0 takes a free one, which `port` then is. Throws Error(kRuntime) naming the port and the
// fix.
UniqueFd Listen(const std::string& address, bool any_address, int& port);

// Rank 0: connections to ranks 1.. (index 0 is closed), once all have joined. Who says no proper
// hello is sent away, and so is whoever belongs to another run; neither disturbs. Throws
// Error(kRuntime) naming the ranks that did not come within `limit`, or the one that came and was
// lost.
std::vector<Connection> MeetAsHub(const ProcessPlace& place, std::chrono::milliseconds limit);
// The others: the connection to rank 0, once all have joined. Tries again until `limit` while
// nobody listens. Throws Error(kRuntime) naming the address, or what rank 0 refused and why.
Connection MeetHub(const ProcessPlace& place, std::chrono::milliseconds limit);

}  // namespace zeroplan
