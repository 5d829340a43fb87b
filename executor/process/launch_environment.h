// A process's place in its run, from the environment that its launcher set.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "executor/process/process_group.h"

namespace zeroplan {

// A variable's value; nullptr if it is not set. std::getenv, or a table in tests.
using EnvironmentLookup = std::function<const char*(const char* name)>;

// The launchers are asked in this order; the first that left its mark decides.
//   zeroplan  ZEROPLAN_RANK, _WORLD_SIZE, _LOCAL_RANK, _LOCAL_WORLD_SIZE, _ADDRESS, _PORT, and for
//             its own ranks _RUN_TOKEN, _LISTEN_FD
//   torchrun  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//   Open MPI  OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; address: MASTER_ADDR,
//             127.0.0.1 if all ranks are local, else all those of mpirun's host. Rank 0 on another
//             host than mpirun (Open MPI tells a rank of its own daemon and of mpirun, but not of
//             rank 0's host) is Error(kUsage).
//   Slurm     SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID and tasks a node,
//             in a step (srun; a batch script itself is none); address: MASTER_ADDR, or the step's
//             first host
// The secret is what ZEROPLAN_SECRET_FILE holds (handshake.h); else ZEROPLAN_RUN_TOKEN, which the
// built-in launcher draws, or the key that mpirun draws for a job's transports.
// ZEROPLAN_PORT, then MASTER_PORT set the port; else it is kDefaultPort or above, by the job's id.
// Where torchrun's agent keeps MASTER_PORT to itself, the port is the next one.
//
// Nothing without a launcher, and for a run of one process: nobody to meet. Throws Error(kUsage)
// naming variable, value and fix for what is half set, malformed or contradictory.
std::optional<ProcessPlace> PlaceFromEnvironment(const EnvironmentLookup& lookup);

// The port that ZEROPLAN_PORT or MASTER_PORT sets for rank 0. Throws Error(kUsage) if it is none.
std::optional<int> PortFromEnvironment(const EnvironmentLookup& lookup);

inline constexpr int kDefaultPort = 29610;

// The two list notations of Slurm's environment.

// "gpu[07-09,12]-ib,login" -> "gpu07-ib". "" if the list is empty or malformed.
std::string FirstSlurmHost(std::string_view node_list);

// How many tasks a node has: of "4(x2),1" nodes 0, 1 and 2 have 4, 4 and 1. Nothing if malformed or
// too short.
std::optional<int> SlurmTasksOfNode(std::string_view tasks_per_node, int node);

}  // namespace zeroplan
