// All facts that zeroplan doctor collects, before it evaluates them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "machine/gpu_state.h"
#include "machine/host_speed.h"
#include "machine/host_state.h"

namespace zeroplan {

// The facts of the program that trains, from its own report about its libraries.
struct ExecutorFacts {
  enum class State { kAnswers, kAbsent, kFails, kSilent } state = State::kAbsent;
  std::string path;
  std::string why;         // set if it fails: its message, or the loader's
  LibraryFacts libraries;  // set if it answers
};

struct DiskFacts {
  std::string folder;
  enum class State {
    kMeasured,
    kInMemory,  // tmpfs
    kRefused,   // no folder, not writable, no room
    kFailed,    // an I/O error
    kSilent     // took too long
  } state = State::kSilent;
  std::string why;  // set if it was not measured; with advice if it was refused
  std::optional<DiskRates> rates;
  uint64_t free_bytes = 0;  // that this user may still write
};

struct ProfileFacts {
  enum class State {
    kUsed,    // measured on this very machine
    kStale,   // not used: it is of another machine, or the file is invalid
    kAbsent,  // not measured
    kNoGpus,  // profiles are neither stored nor searched for machines without GPUs
  } state = State::kNoGpus;
  std::string file, when;  // the file stored by 'hw measure', and its day
  std::string note;        // the reason if it is stale
  std::string built_in;    // the built-in profile that plans use instead; "": none fits
  std::string gpu_note;    // the reason why none fits
};

// The page-locked memory that a plan (--plan) needs.
struct PinnedPlan {
  std::string file;
  uint64_t rank_bytes = 0;
  int ranks = 1;  // ranks of one host
  bool on_gpus = true;

  uint64_t host_bytes() const { return rank_bytes * static_cast<uint64_t>(ranks); }
};

struct MachineFacts {
  ExecutorFacts executor;
  // The reason why gpus and profile lack the driver's facts: "it did not answer within 5 s".
  std::string driver_failed;
  GpuStates gpus;
  HostState host;
  DiskFacts disk;
  ProfileFacts profile;
  std::optional<PinnedPlan> plan;     // set if a plan was given
  std::optional<PinnedFacts> pinned;  // set if page-locking was tried
};

// Collects all facts, in 20 s at most (ZEROPLAN_DOCTOR_SECONDS in the environment: four times
// that). Tries to page-lock the memory that `plan` pins, or most of the free memory. REQUIRES: this
// process has no other threads.
MachineFacts QueryMachine(const std::string& folder, std::optional<PinnedPlan> plan);

// Parts of QueryMachine, with the same REQUIRES.

// Runs the program that trains in a process of its own.
ExecutorFacts QueryExecutor();
// Fills driver_failed, gpus and profile. Also in a process of its own, because the driver may hang,
// and its library may end the process.
void AskDriver(MachineFacts& facts);

// `seconds`, or the value of ZEROPLAN_DOCTOR_SECONDS, which overrides all limits.
double DoctorLimit(double seconds);

// The part of a program's last words worth showing: the last line, escaped, at most 300 bytes.
std::string LastLine(const std::string& text);

// The output of the processes that doctor starts (facts.cc), as JSON.

// All facts that come from NVIDIA's driver.
struct DriverFacts {
  GpuStates gpus;
  ProfileFacts profile;
};

// One line each: for the executor's libraries and the page-locked memory, which the executor prints
// itself, and for the driver.
std::string LibrariesAsJson(const LibraryFacts& facts);
std::string PinnedAsJson(const PinnedFacts& facts);
std::string DriverAsJson(const DriverFacts& facts);
// Parses `output`'s last line; nothing if that is no such line.
std::optional<LibraryFacts> LibrariesFromJson(const std::string& output);
std::optional<PinnedFacts> PinnedFromJson(const std::string& output);
std::optional<DriverFacts> DriverFromJson(const std::string& output);

// Work that may hang (a disk of a network, a driver) or end the process (a missing library), run in
// a process of its own.

struct ChildResult {
  bool in_time = false;  // it ended by itself
  int exit_code = -1;    // set if it ended by itself, and not by a signal
  int signal = 0;
  std::string out, err;  // at most 1 MiB of each
};

// Forks. The child, whose stdout and stderr are captured, runs `work` and exits with its result, or
// execs another program there. It is killed after `seconds`. Throws Error(kRuntime) if no process
// can be started. REQUIRES: this process has no other threads.
ChildResult RunLimited(double seconds, const std::function<int()>& work);

}  // namespace zeroplan
