#include "cli/programs/app.h"

#include <CLI/CLI.hpp>
#include <sstream>
#include <string>

#include "cli/common/build_info.h"
#include "cli/common/command.h"
#include "cli/common/commands.h"
#include "cli/common/output.h"
#include "core/base/error.h"
#include "core/base/terminal.h"

namespace zeroplan {
namespace {

constexpr const char* kProgramFooter = R"(Examples:
  zeroplan estimate --params 10B --gpus 16
  zeroplan estimate --model gpt2-xl --gpus 8 --micro-batch 16 --stage 2 --format json
  zeroplan model list
Each command has its own --help; 'zeroplan help COMMAND' shows it too.
Sizes: 10B, 350M, 2k are counts (powers of ten); 32GB is 32*10^9 bytes, 32GiB is 32*2^30 bytes.
Exit codes: 0 done, 2 bad usage or input, 3 nothing fits, 4 failure while running, 5 diverged,
130 interrupted after saving.)";

}  // namespace

int RunApp(int argc, const char* const* argv) {
  CLI::App app("Plans and runs ZeRO training of transformers: what fits, how fast, and doing it.",
               "zeroplan");
  LayOutFor("");  // help is broken as options are added
  app.get_formatter()->column_width(HelpNameColumns());
  app.set_help_flag("-h,--help", "Print this help");
  app.require_subcommand(1);
  Command root(app);
  root.Footer(kProgramFooter);
  root.Version(VersionText);
  RegisterEstimate(root);
  RegisterPlan(root);
  RegisterConfig(root);
  RegisterModel(root);
  RegisterHardware(root);
  RegisterData(root);
  RegisterTrain(root);
  RegisterCheckpoint(root);
  RegisterExplain(root);
  RegisterGenerate(root);
  RegisterDoctor(root);
  RegisterManual(root);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    ThrowUnknownCommand(app);  // rather than the help of what it was given to
    std::ostringstream text;   // of --help or --version
    const int code = app.exit(help, text, text);
    const bool is_help = dynamic_cast<const CLI::CallForHelp*>(&help) != nullptr;
    WriteReport("", is_help ? FitHelp(text.str(), PageColumns()) : text.str());
    return code;
  } catch (const CLI::ParseError& error) {
    ThrowParseError(app, error);
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace zeroplan
