#include "cli/common/command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <deque>

#include "cli/common/command_files.h"
#include "cli/common/other_names.h"
#include "cli/common/output.h"
#include "core/base/error.h"
#include "core/base/strings.h"
#include "core/base/terminal.h"
#include "planner/report/report_text.h"
#include "planner/request/parse.h"

namespace zeroplan {

namespace {

// An empty value would read as "not given": a shell variable that is not set, most often.
std::string RefuseEmpty(const std::string& value) {
  return value.empty() ? "the value is empty; give one, or leave the option out" : "";
}

constexpr const char* kQuotes = " (words of one value stand in quotes: --hw \"RTX 4090\")";

// CLI11 prints help unbroken beside a column of its names: lines of 68 make 98 on a page of 100.
std::string BreakHelp(std::string help) {
  const size_t fits = std::min(PageColumns(), kPlainColumns) - HelpNameColumns(), width = fits - 2;
  if (help.size() <= fits) return help;
  for (size_t begin = 0; help.size() - begin > width;) {
    const size_t space = help.rfind(' ', begin + width);
    if (space == std::string::npos || space <= begin) break;
    help[space] = '\n';
    begin = space + 1;
  }
  return help;
}

}  // namespace

size_t HelpNameColumns() { return std::min<size_t>(30, PageColumns() * 3 / 8); }

struct Command::State {
  CLI::App* app;
  std::shared_ptr<CommandDescription> description;
  std::deque<AddedField> options;          // CLI11 writes into their texts
  std::vector<const CLI::Option*> parsed;  // one each
  // Words that stand for an option without its name.
  struct Word {
    size_t option;
    std::string text;
  };
  std::deque<Word> words;
  bool no_progress = false;
  // Options whose values are paths.
  struct PathOption {
    std::string name;
    PathRole role;
    std::function<std::vector<std::string>()> values;  // those that were given
  };
  std::vector<PathOption> paths;

  void Describe(const char* group, const std::string& names, const std::string& type,
                const std::string& help, OptionDescription&& more) {
    more.group = group;
    for (const std::string_view name : Split(names, ',')) more.names.emplace_back(name);
    more.type = type;
    more.help = help;
    description->options.push_back(std::move(more));
  }

  // Of the option that was described last, where it leads to paths.
  void KeepPaths(std::function<std::vector<std::string>()> values) {
    const OptionDescription& option = description->options.back();
    if (!option.leads_to_path()) return;
    paths.push_back({option.names.back(), option.path, std::move(values)});
  }

  std::vector<CommandFile> Files() const {
    std::vector<CommandFile> files;
    for (const PathOption& option : paths) {
      for (std::string& value : option.values()) {
        if (!value.empty()) files.push_back({option.name, std::move(value), option.role});
      }
    }
    return files;
  }
};

bool OptionDescription::leads_to_path() const {
  const Offers offers = OffersOf({.type = type});
  return offers.files || offers.folders;
}

Command::Command(CLI::App& app)
    : state_(std::make_shared<State>(
          State{&app, std::make_shared<CommandDescription>(), {}, {}, {}, false, {}})) {
  state_->description->name = app.get_name();
  state_->description->help = app.get_description();
  if (const CLI::Option* option = app.get_help_ptr()) {
    state_->Describe(kNoGroup, option->get_name(false, true), "", option->get_description(), {});
  }
}

Command Command::Add(const char* name, const char* help) {
  Command command(*state_->app->add_subcommand(name, help));
  state_->description->commands.push_back(command.state_->description);
  return command;
}

Command Command::AddGroup(const char* name, const char* help) {
  Command group = Add(name, help);
  group.state_->app->require_subcommand(1);
  return group;
}

Command Command::AddHidden(const char* name, const char* help) {
  Command command = Add(name, help);
  command.state_->app->group("");
  command.state_->description->hidden = true;
  return command;
}

void Command::Footer(const std::string& text) {
  state_->app->footer(text);
  state_->description->footer = text;
}

void Command::Version(std::function<std::string()> text) {
  const char* help = "Print the version and what this is built from";
  state_->app->set_version_flag("--version", std::move(text), help);
  state_->Describe(kNoGroup, "--version", "", help, {});
}

void Command::Required(const char* name, const char* type, const std::string& help,
                       std::string& value, KnownNames known, PathRole path) {
  state_->app->add_option(name, value, BreakHelp(help))->type_name(type)->required();
  state_->Describe(kNoGroup, name, type, help, {.required = true, .known = known, .path = path});
  state_->KeepPaths([&value] { return std::vector{value}; });
}

void Command::Required(const char* name, const char* type, const std::string& help,
                       std::vector<std::string>& values, PathRole path) {
  state_->app->add_option(name, values, BreakHelp(help))->type_name(type)->required();
  state_->Describe(kNoGroup, name, type, help, {.required = true, .several = true, .path = path});
  state_->KeepPaths([&values] { return values; });
}

void Command::Words(const char* name, const char* type, const std::string& help,
                    std::vector<std::string>& values) {
  state_->app->add_option(name, values, BreakHelp(help))->type_name(type);
  state_->Describe(kNoGroup, name, type, help, {.several = true});
}

void Command::Flag(const char* group, const std::string& name, const std::string& help,
                   bool& value) {
  const std::string named = NameFields(name), helps = NameFields(help);
  state_->app->add_flag(named, value, BreakHelp(helps))->group(group);
  state_->Describe(group, named, "", helps, {});
}

void Command::List(const FieldInfo& info, bool required, char separator,
                   std::vector<std::string>& values, KnownNames known) {
  CLI::Option* option = state_->app->add_option(info.name, values, BreakHelp(info.help));
  option->type_name(info.type)->group(info.group)->required(required);
  option->check(CLI::Validator(RefuseEmpty, ""));
  if (separator != 0) option->delimiter(separator);
  state_->Describe(info.group, info.name, info.type, info.help,
                   {.required = required, .several = true, .known = known, .path = info.path});
  state_->KeepPaths([&values] { return values; });
}

void Command::Texts(const FieldInfo& info, std::vector<std::string>& values) {
  FieldInfo named = info;
  named.name = NameFields(info.name);
  named.help = NameFields(info.help);
  List(named, /*required=*/false, 0, values);
}

void Command::Take(AddedField field) {
  field.name = NameFields(field.info.name);
  const std::string help = NameFields(field.info.help);
  AddedField& added = state_->options.emplace_back(std::move(field));
  CLI::Option* option = state_->app->add_option(added.name, added.text, BreakHelp(help));
  option->type_name(added.info.type)->group(added.info.group);
  if (added.info.alone != nullptr) {
    option->expected(0, 1);
  } else if (!added.info.may_be_empty) {
    option->check(CLI::Validator(RefuseEmpty, ""));
  }
  state_->parsed.push_back(option);
  state_->Describe(
      added.info.group, added.name, added.info.type, help,
      {.alone = added.info.alone != nullptr, .known = added.known, .path = added.info.path});
  state_->KeepPaths([&added] { return std::vector{added.text}; });
  added.name.erase(0, added.name.rfind(',') + 1);
  if (added.info.word == nullptr) return;
  State::Word& word = state_->words.emplace_back(State::Word{state_->options.size() - 1, ""});
  const std::string same = "The same as " + added.name;
  CLI::Option* positional = state_->app->add_option(added.info.word, word.text, BreakHelp(same));
  positional->type_name(added.info.type)->check(CLI::Validator(RefuseEmpty, ""));
  state_->Describe(kNoGroup, added.info.word, added.info.type, same,
                   {.known = added.known, .path = added.info.path});
}

std::shared_ptr<const CommandDescription> Command::description() const {
  return state_->description;
}

void Command::Progress(const char* group) {
  Flag(group, "--no-progress",
       "Show no progress: no line that redraws itself on a terminal while something takes long",
       state_->no_progress);
}

void Command::Run(std::function<void()> work) {
  state_->app->callback([state = state_, work = std::move(work)] {
    if (state->no_progress) ForbidProgress();
    for (size_t i = 0; i < state->parsed.size(); ++i) {
      state->options[i].given = state->parsed[i]->count() > 0;
    }
    for (const State::Word& word : state->words) {
      AddedField& option = state->options[word.option];
      if (word.text.empty()) continue;
      if (option.given && option.text != word.text) {
        ThrowUsage(
            "{}: is not allowed beside {} {}, which says the same; leave one of the two out{}",
            word.text, option.name, option.text, kQuotes);
      }
      option.given = true;
      option.text = word.text;
    }
    ReadFields(state->options);
    CheckFiles(state->Files());
    work();
  });
}

void AddFormatOption(Command& command, const char* help, Given<OutputFormat>& format) {
  command.Value({"Output", "--format", "text|json",
                 fmt::format("text for people; json ({}) for programs (default text)", help)},
                format, WordIn<OutputFormat>({"text", "json"}));
}

namespace {

bool IsWord(std::string_view part) {
  const auto first = static_cast<unsigned char>(part[0]);
  return std::islower(first) != 0 || std::isdigit(first) != 0;
}

}  // namespace

Offers OffersOf(const OptionDescription& option) {
  Offers offers;
  for (const std::string_view part : Split(option.type, '|')) {
    if (part.empty()) continue;
    if (IsWord(part)) offers.words.emplace_back(part);
    const bool path = part == "PATH";
    offers.files = offers.files || path || part == "PLAN" || part.starts_with("FILE");
    offers.folders = offers.folders || path || part == "DIR";
  }
  if (option.known != nullptr) {
    for (std::string& name : option.known()) offers.words.push_back(std::move(name));
  }
  return offers;
}

std::vector<const CommandDescription*> ShownCommands(const CommandDescription& command) {
  std::vector<const CommandDescription*> shown;
  for (const auto& below : command.commands) {
    if (!below->hidden) shown.push_back(below.get());
  }
  return shown;
}

namespace {

// Long names of the options, or names of the subcommands, that `app` knows.
std::vector<std::string> NamesIn(const CLI::App& app, bool options) {
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

// "zeroplan hw list"
std::string PathTo(const CLI::App& app, const CLI::App& command) {
  std::string path = "zeroplan";
  for (const CLI::App* at = &app; at != &command;) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
  }
  return path;
}

// What the first word is that nobody asked for, as "--modle: is no option of zeroplan plan".
std::string ExtraWord(const CLI::App& command, const std::string& path) {
  const std::vector<std::string> words = command.remaining(true);
  const std::string name = words.front().substr(0, words.front().find('='));
  const bool option = name.starts_with("-");
  const bool sub_command = !option && !command.get_subcommands({}).empty();
  if (const std::string hint = option ? HintFor(name, NamesIn(command, true)) : ""; !hint.empty()) {
    return fmt::format("{}: is no option of '{}'; {}", name, path, hint);
  }
  const std::string nearest =
      option || sub_command ? NearestName(name, NamesIn(command, option)) : "";
  if (const std::string use =
          sub_command && command.get_parent() == nullptr ? CommandFor(name) : "";
      !use.empty()) {
    return fmt::format("{}: is no command of '{}'; {}", name, path, use);
  }
  // "zeroplan llama3.1-8b"
  if (sub_command && nearest.empty() && command.get_parent() == nullptr) {
    return fmt::format("{}: is no command of '{}'; a command comes first, such as '{} plan {}'",
                       name, path, path, name);
  }
  return fmt::format("{}: {}{}", name,
                     option        ? fmt::format("is no option of '{}'", path)
                     : sub_command ? fmt::format("is no command of '{}'", path)
                                   : fmt::format("was not expected{}", kQuotes),
                     nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
}

}  // namespace

void ThrowUnknownCommand(const CLI::App& app) {
  const CLI::App& command = Innermost(app);
  const std::vector<std::string> words = command.remaining(true);
  if (words.empty() || words.front().starts_with("-")) return;
  if (command.get_subcommands({}).empty()) return;
  const std::string path = PathTo(app, command);
  ThrowUsage("{}\nRun '{} --help' for what is allowed.", ExtraWord(command, path), path);
}

void ThrowParseError(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = Innermost(app);
  const std::string path = PathTo(app, command);
  std::string what = command.remaining(true).empty() ? error.what() : ExtraWord(command, path);
  constexpr std::string_view kTwice = ": At Most 1 required but received ";
  if (const size_t at = what.find(kTwice); at != std::string::npos) {
    what = fmt::format("{}: is given {} times; give it once", what.substr(0, at),
                       what.substr(at + kTwice.size()));
  }
  ThrowUsage("{}\nRun '{} --help' for what is allowed.", what, path);
}

namespace {

// A command line as lines of at most `columns`, all but the last with a backslash at their end.
std::string BreakCommand(std::string_view line, size_t columns) {
  constexpr std::string_view kIndent = "      ", kGoesOn = " \\";
  if (line.size() <= columns) return std::string(line);
  std::string out, row;
  const size_t lead = std::min(line.find_first_not_of(' '), line.size());
  for (size_t at = lead; at < line.size();) {
    const size_t end = std::min(line.find(' ', at), line.size());
    const std::string_view word = line.substr(at, end - at);
    const bool last = end == line.size();
    if (!row.empty() && row.size() + 1 + word.size() + (last ? 0 : kGoesOn.size()) > columns) {
      out += row.append(kGoesOn).append("\n");
      row = std::string(kIndent).append(word);
    } else {
      row = row.empty() ? std::string(lead, ' ').append(word) : row.append(" ").append(word);
    }
    at = std::min(line.find_first_not_of(' ', end), line.size());
  }
  return out + row;
}

bool EndsParagraph(std::string_view line) {
  return line.empty() || line.starts_with(' ') || line.ends_with('.') || line.ends_with(':');
}

}  // namespace

std::string FitHelp(std::string_view help, size_t columns) {
  if (columns >= kPlainColumns) return std::string(help);
  std::string out, prose;
  bool examples = false;
  const auto flush = [&] {
    if (!prose.empty()) out += FitLines(prose, columns) + '\n';
    prose.clear();
  };
  for (const std::string_view line : Split(help, '\n')) {
    if (line.empty() || line.starts_with(' ')) {
      flush();
      out += examples && !line.empty() ? BreakCommand(line, columns) : FitLines(line, columns);
      out += '\n';
      continue;
    }
    examples = line.starts_with("Example");
    if (examples || line.starts_with("Usage:")) flush();
    prose += prose.empty() ? "" : " ";
    prose += line;
    if (EndsParagraph(line)) flush();
  }
  flush();
  return out;
}

std::string ShortHelp(const CommandDescription& command, const std::string& path,
                      const std::vector<std::string>& most, size_t columns) {
  constexpr size_t kMost = 12, kLinesOfOption = 2, kExamples = 2;
  std::string usage = fmt::format("Usage: {} [OPTIONS]", path);
  std::vector<const OptionDescription*> shown;
  size_t options = 0;
  for (const OptionDescription& option : command.options) {
    if (option.positional()) {
      usage +=
          option.required ? " " + option.names.front() : fmt::format(" [{}]", option.names.front());
      shown.push_back(&option);
    } else {
      ++options;
    }
  }
  const size_t positionals = shown.size();
  if (most.empty()) {
    for (const OptionDescription& option : command.options) {
      if (!option.positional() && shown.size() < positionals + kMost) shown.push_back(&option);
    }
  }
  for (const std::string& name : most) {
    const auto at =
        std::find_if(command.options.begin(), command.options.end(), [&](const auto& o) {
          return std::find(o.names.begin(), o.names.end(), name) != o.names.end();
        });
    if (at != command.options.end()) shown.push_back(&*at);
  }
  std::string text = fmt::format("{}\n{}\n\n", command.help, usage);
  const size_t names = HelpNameColumns();
  for (const OptionDescription* option : shown) {
    std::string name = "  " + fmt::format("{}", fmt::join(option->names, ","));
    if (option->takes_value() && !option->positional()) name += " " + option->type;
    // The first sentence is what it does; the rest stands in the whole help.
    std::string help = option->help.substr(0, option->help.find(". "));
    const size_t room = (columns - names) * kLinesOfOption - 8;
    if (help.size() > room) help = help.substr(0, help.rfind(' ', room)) + " ...";
    std::string entry = Wrap(std::string(names, ' ') + help, names, columns);
    if (name.size() < names) {
      entry.replace(0, name.size(), name);
    } else {
      entry.insert(0, name + '\n');
    }
    text += entry;
  }
  for (const CommandDescription* sub : ShownCommands(command)) {
    text += fmt::format("{:<{}}{}\n", "  " + sub->name, names, sub->help);
  }
  size_t examples = 0;
  for (const std::string_view line : Split(command.footer, '\n')) {
    if (!line.starts_with("  zeroplan ") || examples == kExamples) continue;
    text += examples++ == 0 ? "\nExamples:\n" : "";
    text += fmt::format("{}\n", line);
  }
  const bool more = options > shown.size() - positionals;
  return text + (more ? fmt::format("\n'{} --help' has all {} options and what they mean.\n", path,
                                    options)
                      : fmt::format("\n'{} --help' says more.\n", path));
}

}  // namespace zeroplan
