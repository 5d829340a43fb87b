#include "cli/app.h"

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/common/build_info.h"
#include "core/base/error.h"
#include "core/base/nearest_name.h"

namespace zeroplan {
namespace {

constexpr const char* kFooter = R"(Examples:
  zeroplan estimate --params 10B --gpus 16
  zeroplan estimate --model gpt2-xl --gpus 8 --micro-batch 16 --stage 2 --format json
  zeroplan model list
Each command has its own --help.
Sizes: 10B, 350M, 2k are counts (powers of ten); 32GB is 32*10^9 bytes, 32GiB is 32*2^30 bytes.
Exit codes: 0 done, 2 bad usage or input, 3 nothing fits, 4 failure while running, 5 diverged,
130 interrupted after saving.)";

// Long names of the options, or names of the subcommands, that `app` knows.
std::vector<std::string> KnownNames(const CLI::App& app, bool options) {
  std::vector<std::string> names;
  if (!options) {
    for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
    return names;
  }
  for (const CLI::Option* option : app.get_options({})) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// The command that was being parsed.
const CLI::App& Innermost(const CLI::App& app) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  return parsed.empty() ? app : Innermost(*parsed.front());
}

[[noreturn]] void FailUsage(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = Innermost(app);
  std::string path = "zeroplan";
  for (const CLI::App* at = &app; at != &command;) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
  }
  std::string hint;
  for (const std::string& word : command.remaining(true)) {
    const std::string name = word.substr(0, word.find('='));
    const std::string nearest = NearestName(name, KnownNames(command, name.starts_with("-")));
    if (!nearest.empty()) hint = fmt::format("\nDid you mean {}?", nearest);
  }
  ThrowUsage("{}{}\nRun '{} --help' for what is allowed.", error.what(), hint, path);
}

}  // namespace

int RunApp(int argc, const char* const* argv) {
  CLI::App app("Plans and runs ZeRO training of transformers: what fits, how fast, and doing it.",
               "zeroplan");
  app.set_help_flag("-h,--help", "Print this help");
  app.require_subcommand(1);
  Command root(app);
  root.Footer(kFooter);
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
    return app.exit(help);  // --help and --version print to stdout
  } catch (const CLI::ParseError& error) {
    FailUsage(app, error);
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace zeroplan
