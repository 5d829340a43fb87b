// All that zeroplan doctor found out, before anything is said of it.
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

// The program that trains, asked for its libraries.
struct ExecutorFacts {
  enum class State { kAnswers, kAbsent, kFails, kSilent } state = State::kAbsent;
  std::string path;
  std::string why;         // where it fails: what it, or the loader, said
  LibraryFacts libraries;  // where it answers
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
  std::string why;  // where it was not measured; with the way out where it was refused
  std::optional<DiskRates> rates;
  uint64_t free_bytes = 0;  // that this user may still write
};

struct ProfileFacts {
  enum class State {
    kUsed,    // measured on this very machine
    kStale,   // not used: the machine, or the file, is another
    kAbsent,  // not measured
    kNoGpus,  // nothing is kept, or looked for, of a machine without GPUs
  } state = State::kNoGpus;
  std::string file, when;  // of what 'hw measure' kept
  std::string note;        // where it is stale: why
  std::string built_in;    // the built-in profile that plans take instead; "": none fits
  std::string gpu_note;    // why none does
};

// What a plan (--plan) wants page-locked.
struct PinnedPlan {
  std::string file;
  uint64_t rank_bytes = 0;
  int ranks = 1;  // of one host
  bool on_gpus = true;

  uint64_t host_bytes() const { return rank_bytes * static_cast<uint64_t>(ranks); }
};

struct MachineFacts {
  ExecutorFacts executor;
  // Why nothing is known from the driver, in gpus and profile: "it did not answer within 5 s".
  std::string driver_failed;
  GpuStates gpus;
  HostState host;
  DiskFacts disk;
  ProfileFacts profile;
  std::optional<PinnedPlan> plan;     // where one was given
  std::optional<PinnedFacts> pinned;  // where the driver was asked to page-lock what it pins
};

// Asks them all, in 20 s at most (ZEROPLAN_DOCTOR_SECONDS in the environment: four times that). The
// driver is asked to page-lock what `plan` pins, or most of what is free. REQUIRES: this process
// has no other threads.
MachineFacts QueryMachine(const std::string& folder, std::optional<PinnedPlan> plan);

// Parts of it, REQUIRES as it.

// Of the program that trains, in a process of its own.
ExecutorFacts QueryExecutor();
// Fills driver_failed, gpus and profile. In a process of its own too: the driver may hang, and its
// library may end the process.
void AskDriver(MachineFacts& facts);

// `seconds`, or what the environment's ZEROPLAN_DOCTOR_SECONDS says of all limits.
double DoctorLimit(double seconds);

// What is worth showing of a program's last words: the last line, escaped, at most 300 bytes.
std::string LastLine(const std::string& text);

// What processes that doctor starts hand back to it (facts.cc), as JSON.

// All that facts.h has from NVIDIA's driver.
struct DriverFacts {
  GpuStates gpus;
  ProfileFacts profile;
};

// One line each: of the executor's libraries and what was page-locked, which it prints itself, and
// of the driver.
std::string LibrariesAsJson(const LibraryFacts& facts);
std::string PinnedAsJson(const PinnedFacts& facts);
std::string DriverAsJson(const DriverFacts& facts);
// Reads `output`'s last line; nothing if that is not one of these.
std::optional<LibraryFacts> LibrariesFromJson(const std::string& output);
std::optional<PinnedFacts> PinnedFromJson(const std::string& output);
std::optional<DriverFacts> DriverFromJson(const std::string& output);

// Work that may hang (a disk of a network, a driver) or end the process (a library that is
// missing), done in a process of its own.

struct ChildResult {
  bool in_time = false;  // it ended by itself
  int exit_code = -1;    // where it did, and not by a signal
  int signal = 0;
  std::string out, err;  // at most 1 MiB of each
};

// Forks. The child, whose stdout and stderr are caught, runs `work` and exits with what it returns,
// or becomes another program there. It is killed after `seconds`. Throws Error(kRuntime) if no
// process can be started. REQUIRES: this process has no other threads.
ChildResult RunLimited(double seconds, const std::function<int()>& work);

}  // namespace zeroplan
