#include "cli/manual/man_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "core/base/version.h"

namespace zeroplan {
namespace {

constexpr std::string_view kExitCodes = "Exit codes: ";
constexpr size_t kWidth = 78;  // of lines of text in the source

// Text as it is: nothing in it is a request, and quotes and dashes can be pasted into a shell.
std::string Escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '\\':
        escaped += "\\e";
        break;
      case '-':
        escaped += "\\-";
        break;
      case '\'':
        escaped += "\\(aq";
        break;
      case '`':
        escaped += "\\(ga";
        break;
      case '^':
        escaped += "\\(ha";
        break;
      case '~':
        escaped += "\\(ti";
        break;
      default:
        escaped += c;
    }
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
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line == "Examples:" || line == "Example:") continue;
    if (line.starts_with("  ")) {
      footer.examples += Line(Escape(line.substr(2)));
      continue;
    }
    paragraph += (paragraph.empty() ? "" : " ") + line;
    if (!line.ends_with('.') && begin < text.size()) continue;
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

}  // namespace zeroplan
