#include "executor/process/host_text.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <climits>

#include "executor/process/connection.h"
#include "machine/network_state.h"

namespace zeroplan {
namespace {

std::string OwnHostName() {
  char name[HOST_NAME_MAX + 1] = "";
  return gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "this host";
}

std::string DigitsText(const sockaddr* address, socklen_t bytes) {
  char text[NI_MAXHOST] = "";
  getnameinfo(address, bytes, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

// The interface of an address; IPv4's may come in IPv6's form.
std::string InterfaceText(const std::string& address) {
  constexpr std::string_view kMapped = "::ffff:";
  const std::string interface =
      InterfaceOfAddress(address.starts_with(kMapped) ? address.substr(kMapped.size()) : address);
  return interface.empty() ? "an interface that is not known" : interface;
}

}  // namespace

std::string OnHostText(const std::string& own_address) {
  if (IsLoopbackText(own_address)) return "";
  return fmt::format(", on {} ({}, {})", OwnHostName(), own_address, InterfaceText(own_address));
}

std::string OtherEndText(int fd) {
  const std::string peer = PeerAddress(fd);
  if (IsLoopbackText(peer)) return "";
  sockaddr_storage own{};
  socklen_t bytes = sizeof own;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &bytes) != 0) return ", at " + peer;
  return fmt::format(", at {}, by this host's {}", peer,
                     InterfaceText(DigitsText(reinterpret_cast<sockaddr*>(&own), bytes)));
}

std::string WayText(const addrinfo& to) {
  const std::string address = DigitsText(to.ai_addr, to.ai_addrlen);
  if (IsLoopbackText(address)) return "";
  const auto route = RouteTo(address);
  return route ? fmt::format(" from {}, by its {}", OwnHostName(), route->interface)
               : fmt::format(" from {}, which has no route there", OwnHostName());
}

}  // namespace zeroplan
