// Where train runs, and as which of its processes: chosen before any GPU is touched.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "cli/run/train/train_command.h"
#include "core/program/program.h"
#include "executor/process/launcher.h"
#include "executor/process/process_group.h"

namespace zeroplan {

// What a launcher's environment says of this process. Throws Error(kUsage) if --gpus is given and
// differs from the launcher's count, and for `backend` cpu in a build without Gloo.
std::optional<ProcessPlace> FindPlace(const TrainCommand& command, Backend backend);

// Starts `ranks` copies of this process on this host's GPUs and returns once all have ended. Throws
// Error(kUsage) if the driver shows fewer GPUs, and Error with the ranks' exit code and no message
// if they failed: they have said why. With `restarts`, failed ranks are started again (launcher.h).
// REQUIRES: one thread.
void LaunchRanks(int ranks, const RestartOptions& restarts = {});

// What --hosts or --hostfile, and --ssh, ask for; nothing without them. Throws Error(kUsage) for
// hosts that are none, for --backend cpu in a build without Gloo, where --gpus differs from their
// ranks, and below another launcher (`place`).
std::optional<RemoteHosts> FindHosts(const TrainCommand& command,
                                     const std::optional<ProcessPlace>& place);

// LaunchRanks on several hosts (host_launcher.h). Nothing is resolved here: this host may be one
// without a GPU.
void LaunchOnHosts(RemoteHosts hosts, const RestartOptions& restarts);

// This host's part of that, in a process that another host's zeroplan started (host_launcher.h).
// Throws as LaunchRanks.
void LaunchHostPart(const TrainCommand& command);

// What --restarts asks for: nothing without the option, and in a process that was started on its
// account. Throws Error(kUsage) without --save, below another launcher (`place`), and where a
// restart would resume an earlier run's checkpoints.
std::optional<RestartOptions> FindRestarts(const TrainCommand& command,
                                           const std::optional<ProcessPlace>& place);

// Meets the other ranks, which may take `timeout`. Throws Error as TcpGroup does, and
// Error(kInterrupted) for a stop signal meanwhile.
std::unique_ptr<ProcessGroup> JoinGroup(const ProcessPlace& place,
                                        std::chrono::seconds timeout = std::chrono::seconds(120));

}  // namespace zeroplan
