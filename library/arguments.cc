#include "library/arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/strings.h"
#include "core/base/terminal.h"

namespace zeroplan {
namespace {

bool IsFlag(const AddedField& field) { return field.info.type.empty(); }

// "--gpus", of an option with or without the dashes. Throws Error(kUsage) for one without a name.
std::string NameOf(const v1::Option& option) {
  const size_t dashes = option.name.starts_with("--") ? 2 : 0;
  if (option.name.size() == dashes) {
    ThrowUsage("an option has no name, and the value '{}'; use a name such as gpus", option.value);
  }
  return "--" + option.name.substr(dashes);
}

}  // namespace

void Arguments::Read(const char* command, const v1::Options& options) {
  const auto fail = [&](const std::string& what) {
    ThrowUsage("{}\nRun 'zeroplan {} --help' for what is allowed.", what, command);
  };
  std::vector<std::string> names;
  for (AddedField& field : fields_) {
    names.push_back(field.name = NameFields(field.info.name));
  }
  for (const v1::Option& option : options) {
    for (const std::string& text : {option.name, option.value}) {
      if (text.find('\0') == std::string::npos) continue;
      ThrowUsage("option {}: '{}' has a NUL character in it, which no option takes; leave it out",
                 PrintableText(option.name, 80), PrintableText(text, 80));
    }
    const std::string name = NameOf(option);
    if (option.value == "false") continue;
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      const std::string nearest = NearestName(name, names);
      fail(fmt::format("{}: is no option of 'zeroplan {}'{}", name, command,
                       nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
    }
    AddedField& field = fields_[static_cast<size_t>(found - names.begin())];
    if (field.given && !field.several) {
      fail(fmt::format("{}: is given twice; leave one out", name));
    }
    const bool again = field.given;
    field.given = true;
    if (option.value == "true" && field.info.alone != nullptr) continue;
    if (IsFlag(field)) fail(fmt::format("{}: is true or false, not {}", name, option.value));
    if (option.value == "true") {
      fail(fmt::format("{}: 1 required {} missing", name, field.info.type));
    }
    if (option.value.empty() && !field.info.may_be_empty && field.info.alone == nullptr) {
      fail(fmt::format("{}: the value is empty; give one, or leave the option out", name));
    }
    AddedField& taken = again ? fields_.emplace_back(field) : field;
    taken.text = option.value;
  }
  ReadFields(fields_);
}

std::vector<v1::OptionHelp> Arguments::Help() const {
  std::vector<v1::OptionHelp> help;
  for (const AddedField& field : fields_) {
    help.push_back({NameFields(field.info.name), field.info.type, NameFields(field.info.help)});
  }
  return help;
}

std::string CommandLineOf(const char* command, const v1::Options& options) {
  std::vector<std::string> words = {"zeroplan", command};
  for (const v1::Option& option : options) {
    if (option.value == "false") continue;
    words.push_back(NameOf(option));
    if (option.value == "true") continue;
    if (option.value.starts_with("-")) {  // as a word of its own it would be an option
      words.back() += '=' + option.value;
    } else {
      words.push_back(option.value);
    }
  }
  return ShellCommand(words);
}

}  // namespace zeroplan
