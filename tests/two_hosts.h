// Two hosts that this machine has for a while: network namespaces with a wire between them. They
// are 10.77.0.1, whose interface is zpa, and 10.77.0.2 with zpb.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace zeroplan {

class TwoHosts {
 public:
  TwoHosts() {
    if (getuid() != 0) {
      why_not_ = "not root";
    } else if (!Run("ip netns add " + a_) || !Run("ip netns add " + b_)) {
      why_not_ = "ip netns cannot make network namespaces here";
    } else if (!Run("ip link add zpa netns " + a_ + " type veth peer name zpb netns " + b_) ||
               !Run("ip -n " + a_ + " addr add 10.77.0.1/24 dev zpa") ||
               !Run("ip -n " + b_ + " addr add 10.77.0.2/24 dev zpb") ||
               !Run("ip -n " + a_ + " link set zpa up") ||
               !Run("ip -n " + b_ + " link set zpb up")) {
      why_not_ = "no pair of interfaces (veth) can be made here";
    }
  }
  ~TwoHosts() {
    for (const std::string& name : {a_, b_}) Run("ip netns del " + name);
  }
  // "": they are there.
  const std::string& why_not() const { return why_not_; }
  // Nothing comes back from that TCP port of the second host, as behind a firewall that drops.
  bool Block(int port) const {
    return Run(fmt::format("ip -n {} rule add ipproto tcp sport {} blackhole pref 10", b_, port));
  }
  bool SetMtu(int bytes) const {
    return Run(fmt::format("ip -n {} link set zpb mtu {}", b_, bytes));
  }
  // Both reach themselves, by 127.0.0.1 and by their address.
  bool RaiseLoopback() const {
    return Run("ip -n " + a_ + " link set lo up") && Run("ip -n " + b_ + " link set lo up");
  }
  // The calling thread, and threads that it starts, are on the first (0) or second (1) host until
  // they end.
  bool Enter(int host) const {
    const int file = open(("/run/netns/" + (host == 0 ? a_ : b_)).c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const bool entered = setns(file, CLONE_NEWNET) == 0;
    close(file);
    return entered;
  }
  // For a shell that stands for ssh: cases of "$1", a host; "$2" is what its shell runs.
  std::string ssh_cases() const {
    return fmt::format(
        "*.1) exec ip netns exec {} sh -c \"$2\";;\n*.2) exec ip netns exec {} sh -c \"$2\";;\n",
        a_, b_);
  }

 private:
  static bool Run(const std::string& command) {
    return std::system((command + " > /dev/null 2>&1").c_str()) == 0;
  }
  const std::string a_ = fmt::format("zpa{}", getpid()), b_ = fmt::format("zpb{}", getpid());
  std::string why_not_;
};

}  // namespace zeroplan
