// Addresses and sockets: what the rendezvous needs of the system.
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "executor/process/connection.h"

namespace zeroplan {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// Null, and `why` says why, if the host has no address. Asks the system's resolver, which may take
// seconds.
Addresses Resolve(const std::string& host, int port, std::string& why);

// The hosts of ProcessPlace::address.
std::vector<std::string> SplitHosts(const std::string& address);

// Begins to connect. A closed one, and `why`, where that fails at once.
UniqueFd BeginToConnect(const addrinfo& address, std::string& why);
// Why a socket that has become writable is not connected; "" if it is.
std::string WhyNotConnected(int fd);

// The host at the other end, as digits.
std::string PeerAddress(int fd);

// A socket that listens at `address`:`port`; a port of 0 takes a free one, which `port` then is.
//
// `address` is the host's own and decides the interface: nobody reaches the socket through others.
// With `other_hosts`, addresses of the loopback interface do not count (many systems give a host's
// own name one). Where no address is left that this host has (it is behind address translation),
// or `address` is a list, it listens on all interfaces. Throws Error(kRuntime) naming the port and
// the fix.
UniqueFd Listen(const std::string& address, bool other_hosts, int& port);

// The limit of open files, which the connections of a large run exceed.

// Raises this process's soft limit so that `more` files can be opened besides those that are, up to
// the hard limit. Returns how many more can be: `more` or less.
int RaiseOpenFileLimit(int more);

// The same, and Error(kRuntime) naming `what`, the limit and `ulimit -n` where it does not suffice.
void NeedOpenFiles(int more, const char* what);

}  // namespace zeroplan
