#include "cli/manual/shell_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "core/base/strings.h"

namespace zeroplan {

const char* TakesWord(const OptionDescription& option) {
  if (!option.takes_value()) return "none";
  if (option.several) return "several";
  return option.alone ? "maybe" : "one";
}

const char* PathsWord(const Offers& offers) {
  if (offers.files) return "files";
  return offers.folders ? "folders" : "";
}

std::string PathBelow(const CommandPath& path) {
  std::string below;
  for (size_t i = 1; i < path.size(); ++i) below += (i > 1 ? " " : "") + path[i]->name;
  return below;
}

Unnamed UnnamedOf(const CommandDescription& command) {
  Unnamed unnamed = {{}, "none"};
  if (!command.commands.empty()) {
    for (const CommandDescription* below : ShownCommands(command)) {
      unnamed.offers.words.push_back(below->name);
    }
    return {unnamed.offers, "one"};
  }
  for (const OptionDescription& option : command.options) {
    if (option.positional()) return {OffersOf(option), TakesWord(option)};
  }
  return unnamed;
}

namespace {

// A case of one shell pattern, or several, for each body.
class Cases {
 public:
  void Add(const std::string& key, const std::string& body) {
    for (auto& [keys, known] : cases_) {
      if (known != body) continue;
      keys += "|\\\n    " + QuoteForShell(key);
      return;
    }
    cases_.emplace_back(QuoteForShell(key), body);
  }
  std::string Text() const {
    std::string text;
    for (const auto& [keys, body] : cases_) text += "    " + keys + ")\n      " + body + " ;;\n";
    return text;
  }

 private:
  std::vector<std::pair<std::string, std::string>> cases_;
};

std::string Assignments(const Offers& offers, const char* takes) {
  return fmt::format("takes={} paths={} offered={}", takes, PathsWord(offers),
                     QuoteForShell(Joined(offers.words)));
}

}  // namespace

std::string TableOfOffers(const CommandDescription& program) {
  Cases below, offers;
  for (const CommandPath& path : ShownPaths(program)) {
    const std::string command = PathBelow(path);
    for (const CommandDescription* next : ShownCommands(*path.back())) {
      below.Add(command + "/" + next->name, "return 0");
    }
    const Unnamed unnamed = UnnamedOf(*path.back());
    offers.Add(command + "/", Assignments(unnamed.offers, unnamed.takes));
    for (const OptionDescription& option : path.back()->options) {
      if (option.positional()) continue;
      const std::string body = Assignments(OffersOf(option), TakesWord(option));
      for (const std::string& name : option.names) offers.Add(command + "/" + name, body);
    }
  }
  return "_zeroplan_below() {\n  case \"$1/$2\" in\n" + below.Text() +
         "  esac\n  return 1\n}\n\n"
         "_zeroplan_offers() {\n  takes= paths= offered=\n  case \"$1/$2\" in\n" +
         offers.Text() + "  esac\n}\n\n";
}

std::string Joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace zeroplan
