#include "cli/common/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>

#include "core/base/error.h"
#include "core/base/terminal.h"

namespace zeroplan {
namespace {

struct Added {
  OptionInfo info;
  std::string name;  // for messages: "--output" of "-o,--output"
  std::string text;
  const CLI::Option* option;
  std::function<void(const std::string&, std::string_view)> take;

  bool given() const { return option->count() > 0; }
};

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

void RefuseDecided(const std::deque<Added>& options) {
  for (const Added& decided : options) {
    if (!decided.given()) continue;
    for (const std::string_view name : decided.info.decided_by) {
      const auto decider = std::find_if(options.begin(), options.end(),
                                        [&](const Added& option) { return option.name == name; });
      if (decider == options.end() || !decider->given()) continue;
      ThrowUsage("{}: {} is not allowed with {}, which decides it; leave one of the two out",
                 decided.name, decided.text, name);
    }
  }
}

}  // namespace

size_t HelpNameColumns() { return std::min<size_t>(30, PageColumns() * 3 / 8); }

struct Command::State {
  CLI::App* app;
  std::shared_ptr<CommandDescription> description;
  std::deque<Added> options;  // CLI11 writes into their texts
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
    : state_(
          std::make_shared<State>(State{&app, std::make_shared<CommandDescription>(), {}, false})) {
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
  state_->app->add_flag(name, value, BreakHelp(help))->group(group);
  state_->Describe(group, name, "", help, {});
}

void Command::List(const OptionInfo& info, bool required, char separator,
                   std::vector<std::string>& values, KnownNames known) {
  CLI::Option* option = state_->app->add_option(info.name, values, BreakHelp(info.help));
  option->type_name(info.type)->group(info.group)->required(required);
  if (separator != 0) option->delimiter(separator);
  state_->Describe(info.group, info.name, info.type, info.help,
                   {.required = required, .several = true, .known = known});
}

void Command::Text(const OptionInfo& info, std::string& value, KnownNames known) {
  Take(info, [&value](const std::string& text, std::string_view) { value = text; }, known);
}

void Command::Take(const OptionInfo& info,
                   std::function<void(const std::string&, std::string_view)> take,
                   KnownNames known) {
  Added& added = state_->options.emplace_back();
  added.info = info;
  added.name = added.info.name;
  added.name.erase(0, added.name.rfind(',') + 1);
  added.take = std::move(take);
  CLI::Option* option =
      state_->app->add_option(added.info.name, added.text, BreakHelp(added.info.help));
  option->type_name(added.info.type)->group(added.info.group);
  if (added.info.alone != nullptr) {
    option->expected(0, 1);
  } else if (!added.info.may_be_empty) {
    option->check(CLI::Validator(RefuseEmpty, ""));
  }
  added.option = option;
  state_->Describe(info.group, info.name, info.type, info.help,
                   {.alone = info.alone != nullptr, .known = known});
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
    RefuseDecided(state->options);
    for (const Added& option : state->options) {
      if (!option.given()) continue;
      const bool alone = option.info.alone != nullptr && option.text.empty();
      option.take(alone ? option.info.alone : option.text, option.name);
    }
    work();
  });
}

}  // namespace zeroplan
