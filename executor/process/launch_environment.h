// A process's place in its run, from the environment that its launcher set.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "executor/process/process_group.h"

namespace zeroplan {

// Returns a variable's value; nullptr if it is not set. std::getenv, or a table in tests.
using EnvironmentLookup = std::function<const char*(const char* name)>;

// Checks launchers in this order; the first whose variables are set decides.
//   zeroplan  ZEROPLAN_RANK, _WORLD_SIZE, _LOCAL_RANK, _LOCAL_WORLD_SIZE, _ADDRESS, _PORT, and for
//             its own ranks _RUN_TOKEN, _LISTEN_FD
//   torchrun  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//   Open MPI  OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; address: MASTER_ADDR,
//             127.0.0.1 if all ranks are local, else all those of mpirun's host. Rank 0 on another
//             host than mpirun is Error(kUsage), because Open MPI gives a rank the hosts of its own
//             daemon and of mpirun, but not rank 0's.
//   Slurm     SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID and tasks a node,
//             in a step (srun; a batch script itself is none); address: MASTER_ADDR, or the step's
//             first host
// The secret is the content of ZEROPLAN_SECRET_FILE (handshake.h); else ZEROPLAN_RUN_TOKEN, drawn
// by the built-in launcher, or the key that mpirun draws for a job's transports. ZEROPLAN_PORT,
// then MASTER_PORT set the port; else it is kDefaultPort or above, by the job's id. If torchrun's
// agent keeps MASTER_PORT to itself, the port is the next one.
//
// Nothing without a launcher, and for a run of one process, which meets no others. Throws
// Error(kUsage) naming variable, value and fix for incomplete, malformed or contradictory
// variables.
std::optional<ProcessPlace> PlaceFromEnvironment(const EnvironmentLookup& lookup);

// The port for rank 0 in ZEROPLAN_PORT or MASTER_PORT. Throws Error(kUsage) if it is no port.
std::optional<int> PortFromEnvironment(const EnvironmentLookup& lookup);

inline constexpr int kDefaultPort = 29610;

// The two list notations of Slurm's environment.

// "gpu[07-09,12]-ib,login" -> "gpu07-ib". "" if the list is empty or malformed.
std::string FirstSlurmHost(std::string_view node_list);

// The number of tasks of a node: with "4(x2),1" nodes 0, 1 and 2 have 4, 4 and 1. Nothing if
// malformed or too short.
std::optional<int> SlurmTasksOfNode(std::string_view tasks_per_node, int node);

}  // namespace zeroplan
