#include "cli/common/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>

#include "core/base/error.h"
#include "core/base/terminal.h"
#include "planner/request/parse.h"

namespace zeroplan {
namespace {

// An empty value would read as "not given": a shell variable that is not set, most often.
std::string RefuseEmpty(const std::string& value) {
  return value.empty() ? "the value is empty; give one, or leave the option out" : "";
}

// CLI11 prints help unbroken beside a column of its names: lines of 68 make 98 on a page of 100.
std::string BreakHelp(std::string help) {
  const size_t fits = PageColumns() - HelpNameColumns(), width = fits - 2;
  if (help.size() <= fits) return help;
  for (size_t begin = 0; help.size() - begin > width;) {
    const size_t space = help.rfind(' ', begin + width);
    if (space == std::string::npos || space <= begin) break;
    help[space] = '\n';
    begin = space + 1;
  }
  return help;
}

// "-o,--output": each of them.
std::vector<std::string> SplitNames(const std::string& names) {
  std::vector<std::string> split;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = names.find(',', begin);
    split.push_back(names.substr(begin, end - begin));
  }
  return split;
}

}  // namespace

size_t HelpNameColumns() { return std::min<size_t>(30, PageColumns() * 3 / 8); }

struct Command::State {
  CLI::App* app;
  std::shared_ptr<CommandDescription> description;
  std::deque<AddedField> options;          // CLI11 writes into their texts
  std::vector<const CLI::Option*> parsed;  // one each
  bool no_progress = false;

  void Describe(const char* group, const std::string& names, const char* type,
                const std::string& help, OptionDescription&& more) {
    more.group = group;
    more.names = SplitNames(names);
    more.type = type;
    more.help = help;
    description->options.push_back(std::move(more));
  }
};

Command::Command(CLI::App& app)
    : state_(std::make_shared<State>(
          State{&app, std::make_shared<CommandDescription>(), {}, {}, false})) {
  state_->description->name = app.get_name();
  state_->description->help = app.get_description();
  if (const CLI::Option* option = app.get_help_ptr()) {
    state_->Describe(kNoGroup, option->get_name(false, true), "", option->get_description(), {});
  }
}

Command Command::Add(const char* name, const char* help) {
  const Command command(*state_->app->add_subcommand(name, help));
  state_->description->commands.push_back(command.state_->description);
  return command;
}

Command Command::AddGroup(const char* name, const char* help) {
  const Command group = Add(name, help);
  group.state_->app->require_subcommand(1);
  return group;
}

Command Command::AddHidden(const char* name, const char* help) {
  const Command command = Add(name, help);
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
                       std::string& value, KnownNames known) {
  state_->app->add_option(name, value, BreakHelp(help))->type_name(type)->required();
  state_->Describe(kNoGroup, name, type, help, {.required = true, .known = known});
}

void Command::Required(const char* name, const char* type, const std::string& help,
                       std::vector<std::string>& values) {
  state_->app->add_option(name, values, BreakHelp(help))->type_name(type)->required();
  state_->Describe(kNoGroup, name, type, help, {.required = true, .several = true});
}

void Command::Words(const char* name, const char* type, const std::string& help,
                    std::vector<std::string>& values) {
  state_->app->add_option(name, values, BreakHelp(help))->type_name(type);
  state_->Describe(kNoGroup, name, type, help, {.several = true});
}

void Command::Flag(const char* group, const char* name, const std::string& help, bool& value) {
  const std::string named = NameFields(name), helps = NameFields(help);
  state_->app->add_flag(named, value, BreakHelp(helps))->group(group);
  state_->Describe(group, named, "", helps, {});
}

void Command::List(const FieldInfo& info, bool required, char separator,
                   std::vector<std::string>& values, KnownNames known) {
  CLI::Option* option = state_->app->add_option(info.name, values, BreakHelp(info.help));
  option->type_name(info.type)->group(info.group)->required(required);
  if (separator != 0) option->delimiter(separator);
  state_->Describe(info.group, info.name, info.type, info.help,
                   {.required = required, .several = true, .known = known});
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
  state_->Describe(added.info.group, added.name, added.info.type, help,
                   {.alone = added.info.alone != nullptr, .known = added.known});
  added.name.erase(0, added.name.rfind(',') + 1);
}

std::shared_ptr<const CommandDescription> Command::description() const {
  return state_->description;
}

void Command::Progress(const char* group) {
  Flag(group, "--no-progress",
       "No line that redraws itself on a terminal while something takes long", state_->no_progress);
}

void Command::Run(std::function<void()> work) {
  state_->app->callback([state = state_, work = std::move(work)] {
    if (state->no_progress) ForbidProgress();
    for (size_t i = 0; i < state->parsed.size(); ++i) {
      state->options[i].given = state->parsed[i]->count() > 0;
    }
    ReadFields(state->options);
    work();
  });
}

void AddFormatOption(Command& command, const char* help, Given<OutputFormat>& format) {
  command.Value({"Output", "--format", "text|json",
                 fmt::format("text for people; json ({}) for programs (default text)", help)},
                format, WordIn<OutputFormat>({"text", "json"}));
}

}  // namespace zeroplan
