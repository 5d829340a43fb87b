// The place of a run's process, for messages: host, address and interface. Empty for the loopback
// interface, because then all processes are on one host.
#pragma once

#include <netdb.h>

#include <string>

namespace zeroplan {

// ", on node2 (10.0.0.2, eth0)": this host, by its address for others (ProcessGroup::host_address).
std::string OnHostText(const std::string& own_address);

// ", at 10.0.0.2, by this host's eth0": the other end of a connection.
std::string OtherEndText(int fd);

// " from node2, by its eth0": the route from this host to an address.
std::string WayText(const addrinfo& to);

}  // namespace zeroplan
