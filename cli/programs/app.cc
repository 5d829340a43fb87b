#include "cli/programs/app.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/common/build_info.h"
#include "cli/common/command.h"
#include "cli/common/commands.h"
#include "cli/common/executor_commands.h"
#include "cli/common/other_names.h"
#include "cli/common/output.h"
#include "core/base/error.h"
#include "core/base/terminal.h"
#include "core/settings/settings.h"
#include "machine/detect.h"

namespace zeroplan {
namespace {

constexpr const char* kProgramFooter = R"(Examples:
  zeroplan estimate --params 10B --gpus 16
  zeroplan estimate --model gpt2-xl --gpus 8 --micro-batch 16 --stage 2 --format json
  zeroplan model list
Each command has its own --help, in short -h; 'zeroplan help COMMAND' shows it too.
Sizes: 10B, 350M, 2k are counts (powers of ten); 32GB is 32*10^9 bytes, 32GiB is 32*2^30 bytes.
Exit codes: 0 done, 2 bad usage or input, 3 nothing fits, 4 failure while running, 5 diverged,
130 interrupted after saving.)";

// The GPUs that the driver shows, in one line.
std::string ThisMachine() {
  const std::vector<DetectedGpu> gpus = QueryGpus();
  if (gpus.empty()) return "no GPU found here; --hw names the machine to plan for.";
  const std::string found = GpusText(gpus);
  const bool known = std::none_of(gpus.begin(), gpus.end(),
                                  [](const DetectedGpu& gpu) { return MatchGpu(gpu).empty(); });
  return found + (known ? "; planned for where --hw is left out."
                        : ", which no built-in profile describes; use --hw, or 'hw measure'.");
}

// What the program prints where nothing is asked of it: on 80 columns and 24 rows.
std::string FirstPage() {
  return fmt::format(
      R"(zeroplan plans and runs ZeRO training of transformers: what fits a machine, how
fast it is, and doing it. Planning needs no GPU.

What every choice takes of a card, the best choice on a machine, the config of
the best for DeepSpeed, and a run of zeroplan's own:

  zeroplan estimate llama3.1-8b --hw 4090
  zeroplan plan llama3.1-8b --hw 8xh100
  zeroplan plan qwen2.5-7b --hw 2xa100 --out ds_config.json
  zeroplan train smollm2-135m --data YOUR_TEXT

This machine: {}

Models: 'zeroplan model list', names such as Qwen/Qwen2.5-7B-Instruct, folders.
Machines: 'zeroplan hw list', names such as "RTX 4090" and 4x-a100.
All commands: 'zeroplan --help'; each has its own -h and --help.
)",
      ThisMachine());
}

// The options that people give most.
std::vector<std::string> UsualOptions(std::string_view command) {
  if (command == "plan") {
    return {"--hw",   "--gpus",   "--gpu-memory", "--host-memory", "--seq-len",  "--method",
            "--data", "--tokens", "--runtime",    "--out",         "--plan-out", "--explain"};
  }
  if (command == "estimate") {
    std::vector<std::string> usual = {"--hw",      "--gpus",   "--gpu-memory", "--host-memory",
                                      "--seq-len", "--method", "--data",       "--tokens",
                                      "--runtime", "--format", "--explain"};
    for (const SettingRow* row : kSettingRows) {
      if (row->usual) usual.push_back(NameFields(fmt::format("⟦{}⟧", row->name)));
    }
    return usual;
  }
  if (command == "train") {
    return {"--data", "--method",  "--plan",   "--save", "--steps",    "--epochs",
            "--lr",   "--seq-len", "--resume", "--gpus", "--restarts", "--metrics"};
  }
  // The owner of a log has five things to say that no log has.
  if (command == "why")
    return {"--model", "--hw", "--seq-len", "--runtime", "--config", "--explain"};
  return {};
}

// The help of -h if the words contain it; else "".
std::string AskedShortHelp(const std::vector<std::string>& words, const CommandDescription& root) {
  const auto end = std::find(words.begin(), words.end(), "--");
  if (std::find(words.begin(), end, "-h") == end) return "";
  const CommandDescription* command = &root;
  std::string path = "zeroplan";
  for (auto word = words.begin(); word != end; ++word) {
    const auto sub = std::find_if(command->commands.begin(), command->commands.end(),
                                  [&](const auto& of) { return of->name == *word; });
    if (sub == command->commands.end()) break;
    command = sub->get();
    path += " " + *word;
  }
  return command == &root ? FirstPage()
                          : ShortHelp(*command, path, UsualOptions(command->name),
                                      std::min(PageColumns(), kPlainColumns));
}

}  // namespace

int RunApp(int argc, const char* const* argv) {
  CLI::App app("Plans and runs ZeRO training of transformers: what fits, how fast, and doing it.",
               "zeroplan");
  LayOutFor("");  // help is broken as options are added
  app.get_formatter()->column_width(HelpNameColumns());
  app.set_help_flag("-h,--help", "Print this help");
  app.require_subcommand(1);
  if (argc <= 1) {
    WriteReport("", FirstPage());
    return static_cast<int>(ExitCode::kDone);
  }
  Command root(app);
  root.Footer(kProgramFooter);
  root.Version(VersionText);
  RegisterEstimate(root, ReaderOfData());
  RegisterPlan(root, ReaderOfData());
  RegisterConfig(root);
  RegisterModel(root);
  RegisterHardware(root);
  RegisterData(root);
  RegisterTrain(root);
  RegisterCheckpoint(root);
  RegisterExplain(root);
  RegisterWhy(root);
  RegisterGenerate(root);
  RegisterMerge(root);
  RegisterDoctor(root);
  RegisterManual(root);
  try {
    std::vector<std::string> words = WithOwnNames({argv + 1, argv + argc}, *root.description());
    if (const std::string help = AskedShortHelp(words, *root.description()); !help.empty()) {
      WriteReport("", help);
      return static_cast<int>(ExitCode::kDone);
    }
    std::reverse(words.begin(), words.end());  // as CLI11 wants them
    app.parse(std::move(words));
  } catch (const CLI::Success& help) {
    ThrowUnknownCommand(app);  // rather than the help of what it was given to
    std::ostringstream text;   // of --help or --version
    const int code = app.exit(help, text, text);
    const bool is_help = dynamic_cast<const CLI::CallForHelp*>(&help) != nullptr;
    if (is_help) {
      WriteHelp(FitHelp(text.str(), PageColumns()));
    } else {
      WriteReport("", text.str());
    }
    return code;
  } catch (const CLI::ParseError& error) {
    ThrowParseError(app, error);
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace zeroplan
