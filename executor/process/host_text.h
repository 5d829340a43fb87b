// Where the processes of a run are, for messages: host, address and interface. Empty where that is
// the loopback interface, as all are on one host then.
#pragma once

#include <netdb.h>

#include <string>

namespace zeroplan {

// ", on node2 (10.0.0.2, eth0)": this host, by the address at which others know it
// (ProcessGroup::host_address).
std::string OnHostText(const std::string& own_address);

// ", at 10.0.0.2, by this host's eth0": the other end of a connection.
std::string OtherEndText(int fd);

// " from node2, by its eth0": the way from this host to an address.
std::string WayText(const addrinfo& to);

}  // namespace zeroplan
