// zeroplan doctor --hosts. A shell script stands for ssh; hosts are this machine or, where this is
// root's, network namespaces of it. How fast and how far apart they are has no verdict.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/doctor/hosts.h"
#include "tests/cli/run_binary.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/two_hosts.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

// No answer that comes is late.
const char* const kPatient = "ZEROPLAN_NO_DETECT=1 ZEROPLAN_DOCTOR_SECONDS=86400";

// As ssh: a host, and one text for its shell.
class StandInForSsh {
 public:
  explicit StandInForSsh(const std::string& cases = "") : path_(folder_.path() + "/ssh") {
    std::ofstream(path_) << "#!/bin/sh\ncase $1 in\n" << cases << "esac\nexec sh -c \"$2\"\n";
    chmod(path_.c_str(), 0755);
  }
  const std::string& path() const { return path_; }
  const TempDir& folder() const { return folder_; }

 private:
  TempDir folder_;
  std::string path_;
};

RunResult Ask(const StandInForSsh& ssh, const std::string& arguments) {
  return RunZeroplan("doctor --explain --ssh " + ssh.path() + " " + arguments, kPatient);
}

const Json& CheckOf(const Json& json, const std::string& name) {
  for (const Json& check : json.at("checks")) {
    if (check.at("check") == name) return check;
  }
  FAIL("no check " << name << " in " << json.dump(1));
  return json;
}

TEST_CASE("doctor --hosts: two names of this machine reach each other over loopback") {
  const StandInForSsh ssh("*) echo 'Welcome!'; echo 'a notice' >&2;;\n");
  const RunResult run =
      Ask(ssh, "--hosts localhost:8,user@127.0.0.1 --ports none --wait 3600 --format json");
  CAPTURE(run.out);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const Json json = Json::parse(run.out);
  CHECK(json.at("schema") == "zeroplan.doctor-hosts/1");
  CHECK(json.at("hosts").size() == 2);
  CHECK(json.at("hosts")[0].at("host") == "localhost");
  CHECK(json.at("hosts")[0].at("answers") == true);
  CHECK(json.at("hosts")[1].at("driver").is_null());  // ZEROPLAN_NO_DETECT
  REQUIRE(json.at("links").size() == 2);
  for (const Json& link : json.at("links")) {
    CHECK(link.at("interface") == "lo");
    CHECK(link.at("ports").size() == 1);
    CHECK(link.at("ports")[0].at("state") == "reached");
    CHECK(link.at("ports")[0].at("free") == true);
  }
  REQUIRE(json.at("pairs").size() == 1);
  CHECK(json.at("pairs")[0].at("why_not").is_null());
  CHECK(json.at("pairs")[0].at("round_trip_seconds") > 0);
  CHECK(json.at("pairs")[0].at("bytes_per_second") > 0);
  CHECK(CheckOf(json, "ports").at("state") == "ok");
  CHECK(CheckOf(json, "zeroplan").at("state") == "ok");
  CHECK(json.at("variables")[0].at("name") == "NCCL_SOCKET_IFNAME");
  CHECK(json.at("variables")[0].at("value") == "lo");
}

TEST_CASE("doctor --hosts: hosts that cannot be asked are named, with what mends it") {
  const StandInForSsh ssh(
      "away) echo 'ssh: connect to host away port 22: Connection refused' >&2; exit 255;;\n"
      "old) echo 'zeroplan: doctor-agent: no such command' >&2; exit 2;;\n"
      "odd) cat > /dev/null & printf '\\001zeroplan {\"zeroplan\": \"9\"}\\n'; wait;;\n");
  const RunResult run = Ask(ssh, "--hosts away,localhost,old,odd --ports none --wait 3600");
  CAPTURE(run.out);
  const std::string out = Unwrapped(run.out);
  CHECK(run.exit_code == 4);
  CHECK(Has(run.err, wording::kAwayDoesNotAnswer));
  CHECK(Has(out, wording::kOfHostsAnswer));
  CHECK(Has(out, "Connection refused"));
  CHECK(Has(out, ssh.path() + " away true"));
  CHECK(Has(out, wording::kOldDoesNotAnswerIts));
  CHECK(Has(out, wording::kOddDoesNotAnswerIts));
  CHECK(Has(out, wording::kNotTriedFewerThanTwo));

  const RunResult missing =
      Ask(ssh, "--hosts localhost,127.0.0.1 --remote-path /nowhere/at/all/zeroplan");
  CHECK(missing.exit_code == 4);
  CHECK(Has(missing.err, wording::kLocalhostDoesNotAnswerNowhere));
  CHECK(Has(Unwrapped(missing.out), "--remote-path PATH"));

  const RunResult no_ssh = RunZeroplan("doctor --hosts a,b --ssh /nowhere/ssh", kPatient);
  CHECK(no_ssh.exit_code == 4);
  CHECK(Has(no_ssh.err, wording::kDoesNotAnswerNowhereSsh));
}

TEST_CASE("doctor --hosts: what cannot be meant is refused before anybody is asked") {
  const auto why = [](const std::string& arguments) {
    const RunResult run = RunZeroplan("doctor --explain " + arguments, kPatient);
    CHECK(run.exit_code == 2);
    return run.err;
  };
  CHECK(Has(why("--hosts a"), "--hosts: 1 host; name 2 to 256"));
  CHECK(Has(why("--hosts a,b,a"), "--hosts: a is named twice"));
  CHECK(Has(why("--hosts a,-oProxyCommand=x"), "'-oProxyCommand=x' is not a host's name"));
  CHECK(Has(why("--hosts a,"), "'' is not a host's name"));
  CHECK(Has(why("--hosts a,b --gpus 2"), "--gpus: has no meaning with --hosts"));
  CHECK(Has(why("--hosts a,b --ports 0"), "--ports"));
  CHECK(Has(why("--hosts a,b --hostfile x"), "--hostfile"));
  CHECK(Has(why("--wait 3"), "--wait: there are no --hosts"));
  const TempDir folder;
  std::ofstream(folder.path() + "/hosts") << "# two\nnode1 slots=8\n\n  [fd00::2]:8 # other\n";
  CHECK(HostNamesInFile(folder.path() + "/hosts") == std::vector<std::string>{"node1", "fd00::2"});
  CHECK(HostNames("user@a:8,fd00::1", "--hosts") == std::vector<std::string>{"user@a", "fd00::1"});
}

TEST_CASE("doctor --hosts: in two network namespaces, interfaces, MTU and variables of each") {
  const TwoHosts hosts;
  if (!hosts.why_not().empty()) {
    MESSAGE("skipped: ", hosts.why_not());
    return;
  }
  REQUIRE(hosts.SetMtu(1400));
  const StandInForSsh ssh(hosts.ssh_cases());
  const RunResult run = Ask(ssh, "--hosts 10.77.0.1,10.77.0.2 --wait 3600 --format json");
  CAPTURE(run.out);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const Json json = Json::parse(run.out);
  CHECK(json.at("links")[0].at("interface") == "zpa");
  CHECK(json.at("links")[0].at("source") == "10.77.0.1");
  CHECK(json.at("links")[0].at("address") == "10.77.0.2");
  CHECK(json.at("links")[1].at("interface") == "zpb");
  CHECK(json.at("links")[0].at("ports").size() == 3);  // a free one, 29500, 29610
  CHECK(CheckOf(json, "mtu").at("state") == "costs");
  CHECK(Has(CheckOf(json, "mtu").at("fact"), "10.77.0.1 1500, 10.77.0.2 1400"));
  CHECK(json.at("variables")[0].at("value") == "zpa");
  CHECK(json.at("variables")[0].at("host") == "10.77.0.1");
  CHECK(json.at("variables")[1].at("value") == "zpb");
}

TEST_CASE("doctor --hosts: a port that a firewall blocks is named, with host and interface") {
  const TwoHosts hosts;
  if (hosts.why_not().empty() && !hosts.Block(29500)) {
    MESSAGE("skipped: ip rule cannot block a port here");
    return;
  }
  if (!hosts.why_not().empty()) {
    MESSAGE("skipped: ", hosts.why_not());
    return;
  }
  const StandInForSsh ssh(hosts.ssh_cases());
  const RunResult run = Ask(ssh, "--hosts 10.77.0.1,10.77.0.2 --wait 2 --format json");
  CAPTURE(run.out);
  CHECK(run.exit_code == 4);
  CHECK(Has(run.err, wording::kZpaDoesNotReachZpb));
  CHECK(Has(run.err, wording::kPortNoAnswerWithin));
  const Json json = Json::parse(run.out);
  CHECK(json.at("links")[0].at("ports")[1].at("port") == 29500);
  CHECK(json.at("links")[0].at("ports")[1].at("state") == "silent");
  const Json& check = CheckOf(json, "ports");
  CHECK(check.at("state") == "missing");
  CHECK(Has(check.at("fix"), "-i zpb -p tcp -s 10.77.0.1"));
  CHECK(Has(check.at("fix"), "29500"));
}

// Hosts as they could be, and what is said of them.
struct MadeUpHosts {
  HostsFacts facts;

  explicit MadeUpHosts(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      HostReport host;
      host.name = host.address = fmt::format("node{}", i + 1);
      HostFacts& own = host.facts;
      own.zeroplan = "0.1.0";
      own.driver = "580.82.07";
      own.gpus = 8;
      own.libraries.cuda = true;
      own.libraries.runtime = 13000;
      own.libraries.nccl = 22803;
      own.verbs_library = true;
      own.own_addresses = {fmt::format("10.0.0.{}", i + 1)};
      own.network.host_name = host.name;
      own.network.first_free_port = 32768;
      own.network.last_free_port = 60999;
      own.network.interfaces = {{"eth0", true, 1500, 25'000, false, own.own_addresses},
                                {"lo", true, 65536, 0, true, {"127.0.0.1"}}};
      own.ports = {{0, 41000, ""}, {29500, 29500, ""}};
      facts.hosts.push_back(host);
    }
    for (size_t from = 0; from < count; ++from) {
      for (size_t to = 0; to < count; ++to) {
        if (from == to) continue;
        HostLink link;
        link.from = from;
        link.to = to;
        link.address = fmt::format("10.0.0.{}", to + 1);
        link.route = {"eth0", fmt::format("10.0.0.{}", from + 1), ""};
        link.ports.assign(2, {ProbeReach::State::kReached, "", 0});
        link.tried = true;
        facts.links.push_back(link);
        if (from < to) facts.pairs.push_back({from, to, {"", 1e-4, 3e9, 3e9}});
      }
    }
  }
  HostFacts& operator[](size_t i) { return facts.hosts[i].facts; }
  Finding Check(const std::string& name) const {
    for (const Finding& finding : HostsFindings(facts)) {
      if (finding.check == name) return finding;
    }
    FAIL("no check " << name);
    return {};
  }
  // "NAME=value node1".
  std::vector<std::string> Variables(const std::string& prefix) const {
    std::vector<std::string> texts;
    for (const AdvisedVariable& one : AdvisedVariables(facts)) {
      if (!one.name.starts_with(prefix)) continue;
      CHECK_FALSE(one.reason.empty());
      texts.push_back(
          fmt::format("{}={}{}{}", one.name, one.value, one.host.empty() ? "" : " ", one.host));
    }
    return texts;
  }
  void AddRdma(size_t i, const std::vector<RdmaPort>& ports) {
    auto& all = facts.hosts[i].facts.network.rdma;
    all.insert(all.end(), ports.begin(), ports.end());
  }
};

using Texts = std::vector<std::string>;

TEST_CASE("sound hosts have nothing to complain of, and the fewest variables") {
  const MadeUpHosts hosts(3);
  for (const Finding& finding : HostsFindings(hosts.facts)) {
    INFO(finding.check, finding.fact);
    CHECK(finding.state == CheckState::kOk);
  }
  CHECK(hosts.Variables("NCCL_") ==
        Texts{"NCCL_SOCKET_IFNAME=eth0", "NCCL_IB_DISABLE=1", "NCCL_DEBUG=WARN"});
  CHECK(Has(HostsText(hosts.facts, true), wording::kHostsAndAllReachOne));
  CHECK(Has(HostsText(hosts.facts, true), wording::kNodeEthGb));
}

TEST_CASE("interfaces: by host where they differ, exact where another begins so, and faster ones") {
  MadeUpHosts hosts(2);
  hosts[1].network.interfaces[0].name = "ens3";
  hosts.facts.links[1].route->interface = "ens3";
  CHECK(hosts.Variables("NCCL_SOCKET") ==
        Texts{"NCCL_SOCKET_IFNAME=eth0 node1", "NCCL_SOCKET_IFNAME=ens3 node2"});
  hosts[0].network.interfaces.push_back({"eth01", true, 1500, 0, false, {"10.9.0.1"}});
  CHECK(hosts.Variables("NCCL_SOCKET").front() == "NCCL_SOCKET_IFNAME==eth0 node1");
  for (const size_t i : {0, 1}) {
    hosts[i].network.interfaces.push_back({"fast", true, 9000, 200'000, false, {"10.8.0.1"}});
  }
  const Finding interface = hosts.Check("interface");
  CHECK(interface.state == CheckState::kCosts);
  CHECK(Has(interface.fact, wording::kNodeHasFastOfGb));
}

TEST_CASE("InfiniBand and RoCE: the ports to use, their GID, and hosts without") {
  const RdmaPort fast{"mlx5_0", 1, "ACTIVE", 400, "InfiniBand", true, -1};
  const RdmaPort second{"mlx5_1", 1, "ACTIVE", 400, "InfiniBand", true, -1};
  const RdmaPort slow{"mlx5_10", 1, "ACTIVE", 100, "InfiniBand", true, -1};
  const RdmaPort down{"mlx5_4", 1, "DOWN", 10, "InfiniBand", true, -1};
  MadeUpHosts hosts(2);
  hosts.AddRdma(0, {fast, second, down});
  CHECK(hosts.Check("infiniband").state == CheckState::kCosts);
  CHECK(Has(hosts.Check("infiniband").fact, "node2 none"));
  CHECK(hosts.Variables("NCCL_IB") == Texts{"NCCL_IB_DISABLE=1"});
  hosts.AddRdma(1, {fast, second, slow});
  CHECK(hosts.Check("infiniband").state == CheckState::kOk);
  CHECK(Has(hosts.Check("infiniband").fact, "2 x 400 Gb/s (mlx5_0, mlx5_1) on all hosts"));
  CHECK(Has(hosts.Check("infiniband").fact, "not used: node1: mlx5_4 is DOWN"));
  CHECK(Has(hosts.Check("infiniband").cost, "was not tried"));
  CHECK(hosts.Variables("NCCL_IB") ==
        Texts{"NCCL_IB_HCA=mlx5_0,mlx5_1 node1", "NCCL_IB_HCA==mlx5_0,mlx5_1 node2"});
  hosts[1].verbs_library = false;
  CHECK(Has(hosts.Check("infiniband").fact, "mlx5_0 has no libibverbs"));
  CHECK(hosts.Variables("NCCL_IB") == Texts{"NCCL_IB_DISABLE=1"});

  const RdmaPort roce{"rocep1s0", 2, "ACTIVE", 100, "Ethernet", true, 3};
  MadeUpHosts ethernet(2);
  for (const size_t i : {0, 1}) ethernet.AddRdma(i, {roce});
  CHECK(ethernet.Variables("NCCL_IB") == Texts{"NCCL_IB_HCA=rocep1s0", "NCCL_IB_GID_INDEX=3"});
  ethernet[1].network.rdma[0].roce_v2_gid = 5;
  CHECK(ethernet.Variables("NCCL_IB") == Texts{"NCCL_IB_HCA=rocep1s0"});
  CHECK(Has(ethernet.Check("infiniband").cost, "is not known"));
  ethernet[1].network.rdma[0].usable = false;
  CHECK(Has(ethernet.Check("infiniband").fact, "has no node below /dev/infiniband"));

  MadeUpHosts cloud(2);
  for (const size_t i : {0, 1}) cloud.AddRdma(i, {{"efa_0", 1, "ACTIVE", 100, "Unspecified"}});
  CHECK(cloud.Check("infiniband").state == CheckState::kUnknown);
  CHECK(cloud.Variables("NCCL_IB").empty());
}

TEST_CASE("names, versions, clocks and slow pairs: what is odd is named") {
  MadeUpHosts hosts(3);
  const auto state = [&](const char* check) { return hosts.Check(check).state; };
  hosts[1].libraries.nccl = 22709;
  CHECK(state("nccl") == CheckState::kMissing);
  CHECK(Has(hosts.Check("nccl").fact, "node1 2.28.3, node2 2.27.9, node3 2.28.3"));
  hosts[1].libraries = {};
  hosts[1].why_not = "/opt/zeroplan-executor is not there";
  CHECK(state("nccl") == CheckState::kUnknown);
  CHECK(Has(hosts.Check("nccl").fact, "node2: /opt/zeroplan-executor is not there"));
  hosts[2].driver = "570.1";
  CHECK(state("driver") == CheckState::kCosts);
  hosts[2].zeroplan = "0.0.9";
  CHECK(state("zeroplan") == CheckState::kMissing);
  hosts.facts.hosts[2].clock_ahead_seconds = 60;
  CHECK(state("clocks") == CheckState::kCosts);
  CHECK(Has(hosts.Check("clocks").fact, "node3's is 60"));
  hosts[0].own_addresses = {"127.0.1.1"};
  CHECK(Has(hosts.Check("own_name").fact, "node1 takes its own name node1 for 127.0.1.1"));
  hosts.facts.pairs[1].speed.bytes_per_second_back = 1e9;
  CHECK(state("speed") == CheckState::kCosts);
  CHECK(Has(hosts.Check("speed").fact, "node1 and node3"));
  hosts.facts.pairs[0].speed.bytes_per_second = 0;
  CHECK(Has(hosts.Check("speed").fact, "node1 and node2 connect, but no bytes came through"));

  MadeUpHosts wrong(3);
  HostLink& link = wrong.facts.links[0];  // node1 to node2
  link.ports.assign(2, {ProbeReach::State::kOther, "another", 2});
  CHECK(Has(wrong.Check("names").fact, "at node1, node2 stands for 10.0.0.2, where node3 answers"));
  link.address = "127.0.1.1";
  link.ports.assign(2, {ProbeReach::State::kRefused, "Connection refused", 0});
  CHECK(Has(wrong.Check("names").fact, "node2 stands for 127.0.1.1, which is node1 itself"));
  link.address.clear();
  link.why = "Name or service not known";
  CHECK(Has(wrong.Check("names").fact, "node1 does not know node2: Name or service not known"));
  wrong[1].ports[1] = {29500, 0, "Address already in use"};
  CHECK(Has(HostsText(wrong.facts, true), wording::kPortOfNodeWasNot));
}

TEST_CASE("what an agent says of its host comes through as it is") {
  MadeUpHosts hosts(2);
  hosts.AddRdma(0, {{"mlx5_0", 1, "ACTIVE", 400, "InfiniBand", true, -1}});
  const HostFacts read = HostFactsFromWire(HostFactsToWire(hosts[0]));
  CHECK(HostFactsToWire(read) == HostFactsToWire(hosts[0]));
  CHECK(read.libraries.nccl == 22803);
  CHECK(read.network.rdma.front().gigabits == 400);
  CHECK_THROWS(HostFactsFromWire(WireJson::object()));
}

}  // namespace
}  // namespace zeroplan
