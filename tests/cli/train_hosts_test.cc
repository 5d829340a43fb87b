// zeroplan train --hosts: what is refused before a rank starts. Ranks on hosts need GPUs;
// tests/executor/process/host_launcher_test.cc runs them without.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"

namespace zeroplan {
namespace {

TEST_CASE("train --hosts: what cannot be is said before anything starts") {
  const Workspace folder;
  const auto why = [&](const std::string& more, const std::string& environment = "") {
    const RunResult run = RunZeroplan(folder.Train(more), "ZEROPLAN_NO_DETECT=1 " + environment);
    CHECK(run.exit_code == 2);
    return run.err;
  };
  CHECK(Has(why("--hosts node1"), "--hosts: 'node1' is not HOST:GPUS"));
#ifndef ZEROPLAN_WITH_GLOO
  CHECK(Has(why("--hosts a:1,b:1 --backend cpu"), "--hosts: --backend cpu needs Gloo; install "));
#endif
  CHECK(Has(why("--hosts a:1,b:1 --gpus 3"), "--gpus: 3 is not the 2 of --hosts"));
  CHECK(Has(why("--hosts a:1 --hostfile hosts"), "--hostfile"));
  CHECK(Has(why("--hostfile " + folder.path("none")), folder.path("none") + ": cannot read"));
  CHECK(Has(why("--ssh ssh"), "--ssh: there are no --hosts"));
  CHECK(Has(why("--hosts a:1,b:1 --ssh ' '"), "--ssh"));
  CHECK(Has(why("--hosts a:1,b:1 --restarts 2"), "--restarts: 2 needs --save"));
}

TEST_CASE("train --hosts: a host without a GPU says so by its name") {
  const Workspace folder;
  const std::string ssh = folder.path("ssh");
  std::ofstream(ssh) << "#!/bin/sh\nexec sh -c \"$2\"\n";
  chmod(ssh.c_str(), 0755);
  const RunResult run = RunZeroplan(folder.Train("--hosts a:1,b:1 --ssh " + ssh));
  CAPTURE(run.err);
  CHECK(run.exit_code == 2);
  // In a build without CUDA, and in one with it that sees no GPU.
  CHECK((run.err.find("a: zeroplan: --hosts: ") != std::string::npos ||
         run.err.find("b: zeroplan: --hosts: ") != std::string::npos));
}

}  // namespace
}  // namespace zeroplan
