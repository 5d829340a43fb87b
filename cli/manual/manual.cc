// zeroplan completion SHELL, and the hidden zeroplan man: what they print is written from the
// commands themselves.
#include "cli/manual/manual.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>

#include "cli/common/commands.h"
#include "cli/common/executor_commands.h"
#include "cli/common/output.h"
#include "core/base/build_info.h"
#include "core/base/error.h"
#include "core/base/strings.h"
#include "core/base/version.h"
#include "planner/request/parse.h"

namespace zeroplan {
namespace {

constexpr std::string_view kExitCodes = "Exit codes: ";
constexpr size_t kWidth = 78;  // of lines of text in the source

// Text as it is: nothing in it is a request, and quotes and dashes can be pasted into a shell.
std::string Escape(std::string_view text) {
  constexpr std::pair<char, std::string_view> kEscapes[] = {
      {'\\', "\\e"}, {'-', "\\-"}, {'\'', "\\(aq"}, {'`', "\\(ga"}, {'^', "\\(ha"}, {'~', "\\(ti"}};
  std::string escaped;
  for (const char c : text) {
    const auto found = std::find_if(std::begin(kEscapes), std::end(kEscapes),
                                    [c](const auto& escape) { return escape.first == c; });
    escaped += found == std::end(kEscapes) ? std::string(1, c) : std::string(found->second);
  }
  return escaped;
}

std::string Bold(std::string_view text) { return "\\fB" + Escape(text) + "\\fR"; }
std::string Italic(std::string_view text) { return "\\fI" + Escape(text) + "\\fR"; }

// A line of its own, which must not begin as a request does.
std::string Line(const std::string& escaped) {
  return (escaped.starts_with('.') ? "\\&" : "") + escaped + "\n";
}

// A paragraph, in lines.
std::string Fill(std::string_view text) {
  std::string lines, line;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    const std::string word = Escape(text.substr(begin, end - begin));
    begin = end + 1;
    if (word.empty()) continue;
    if (!line.empty() && line.size() + 1 + word.size() > kWidth) {
      lines += Line(line);
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return line.empty() ? lines : lines + Line(line);
}

std::string Heading(std::string_view text) {
  std::string upper(text);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return ".SH \"" + Escape(upper) + "\"\n";
}

std::string SpacedName(const CommandPath& path) {
  std::string name;
  for (const CommandDescription* command : path) name += (name.empty() ? "" : " ") + command->name;
  return name;
}

// "\fB\-o\fR, \fB\-\-output\fR \fIFILE\fR"
std::string Names(const OptionDescription& option) {
  if (option.positional()) return Italic(option.type) + (option.several ? " .\\|.\\|." : "");
  std::string text;
  for (const std::string& name : option.names) text += (text.empty() ? "" : ", ") + Bold(name);
  if (!option.takes_value()) return text;
  const std::string value = Italic(option.type) + (option.several ? " .\\|.\\|." : "");
  return text + (option.alone ? " [" + value + "]" : " " + value);
}

std::string Synopsis(const CommandPath& path) {
  const CommandDescription& command = *path.back();
  std::string text = Heading("Synopsis") + Bold(SpacedName(path));
  if (!command.commands.empty()) text += " " + Italic("COMMAND");
  text += " [" + Italic("OPTIONS") + "]";
  for (const bool positional : {false, true}) {
    for (const OptionDescription& option : command.options) {
      if (option.positional() != positional || (!positional && !option.required)) continue;
      const std::string names = Names(option);
      text += option.required ? " " + names : " [" + names + "]";
    }
  }
  return text + "\n";
}

std::string Commands(const CommandPath& path) {
  const std::vector<CommandPath> below = ShownPaths(*path.back());
  if (below.size() == 1) return "";
  std::string text = Heading("Commands");
  for (size_t i = 1; i < below.size(); ++i) {
    CommandPath whole(path.begin(), path.end() - 1);
    whole.insert(whole.end(), below[i].begin(), below[i].end());
    text += ".TP\n" + Bold(SpacedName(whole)) + "\n" + Fill(below[i].back()->help);
  }
  return text;
}

// Options under their headings, in the order in which these first appear.
std::string Options(const CommandDescription& command) {
  std::vector<std::string> groups;
  for (const OptionDescription& option : command.options) {
    if (std::find(groups.begin(), groups.end(), option.group) == groups.end()) {
      groups.push_back(option.group);
    }
  }
  std::string text;
  for (const std::string& group : groups) {
    text += groups.front() == group ? Heading("Options") : ".SS \"" + Escape(group) + "\"\n";
    for (const OptionDescription& option : command.options) {
      if (option.group != group) continue;
      text += ".TP\n" + Names(option) + "\n" + Fill(option.help);
      if (option.required && !option.positional()) text += "Required.\n";
    }
  }
  return text;
}

struct Footer {
  std::string examples;              // roff
  std::vector<std::string> remarks;  // paragraphs
};

// A paragraph of the footer ends with the line that ends its last sentence.
Footer ReadFooter(const std::string& text) {
  Footer footer;
  std::string paragraph;
  const std::vector<std::string_view> lines = Split(text, '\n');
  for (const std::string_view& line : lines) {
    if (line == "Examples:" || line == "Example:") continue;
    if (line.starts_with("  ")) {
      footer.examples += Line(Escape(line.substr(2)));
      continue;
    }
    paragraph.append(paragraph.empty() ? "" : " ").append(line);
    if (!line.ends_with('.') && &line != &lines.back()) continue;
    footer.remarks.push_back(std::move(paragraph));
    paragraph.clear();
  }
  return footer;
}

// The paths above and below this one, and its sisters where it has none below.
std::string SeeAlso(const CommandPath& path) {
  std::vector<std::string> names;
  for (size_t length = 1; length < path.size(); ++length) {
    names.push_back(ManPageName(CommandPath(path.begin(), path.begin() + length)));
  }
  for (const CommandDescription* below : ShownCommands(*path.back())) {
    CommandPath one = path;
    one.push_back(below);
    names.push_back(ManPageName(one));
  }
  std::string text = Heading("See also");
  for (const std::string& name : names) {
    text += fmt::format(".BR {} (1){}\n", Escape(name), name == names.back() ? "" : ",");
  }
  return text + ".PP\n" +
         Fill(
             "Texts that are named docs/NAME.md lie in zeroplan's folder of documentation, most "
             "often /usr/share/doc/zeroplan or /usr/local/share/doc/zeroplan.");
}

}  // namespace

std::vector<CommandPath> ShownPaths(const CommandDescription& program) {
  std::vector<CommandPath> paths = {{&program}};
  for (const CommandDescription* command : ShownCommands(program)) {
    for (CommandPath& below : ShownPaths(*command)) {
      below.insert(below.begin(), &program);
      paths.push_back(std::move(below));
    }
  }
  return paths;
}

std::string ManPageName(const CommandPath& path) {
  std::string name = SpacedName(path);
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string ManPage(const CommandPath& path, const std::string& date) {
  const CommandDescription& command = *path.back();
  const std::string name = ManPageName(path);
  std::string upper = name;
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  std::string text = fmt::format(
      ".\\\" Written by 'zeroplan man' from the options' definitions.\n"
      ".TH {} 1 \"{}\" \"zeroplan {}\" \"User Commands\"\n",
      Escape(upper), date, kVersion);
  std::string what = command.help;
  if (what.ends_with('.')) what.pop_back();
  text += Heading("Name") + Fill(fmt::format("{} - {}", name, what)) + Synopsis(path);
  const Footer footer = ReadFooter(command.footer);
  bool headed = false;
  for (const std::string& remark : footer.remarks) {
    if (remark.starts_with(kExitCodes)) continue;
    text += (headed ? ".PP\n" : Heading("Description")) + Fill(remark);
    headed = true;
  }
  text += Commands(path) + Options(command);
  if (!footer.examples.empty()) {
    text += Heading("Examples") + ".nf\n" + footer.examples + ".fi\n";
  }
  // The program's are every command's.
  for (const std::string& remark : ReadFooter(path.front()->footer).remarks) {
    if (!remark.starts_with(kExitCodes)) continue;
    text += Heading("Exit status") + Fill(remark.substr(kExitCodes.size()));
  }
  return text + SeeAlso(path);
}

namespace {

constexpr const char* kCompletionFooter = R"(Examples:
  source <(zeroplan completion bash)       (in ~/.bashrc)
  source <(zeroplan completion zsh)        (in ~/.zshrc, behind compinit)
  zeroplan completion fish | source        (in ~/.config/fish/config.fish)
Installed packages bring these for all three shells.)";

constexpr const char* kManualFooter = R"(Examples:
  zeroplan man plan | man -l -
  zeroplan man hw list | man -l -)";

const OutputKind kScript = {"completions that zeroplan wrote", {"as 'zeroplan completion "}};

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
  completion.Text({.group = kNoGroup,
                   .name = "-o,--out",
                   .type = "FILE",
                   .help = "File for it (default: stdout)",
                   .path = PathRole::Writes(kScript)},
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
  man.Text({.group = kNoGroup,
            .name = "--write-to",
            .type = "DIR",
            .help = "Write all pages into this folder",
            .path = {PathRole::Use::kFill}},
           manual->folder);
  man.Footer(kManualFooter);
  man.Run([manual, program = app.description()] { RunManual(*program, *manual); });
}

}  // namespace zeroplan
