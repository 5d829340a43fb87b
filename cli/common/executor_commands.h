// The commands that need the executor. They are in a program of their own, zeroplan-executor, so
// that who plans installs a tenth of the bytes. `zeroplan` knows their names, and execs that
// program when one of them is called. A build without the executor has no reader of data either:
// `data`.
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
// The option with which plan and estimate read data as train does.
inline constexpr const char* kDataOption = "--data";
// The reader of that option, for one command line; unset in a build without the executor.
DataReader ReaderOfData();

// A subcommand of `hw`.
inline constexpr ExecutorCommand kMeasureCommand = {
    "measure", "Measures this machine in about two minutes and writes its profile"};

// --backend of the commands that run a model.
enum class BackendChoice : uint8_t { kCpu, kCuda, kFound };

// Commands that describe all others, by the program's own descriptions.
inline constexpr const char* kCompletionCommand = "completion";
inline constexpr const char* kManualCommand = "man";

// The program's file name. It is in the folder of zeroplan, or where `cmake --install` puts it:
// below the system's folder of programs that people do not call (packaging/install.cmake).
inline constexpr const char* kExecutorProgram = "zeroplan-executor";
// The places where it is searched, in this order.
std::vector<std::string> ExecutorPlaces();
// The first of those places that exists; if none does, the first.
std::string ExecutorPath();
bool HasExecutor();
// How to get it: for the wheels of scripts/release.sh "pip install 'zeroplan[train]' ...".
std::string ExecutorAdvice();

// The only argument with which it prints the versions of its libraries (cli/doctor/facts.h).
inline constexpr const char* kPrintLibraries = "--print-libraries";
// The argument with which it prints how much the driver page-locks; followed by bytes (0: most of
// the free memory) and seconds.
inline constexpr const char* kTryPinnedMemory = "--try-pinned-memory";

}  // namespace zeroplan
