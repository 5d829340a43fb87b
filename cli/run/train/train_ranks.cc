#include "cli/run/train/train_ranks.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <utility>

#include "cli/common/output.h"
#include "core/base/error.h"
#include "core/base/stop_signals.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/process/host_launcher.h"
#include "executor/process/launch_environment.h"
#include "executor/process/launcher.h"
#include "executor/process/rendezvous.h"
#include "executor/process/tcp_group.h"
#include "machine/detect.h"

namespace zeroplan {
namespace {

// A rank whose GPU waits for one that has failed gets so long to notice by itself. Less than the
// launcher's patience: the rank can say what it knows.
constexpr std::chrono::seconds kStuckLimit(20);

#ifdef ZEROPLAN_WITH_GLOO
constexpr bool kWithGloo = true;
#else
constexpr bool kWithGloo = false;
#endif

// It asks for no password, and notices within a minute that a host is gone.
constexpr const char* kSsh = "ssh -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=15";

std::vector<std::string> ArgumentsToPassOn() {
  std::vector<std::string> arguments = OwnArguments();
  if (arguments.empty()) ThrowRuntime("/proc/self/cmdline: cannot read this process's arguments");
  return arguments;
}

}  // namespace

std::optional<ProcessPlace> FindPlace(const TrainCommand& command, Backend backend) {
  std::optional<ProcessPlace> place =
      PlaceFromEnvironment([](const char* name) { return std::getenv(name); });
  if (!place) return place;
  if (backend == Backend::kCpu && !kWithGloo) {
    ThrowUsage(
        "--backend: cpu needs Gloo for ranks in several processes, and a launcher started this one "
        "as rank {} of {}; install libgloo-dev and configure the build again, or start it once, "
        "without the launcher: its ranks (--gpus) are threads then",
        place->rank, place->world_size);
  }
  const Given<int>& given = command.common.cluster.gpus;
  if (given && *given != place->world_size) {
    ThrowUsage("--gpus: {} is not the {} ranks that the launcher started; leave the option out",
               *given, place->world_size);
  }
  return place;
}

void LaunchRanks(int ranks, const RestartOptions& restarts) {
  const auto found = static_cast<int>(QueryGpus().size());
  if (found > 0 && found < ranks) {
    ThrowUsage(
        "--gpus: {} is not allowed: this machine has {}; use at most {}, start ranks on several "
        "hosts with --hosts, torchrun, mpirun or srun, or use --backend cpu",
        ranks, found, found);
  }
  LaunchOptions options;
  options.ranks = ranks;
  options.arguments = ArgumentsToPassOn();
  const int exit_code = LaunchWithRestarts(std::move(options), restarts);
  if (exit_code != 0) throw Error(static_cast<ExitCode>(exit_code), "");
}

std::optional<RemoteHosts> FindHosts(const TrainCommand& command,
                                     const std::optional<ProcessPlace>& place) {
  const bool from_file = !command.hostfile.empty();
  if (command.hosts.empty() && !from_file) {
    if (!command.ssh.empty()) ThrowUsage("--ssh: there are no --hosts to reach by it; add them");
    return std::nullopt;
  }
  if (std::getenv(kRestartVariable) != nullptr) return std::nullopt;  // one of their ranks
  const char* option = from_file ? "--hostfile" : "--hosts";
  if (place) {
    ThrowUsage(
        "{}: a launcher started this process as rank {} of {}; leave the option out, or start "
        "zeroplan once, without the launcher",
        option, place->rank, place->world_size);
  }
  RemoteHosts remote;
  remote.hosts = from_file ? ReadHostFile(command.hostfile) : ParseHosts(command.hosts, option);
  const int ranks = RanksOf(remote.hosts);
  if (command.backend == BackendChoice::kCpu && !kWithGloo) {
    ThrowUsage("{}: --backend cpu needs Gloo; install libgloo-dev and configure the build again",
               option);
  }
  const Given<int>& given = command.common.cluster.gpus;
  if (given && *given != ranks) {
    ThrowUsage("--gpus: {} is not the {} of {}; leave the option out", *given, ranks, option);
  }
  if (command.rendezvous_timeout) {
    remote.start_limit = std::chrono::seconds(*command.rendezvous_timeout);
  }
  std::istringstream words(command.ssh.empty() ? kSsh : command.ssh);
  for (std::string word; words >> word;) remote.remote_shell.push_back(word);
  if (remote.remote_shell.empty()) ThrowUsage("--ssh: names no command; use for example ssh");
  return remote;
}

void LaunchOnHosts(RemoteHosts hosts, const RestartOptions& restarts) {
  LaunchOptions options;
  options.ranks = RanksOf(hosts.hosts);
  options.hosts = std::move(hosts);
  options.program = std::filesystem::read_symlink("/proc/self/exe").string();
  options.arguments = ArgumentsToPassOn();
  const int exit_code = LaunchWithRestarts(std::move(options), restarts);
  if (exit_code != 0) throw Error(static_cast<ExitCode>(exit_code), "");
}

void LaunchHostPart(const TrainCommand& command) {
  LaunchOptions options;
  options.arguments = ArgumentsToPassOn();
  const int exit_code = RunHostAgent(std::move(options), [&](int ranks) {
    if (command.backend == BackendChoice::kCpu) {
      if (kWithGloo) return;
      ThrowUsage(
          "--hosts: this host's zeroplan has no Gloo, which --backend cpu needs; install "
          "libgloo-dev and configure the build again");
    }
    if (!BuiltWithCuda()) {
      ThrowUsage("--hosts: this host's zeroplan has no cuda; configure it with -DZEROPLAN_CUDA=ON");
    }
    const auto found = static_cast<int>(QueryGpus().size());
    if (found < ranks) {
      ThrowUsage("--hosts: {} ranks are not allowed, as this host's driver shows {} GPU{}", ranks,
                 found, found == 1 ? "" : "s");
    }
  });
  if (exit_code != 0) throw Error(static_cast<ExitCode>(exit_code), "");
}

std::optional<RestartOptions> FindRestarts(const TrainCommand& command,
                                           const std::optional<ProcessPlace>& place) {
  const int count = command.restarts.value_or(0);
  if (count == 0 || std::getenv(kRestartVariable) != nullptr) return std::nullopt;
  if (place) {
    ThrowUsage(
        "--restarts: {} is for ranks that zeroplan starts itself, and a launcher started this one; "
        "leave it out and let the launcher start them again (torchrun --max-restarts, with "
        "--resume)",
        count);
  }
  if (command.save.empty()) {
    ThrowUsage("--restarts: {} needs --save DIR: a run goes on from its checkpoints there", count);
  }
  if (!command.run.resume && HasCheckpoint(command.save)) {
    ThrowUsage(
        "--save {}: the folder holds checkpoints of an earlier run; continue it with --resume or "
        "choose another folder",
        command.save);
  }
  return RestartOptions{count, [folder = command.save] {
                          const std::vector<CheckpointListing> found = ListCheckpoints(folder);
                          return found.empty() ? std::string("the start, as nothing is saved yet")
                                               : found.front().folder.string();
                        }};
}

std::unique_ptr<ProcessGroup> JoinGroup(const ProcessPlace& place, std::chrono::seconds timeout) {
  TcpGroupOptions options;
  options.meet_limit = timeout;
  options.stop_requested = StopRequested;
  options.exit_when_stuck = kStuckLimit;
  try {
    return std::make_unique<TcpGroup>(place, options);
  } catch (const ToldByRankZero& error) {
    throw Error(error.code(), "");
  }
}

}  // namespace zeroplan
