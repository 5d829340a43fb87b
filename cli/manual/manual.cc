// zeroplan completion SHELL, and the hidden zeroplan man: what they print is written from the
// commands themselves.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/common/build_info.h"
#include "cli/common/commands.h"
#include "cli/common/executor_commands.h"
#include "cli/common/output.h"
#include "cli/manual/completion.h"
#include "cli/manual/man_page.h"
#include "core/base/error.h"
#include "planner/request/parse.h"

namespace zeroplan {
namespace {

constexpr const char* kCompletionFooter = R"(Examples:
  source <(zeroplan completion bash)       (in ~/.bashrc)
  source <(zeroplan completion zsh)        (in ~/.zshrc, behind compinit)
  zeroplan completion fish | source        (in ~/.config/fish/config.fish)
Installed packages bring these for all three shells.)";

constexpr const char* kManualFooter = R"(Examples:
  zeroplan man plan | man -l -
  zeroplan man hw list | man -l -)";

const std::vector<std::string> kShells = {"bash", "zsh", "fish"};  // as enum Shell

struct CompletionCommand {
  std::string shell, output;
};

struct ManualCommand {
  std::vector<std::string> command;
  std::string folder;
};

const CommandPath& FindPage(const std::vector<CommandPath>& pages,
                            const std::vector<std::string>& command) {
  std::string name = "zeroplan";
  for (const std::string& word : command) name += "-" + word;
  for (const CommandPath& page : pages) {
    if (ManPageName(page) == name) return page;
  }
  ThrowUsage("man: there is no command {}; 'zeroplan --help' names them", name);
}

void RunManual(const CommandDescription& program, const ManualCommand& manual) {
  const std::vector<CommandPath> pages = ShownPaths(program);
  const std::string date(GetBuildInfo().date);
  if (manual.folder.empty()) {
    WriteOutput("", ManPage(FindPage(pages, manual.command), date));
    return;
  }
  if (!manual.command.empty()) {
    ThrowUsage("--write-to: {} is for all pages; leave the command out", manual.folder);
  }
  std::error_code failed;
  std::filesystem::create_directories(manual.folder, failed);
  if (failed) ThrowRuntime("--write-to: {}: {}", manual.folder, failed.message());
  for (const CommandPath& page : pages) {
    WriteOutput(manual.folder + "/" + ManPageName(page) + ".1", ManPage(page, date));
  }
}

}  // namespace

void RegisterManual(Command& app) {
  Command completion =
      app.Add(kCompletionCommand, "Completions for a shell, to source or to install");
  auto wanted = std::make_shared<CompletionCommand>();
  completion.Required("shell", "bash|zsh|fish", "Shell whose script is printed", wanted->shell);
  completion.Text({kNoGroup, "-o,--output", "FILE", "File for it (default: stdout)"},
                  wanted->output);
  completion.Footer(kCompletionFooter);
  completion.Run([wanted, program = app.description()] {
    const auto shell = static_cast<Shell>(ParseWord(wanted->shell, "shell", kShells));
    WriteOutput(wanted->output, Completion(*program, shell));
  });

  Command man =
      app.AddHidden(kManualCommand, "A manual page, in roff: zeroplan man plan | man -l -");
  auto manual = std::make_shared<ManualCommand>();
  man.Words("command", "COMMAND",
            "Command whose page is printed, such as hw list (default: "
            "zeroplan itself)",
            manual->command);
  man.Text({kNoGroup, "--write-to", "DIR", "Write all pages into this folder"}, manual->folder);
  man.Footer(kManualFooter);
  man.Run([manual, program = app.description()] { RunManual(*program, *manual); });
}

}  // namespace zeroplan
