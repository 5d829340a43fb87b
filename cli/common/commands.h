// The commands: one Register function each, in the file of its name.
#pragma once

#include "cli/common/command.h"

namespace zeroplan {

// A subcommand's Register function adds it to `app`, keeps its options in a shared_ptr that its Run
// holds, and does its work there. It reports results on stdout, messages on stderr, and ends
// unsuccessfully by throwing Error with the exit code. A new command is a file that defines its
// Register function, a declaration here, and a line in RunApp. If it needs the executor, it is also
// below cli/run, has its name in executor_commands.h, and a line in zeroplan_program.cc. `read`:
// the reader of --data, if the program has one.
void RegisterEstimate(Command& app, DataReader read);
void RegisterPlan(Command& app, DataReader read);
void RegisterConfig(Command& app);
void RegisterModel(Command& app);
void RegisterHardware(Command& app);
void RegisterData(Command& app);
void RegisterTrain(Command& app);
void RegisterCheckpoint(Command& app);
void RegisterExplain(Command& app);
void RegisterWhy(Command& app);
void RegisterGenerate(Command& app);
void RegisterMerge(Command& app);
void RegisterDoctor(Command& app);
void RegisterManual(Command& app);

// Subcommands of `hw`.
void RegisterHardwareMeasure(Command& hardware);
void RegisterHardwareCheck(Command& hardware);

}  // namespace zeroplan
