// Selects where train runs, and as which of its processes, before any GPU is used.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "cli/run/train/train_command.h"
#include "core/program/program.h"
#include "executor/process/launcher.h"
#include "executor/process/process_group.h"

namespace zeroplan {

// This process's place from a launcher's environment. Throws Error(kUsage) if --gpus is given and
// differs from the launcher's count, and for `backend` cpu in a build without Gloo.
std::optional<ProcessPlace> FindPlace(const TrainCommand& command, Backend backend);

// Starts `ranks` copies of this process on this host's GPUs and returns once all have ended. Throws
// Error(kUsage) if the driver shows fewer GPUs; if ranks failed, throws Error with their exit code
// and no message, because they have printed it. With `restarts`, failed ranks are started again
// (launcher.h). REQUIRES: one thread.
void LaunchRanks(int ranks, const RestartOptions& restarts = {});

// The hosts of --hosts or --hostfile, and the shell of --ssh; nothing without them. Throws
// Error(kUsage) for text that names no hosts, for --backend cpu in a build without Gloo, if --gpus
// differs from their ranks, and below another launcher (`place`).
std::optional<RemoteHosts> FindHosts(const TrainCommand& command,
                                     const std::optional<ProcessPlace>& place);

// LaunchRanks on several hosts (host_launcher.h). Resolves nothing here, because this host may lack
// a GPU.
void LaunchOnHosts(RemoteHosts hosts, const RestartOptions& restarts);

// This host's part of such a run, in a process that another host's zeroplan started
// (host_launcher.h). Throws as LaunchRanks.
void LaunchHostPart(const TrainCommand& command);

// The request of --restarts: nothing without the option, and in a process that it started. Throws
// Error(kUsage) without --save, below another launcher (`place`), and if a restart would resume an
// earlier run's checkpoints.
std::optional<RestartOptions> FindRestarts(const TrainCommand& command,
                                           const std::optional<ProcessPlace>& place);

// Meets the other ranks within `timeout`. Throws Error as TcpGroup does, and Error(kInterrupted)
// for a stop signal meanwhile.
std::unique_ptr<ProcessGroup> JoinGroup(const ProcessPlace& place,
                                        std::chrono::seconds timeout = std::chrono::seconds(120));

}  // namespace zeroplan
