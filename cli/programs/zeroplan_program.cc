// zeroplan: every command that plans, and the way to those that run something.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/common/commands.h"
#include "cli/common/executor_commands.h"
#include "cli/programs/app.h"
#include "core/base/build_info.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "machine/host_state.h"

namespace zeroplan {
namespace {

// A build without the executor has no reader of data.
#ifdef ZEROPLAN_WITH_READER
constexpr bool kReadsData = true;
#else
constexpr bool kReadsData = false;
#endif

bool NeedsExecutor(int argc, const char* const* argv) {
  const auto word = [&](int i) { return i < argc ? std::string_view(argv[i]) : ""; };
  if (word(1) == "hw") return word(2) == kMeasureCommand.name;
  if (!kReadsData && (word(1) == "plan" || word(1) == "estimate")) {
    const std::string assigned = std::string(kDataOption) + '=';
    return std::any_of(argv + 2, argv + argc, [&](const char* text) {
      return std::string_view(text) == kDataOption || std::string_view(text).starts_with(assigned);
    });
  }
  return word(1) == kTrainCommand.name || word(1) == kGenerateCommand.name ||
         (!kReadsData && word(1) == kDataCommand.name) || word(1) == kCheckpointCommand.name ||
         word(1) == kMergeCommand.name;
}

// The words that need the executor: "train", "plan --data".
std::string NeededFor(std::string_view command) {
  const bool plans = command == "plan" || command == "estimate";
  return plans ? fmt::format("{} {}", command, kDataOption) : std::string(command);
}

// "zeroplan help hw list" is "zeroplan hw list --help". Ends with null.
std::vector<const char*> HelpOf(int argc, const char* const* argv) {
  std::vector<const char*> words = {argv[0]};
  words.insert(words.end(), argv + 2, argv + argc);
  words.push_back("--help");
  words.push_back(nullptr);
  return words;
}

// Completions and manual pages know the options of all commands where the executor is there.
bool DescribesCommands(int argc, const char* const* argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  return command == kCompletionCommand || command == kManualCommand;
}

// This very process goes on as the other program, with the same command line: launchers, signals,
// pipes and the exit code are its own. Comes back if there is no such program. Throws
// Error(kRuntime) if there is one that does not start.
void BecomeExecutor(const char* const* argv) {
  const std::string program = ExecutorPath();
  execv(program.c_str(), const_cast<char* const*>(argv));
  if (errno == ENOENT) return;
  ThrowRuntime("{}: cannot start {}, which runs it: {}", argv[1], program, std::strerror(errno));
}

[[noreturn]] void ThrowNoExecutor(const std::string& command) {
  if (!GetBuildInfo().executor) {
    ThrowRuntime(
        "{}: this zeroplan plans alone: it was built without zeroplan-executor, which runs it "
        "(ZEROPLAN_EXECUTOR=OFF). Build both from the same sources (scripts/build.sh release), or "
        "install the package zeroplan in place of zeroplan-planner",
        command);
  }
  ThrowRuntime("{}: there is no {}, which runs it; {}", command,
               fmt::join(ExecutorPlaces(), " nor "), ExecutorAdvice());
}

// For the help; whoever calls it has become the other program.
void AddName(Command& above, const ExecutorCommand& command) {
  above.Add(command.name, command.help).Run([name = command.name] {
    ThrowUsage("{}: is not allowed here; use it as the first words behind zeroplan", name);
  });
}

// What plans makes and drops lists of some hundred KB all the time. By default the C library gives
// such memory back to the system each time, and every page of the next list is a page fault.
void KeepFreedMemory() {
  constexpr int kLargest = 32 << 20;  // the most that it takes for either
  mallopt(M_MMAP_THRESHOLD, kLargest);
  mallopt(M_TRIM_THRESHOLD, kLargest);
}

// Past its control group's limit the kernel ends a process without a word. What plans asks for no
// more than the group leaves it: an allocation fails first, and that is said. Not for what becomes
// another program, which would inherit the limit.
std::optional<ControlGroupMemory> StayWithinControlGroup() {
  std::optional<ControlGroupMemory> group = QueryControlGroupMemory();
  rlimit limit{};
  if (!group || getrlimit(RLIMIT_DATA, &limit) != 0) return std::nullopt;
  if (group->available_bytes >= limit.rlim_cur) return std::nullopt;
  limit.rlim_cur = group->available_bytes;
  if (setrlimit(RLIMIT_DATA, &limit) != 0) return std::nullopt;
  return group;
}

}  // namespace

#ifndef ZEROPLAN_WITH_READER
DataReader ReaderOfData() { return nullptr; }
void RegisterData(Command& app) { AddName(app, kDataCommand); }
#endif
void RegisterCheckpoint(Command& app) { AddName(app, kCheckpointCommand); }
void RegisterTrain(Command& app) { AddName(app, kTrainCommand); }
void RegisterGenerate(Command& app) { AddName(app, kGenerateCommand); }
void RegisterMerge(Command& app) { AddName(app, kMergeCommand); }
void RegisterHardwareMeasure(Command& hardware) { AddName(hardware, kMeasureCommand); }

int RunProgram(int argc, const char* const* argv) {
  std::vector<const char*> words;
  if (argc > 1 && std::string_view(argv[1]) == "help") {
    words = HelpOf(argc, argv);
    argc = static_cast<int>(words.size()) - 1;
    argv = words.data();
  }
  const bool needed = NeedsExecutor(argc, argv);
  if (needed || DescribesCommands(argc, argv)) {
    BecomeExecutor(argv);
    if (needed) ThrowNoExecutor(NeededFor(argv[1]));
  }
  KeepFreedMemory();
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command != "plan" && command != "estimate" && command != "explain" && command != "why") {
    return RunApp(argc, argv);
  }
  const std::optional<ControlGroupMemory> group = StayWithinControlGroup();
  try {
    return RunApp(argc, argv);
  } catch (const std::bad_alloc&) {
    if (!group) throw;
    ThrowRuntime("out of host memory: the control group leaves {} ({}); raise that limit",
                 FormatBytes(group->available_bytes), group->limiting.string());
  }
}

}  // namespace zeroplan
