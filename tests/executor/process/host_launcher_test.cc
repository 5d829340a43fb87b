// Ranks on several hosts. A shell script stands for ssh, and this machine for every host.
#include "executor/process/host_launcher.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "tests/executor/process/launched.h"
#include "tests/patience.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

// As ssh: a host, and one text for its shell. Some hosts are in a bad way.
class FakeSsh {
 public:
  FakeSsh() : path_(dir_.path() + "/fake_ssh") {
    std::ofstream(path_) << fmt::format(
        "#!/bin/sh\n"
        "printf '%s\\n' \"$2\" >> {0}/commands\n"
        "case $1 in\n"
        "away) echo 'ssh: connect to host away: refused' >&2; exit 255;;\n"
        "slow) sleep 1000000;;\n"
        "loud) echo 'Welcome to loud';;\n"
        // Its input ends at Cut(), and the last word of its agent does not come through.
        "cut) {{ cat <&3 & reader=$!\n"
        "  while [ -d {0} ] && [ ! -e {0}/cut ]; do sleep 0.02; done\n"
        "  kill $reader; }} 3<&0 | sh -c \"$2\" | sed -u '/zeroplan end/d'; exit 255;;\n"
        "esac\n"
        "exec sh -c \"$2\"\n",
        dir_.path());
    chmod(path_.c_str(), 0755);
  }
  const std::string& path() const { return path_; }
  // The connection to the host "cut" ends.
  void Cut() const { std::ofstream(dir_.path() + "/cut"); }
  // What hosts' shells were given so far, each once.
  std::set<std::string> commands() const {
    std::ifstream file(dir_.path() + "/commands");
    std::set<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.insert(line);
    return lines;
  }

 private:
  TempDir dir_;
  std::string path_;
};

Launched OnHosts(const FakeSsh& ssh, const std::string& hosts,
                 const std::vector<std::string>& behaviour, bool own_group = false,
                 std::chrono::milliseconds start_limit = kNoLimit) {
  return Launched({"hosts", hosts, ssh.path(), std::to_string(start_limit.count())}, behaviour,
                  own_group);
}

TEST_CASE("hosts: ranks of all of them meet, and their lines carry their names") {
  const FakeSsh ssh;
  Launched run = OnHosts(ssh, "127.0.0.1:2,me@b:1,loud:2", {"collectives"});
  const int code = run.End();
  CAPTURE(run.text());
  CHECK(code == 0);
  CHECK(run.Count("zeroplan: 5 ranks on 3 hosts\n") == 1);
  CHECK(run.Count("ok\n") == 5);
  for (int r = 1; r < 5; ++r) CHECK(run.Count("rank " + std::to_string(r) + ": ok\n") == 1);
  // The secret is nobody's argument: what hosts are told is the same in every run.
  const std::set<std::string> first = ssh.commands();
  CHECK(first.size() == 3);
  Launched again = OnHosts(ssh, "127.0.0.1:2,me@b:1,loud:2", {"collectives"});
  CHECK(again.End() == 0);
  CHECK(ssh.commands() == first);
}

TEST_CASE("hosts: a rank that is killed ends all, and is what the last line names") {
  const FakeSsh ssh;
  Launched run = OnHosts(ssh, "127.0.0.1:2,b:2", {"die", "3"});
  const int code = run.End();
  CAPTURE(run.text());
  CHECK(code == 4);
  CHECK(run.text().ends_with("zeroplan: rank 3 was killed by signal 9 (Killed)\n"));
  CHECK(run.Count("was killed by signal") == 1);
}

TEST_CASE("hosts: a rank's exit code is the run's") {
  const FakeSsh ssh;
  Launched run = OnHosts(ssh, "127.0.0.1:1,b:1", {"fail", "1"});
  const int code = run.End();
  CAPTURE(run.text());
  CHECK(code == 5);
}

TEST_CASE("hosts: a stop reaches every rank, from a terminal too") {
  const FakeSsh ssh;
  for (const bool terminal : {false, true}) {
    CAPTURE(terminal);
    Launched run = OnHosts(ssh, "127.0.0.1:2,b:2", {"stop"}, /*own_group=*/true);
    run.Await("ready", 4);
    kill(terminal ? -run.pid() : run.pid(), SIGINT);
    const int code = run.End();
    CAPTURE(run.text());
    CHECK(code == 130);
    CHECK(run.Count("saved\n") == 4);
  }
}

TEST_CASE("hosts: one that cannot be reached or has too few GPUs ends the run before it begins") {
  const FakeSsh ssh;
  {
    Launched run = OnHosts(ssh, "127.0.0.1:2,away:2", {"collectives"});
    const int code = run.End();
    CAPTURE(run.text());
    CHECK(code == 4);
    CHECK(run.Count("away: ssh: connect to host away: refused\n") == 1);
    CHECK(run.Count("zeroplan: away: " + ssh.path() +
                    " ended with exit code 255; nothing was started.") == 1);
    CHECK(run.Count(ssh.path() + " away true\n") == 1);
    CHECK(run.Count("ok\n") == 0);
  }
  {
    Launched run = OnHosts(ssh, "127.0.0.1:2,b:5", {"collectives"});
    const int code = run.End();
    CAPTURE(run.text());
    CHECK(code == 2);
    CHECK(run.Count("b: --hosts: 5 ranks, and this host has 4 GPUs\n") == 1);
    CHECK(run.Count("ok\n") == 0);
  }
  std::string text;
  CHECK_MESSAGE(WithLongerLimits(std::chrono::seconds(1),
                                 [&](std::chrono::milliseconds limit) {
                                   Launched run = OnHosts(ssh, "127.0.0.1:1,slow:1",
                                                          {"collectives"}, false, limit);
                                   const int code = run.End();
                                   text = run.text();
                                   return code == 4 &&
                                          run.Count(fmt::format("zeroplan: no answer from slow "
                                                                "within {} s; nothing was started.",
                                                                limit.count() / 1000)) == 1;
                                 }),
                text);
}

TEST_CASE("hosts: a connection that is cut ends its host's ranks, and so the run") {
  const FakeSsh ssh;
  Launched run = OnHosts(ssh, "127.0.0.1:1,cut:2", {"wait"});
  run.Await("ready\n", 3);
  ssh.Cut();
  const int code = run.End();  // no rank holds the pipe any more
  CAPTURE(run.text());
  CHECK(code == 4);
  CHECK(run.Count("ready\n") == 3);
  CHECK(run.text().find("zeroplan: cut: " + ssh.path() + " ended with exit code 255\n") !=
        std::string::npos);
}

TEST_CASE("hosts: no rank outlives a launcher that is killed") {
  const FakeSsh ssh;
  // Inherited by all: shells, agents, ranks.
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  Launched run = OnHosts(ssh, "127.0.0.1:2,b:2", {"wait"});
  close(ends[1]);
  run.Await("ready", 4);
  kill(run.pid(), SIGKILL);
  pollfd all_gone{ends[0], POLLIN, 0};
  CHECK(poll(&all_gone, 1, -1) == 1);
  CHECK((all_gone.revents & POLLHUP) != 0);
  close(ends[0]);
  CHECK(run.End() == 1000 + SIGKILL);
}

TEST_CASE("an agent's last line says how its ranks ended") {
  LaunchEnd end;
  end.exit_code = 4;
  end.failure = "rank 2 was killed by signal 9 (Killed)";
  end.killed = true;
  const auto read = ReadLaunchEnd(WriteLaunchEnd(end));
  REQUIRE(read);
  CHECK(read->exit_code == 4);
  CHECK(read->failure == end.failure);
  CHECK(read->killed);
  CHECK_FALSE(read->stopped);
  CHECK(ReadLaunchEnd(WriteLaunchEnd(LaunchEnd{}))->failure.empty());
  CHECK_FALSE(ReadLaunchEnd("end"));
  CHECK_FALSE(ReadLaunchEnd("ready 4 0 0"));
}

}  // namespace
}  // namespace zeroplan
