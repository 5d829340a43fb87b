// The commands that need the executor. They are in a program of their own, zeroplan-executor, so
// that planning does not load what training needs (cuBLASLt and NCCL: 200 MB). `zeroplan` has them
// by name, and becomes that program where one of them is called.
#pragma once

#include <string>

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
// Below `hw`.
inline constexpr ExecutorCommand kMeasureCommand = {
    "measure", "Measures this machine in about a minute and writes its profile"};

// The program's file name; it lies beside zeroplan.
inline constexpr const char* kExecutorProgram = "zeroplan-executor";
// Its path.
std::string ExecutorPath();

// As its only argument: it prints what it knows of its libraries (cli/doctor/library_json.h).
inline constexpr const char* kPrintLibraries = "--print-libraries";

}  // namespace zeroplan
