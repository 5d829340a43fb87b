// The commands that need the executor. They are in a program of their own, zeroplan-executor, so
// that planning does not load what training needs (cuBLASLt and NCCL: 200 MB). `zeroplan` has them
// by name, and becomes that program where one of them is called.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/request/request.h"

namespace zeroplan {

struct ExecutorCommand {
  const char* name;
  const char* help;  // its line in the help
};
inline constexpr ExecutorCommand kDataCommand = {"data", "Training data"};
inline constexpr ExecutorCommand kCheckpointCommand = {"checkpoint", "What train --save has kept"};
inline constexpr ExecutorCommand kTrainCommand = {"train",
                                                  "Trains a model with exactly the planned memory"};
inline constexpr ExecutorCommand kGenerateCommand = {"generate",
                                                     "Text from a model that train saved"};
inline constexpr ExecutorCommand kMergeCommand = {"merge",
                                                  "One model of a base and a LoRA adapter"};
// The option with which plan and estimate are some of them, as they read data as train reads it.
inline constexpr const char* kDataOption = "--data";
// What reads it, for one command line; in `zeroplan`, which has become the other program where it
// is needed, unset.
DataReader ReaderOfData();

// Below `hw`.
inline constexpr ExecutorCommand kMeasureCommand = {
    "measure", "Measures this machine in about two minutes and writes its profile"};

// --backend of those that run a model.
enum class BackendChoice : uint8_t { kCpu, kCuda, kFound };

// Commands that describe all others, by what the program knows of them.
inline constexpr const char* kCompletionCommand = "completion";
inline constexpr const char* kManualCommand = "man";

// The program's file name. It lies beside zeroplan, or where `cmake --install` puts it: below the
// system's folder of programs that people do not call (packaging/install.cmake).
inline constexpr const char* kExecutorProgram = "zeroplan-executor";
// Where it is looked for, in this order.
std::vector<std::string> ExecutorPlaces();
// The first of these that is there; where none is, the first.
std::string ExecutorPath();

// With this as its only argument it prints the versions of its libraries (cli/doctor/facts.h).
inline constexpr const char* kPrintLibraries = "--print-libraries";
// With this, bytes (0: most of what is free) and seconds it prints what the driver page-locks.
inline constexpr const char* kTryPinnedMemory = "--try-pinned-memory";

}  // namespace zeroplan
