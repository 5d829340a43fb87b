#include "executor/process/tcp_sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "core/base/error.h"

namespace zeroplan {
namespace {

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(address);
    return ntohl(in->sin_addr.s_addr) >> 24 == 127;
  }
  const auto* in6 = reinterpret_cast<const sockaddr_in6*>(address);
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

void MakeAny(sockaddr* address) {
  if (address->sa_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(address)->sin_addr.s_addr = htonl(INADDR_ANY);
  } else if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_addr = in6addr_any;
  }
}

int BoundPort(int fd) {
  sockaddr_storage bound{};
  socklen_t bytes = sizeof bound;
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &bytes);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

// A closed one, and errno, if it cannot.
UniqueFd ListenAt(const addrinfo& at, bool any) {
  UniqueFd fd(socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fd;
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage where{};
  std::memcpy(&where, at.ai_addr, at.ai_addrlen);
  if (any) MakeAny(reinterpret_cast<sockaddr*>(&where));
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&where), at.ai_addrlen) == 0 &&
      listen(fd.get(), SOMAXCONN) == 0) {
    return fd;
  }
  const int error = errno;
  fd.Close();
  errno = error;
  return fd;
}

}  // namespace

Addresses Resolve(const std::string& host, int port, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) why = fmt::format("{}: {}", host, gai_strerror(error));
  return Addresses(error == 0 ? found : nullptr);
}

std::vector<std::string> SplitHosts(const std::string& address) {
  std::vector<std::string> hosts;
  for (size_t begin = 0; begin <= address.size();) {
    const size_t end = std::min(address.find(',', begin), address.size());
    if (end > begin) hosts.push_back(address.substr(begin, end - begin));
    begin = end + 1;
  }
  return hosts;
}

UniqueFd BeginToConnect(const addrinfo& address, std::string& why) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd && (connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0 || errno == EINPROGRESS)) {
    return fd;
  }
  why = std::strerror(errno);
  return {};
}

std::string WhyNotConnected(int fd) {
  int error = 0;
  socklen_t bytes = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
  return error == 0 ? "" : std::strerror(error);
}

std::string PeerAddress(int fd) {
  sockaddr_storage peer{};
  socklen_t bytes = sizeof peer;
  char text[NI_MAXHOST] = "";
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) return "";
  getnameinfo(reinterpret_cast<sockaddr*>(&peer), bytes, text, sizeof text, nullptr, 0,
              NI_NUMERICHOST);
  return text;
}

UniqueFd Listen(const std::string& address, bool other_hosts, int& port) {
  std::string why = "no such address";
  const std::vector<std::string> hosts = SplitHosts(address);
  for (const bool any : {false, true}) {
    if (!any && hosts.size() > 1) continue;
    bool foreign = hosts.size() > 1;  // an address that is none of this host's
    for (const std::string& host : hosts) {
      const Addresses found = Resolve(host, port, why);
      for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
        if (!any && other_hosts && IsLoopback(at->ai_addr)) {
          foreign = true;
          continue;
        }
        UniqueFd fd = ListenAt(*at, any);
        if (fd) {
          if (port == 0) port = BoundPort(fd.get());
          return fd;
        }
        why = std::strerror(errno);
        foreign = foreign || errno == EADDRNOTAVAIL;
      }
    }
    if (!foreign) break;
  }
  ThrowRuntime("rank 0 cannot listen at {}:{}: {}; ZEROPLAN_PORT sets another port", address, port,
               why);
}

namespace {

rlim_t OpenNow() {
  std::error_code error;
  std::filesystem::directory_iterator at("/proc/self/fd", error), end;
  rlim_t count = 0;
  for (; !error && at != end; at.increment(error)) ++count;
  return error ? 64 : count;
}

}  // namespace

int RaiseOpenFileLimit(int more) {
  rlimit limit{};
  const rlim_t open = OpenNow(), needed = open + static_cast<rlim_t>(more);
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return more;
  if (limit.rlim_cur < needed) {
    limit.rlim_cur = std::min(needed, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur >= needed) return more;
  return limit.rlim_cur > open ? static_cast<int>(limit.rlim_cur - open) : 0;
}

void NeedOpenFiles(int more, const char* what) {
  const int can = RaiseOpenFileLimit(more);
  if (can >= more) return;
  ThrowRuntime(
      "{} need {} more open files, and this process's hard limit leaves {}; raise it (ulimit -Hn, "
      "LimitNOFILE of the service)",
      what, more, can);
}

}  // namespace zeroplan
