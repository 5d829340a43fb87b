// The pages of the examples that plan, and the README: each command they show is run, and what they
// quote is looked for in what it prints. A quote has "..." where something is left out; lines may
// be broken elsewhere.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "tests/cli/run_binary.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

// Of a page's blocks "    $ zeroplan ...", each with what it quotes.
std::vector<std::pair<std::string, std::string>> QuotedCommands(const std::string& page) {
  const std::string prompt = "    $ zeroplan ";
  std::vector<std::pair<std::string, std::string>> all;
  bool of_command = false, goes_on = false;
  for (const std::string_view line : zeroplan::Split(page, '\n')) {
    if (line.starts_with(prompt)) {
      all.emplace_back(line.substr(prompt.size()), "");
      of_command = true;
    } else if (goes_on) {
      all.back().first += line;
    } else if (line.starts_with("    $ ") || (!line.empty() && !line.starts_with("    "))) {
      of_command = false;
    } else if (of_command) {
      all.back().second += std::string(line) + "\n";
    }
    goes_on = of_command && !all.empty() && all.back().first.ends_with('\\');
    if (goes_on) all.back().first.pop_back();
  }
  return all;
}

TEST_CASE("examples: pages quote what is printed and keep what is written") {
  int commands = 0;
  for (const std::string folder : {"examples/10b_on_one_32gb_gpu", "examples/5b_on_16_gpus",
                                   "examples/8b_on_one_24gb_gpu", "."}) {
    CAPTURE(folder);
    // Where the commands are run, so that what they write is not the repository's.
    const TempDir own;
    const std::filesystem::path here = SourcePath(folder);
    for (const auto& file : std::filesystem::directory_iterator(here)) {
      if (file.path().extension() == ".json") {
        std::filesystem::copy(file.path(), own.path(file.path().filename()));
      }
    }
    for (const auto& [command, quoted] : QuotedCommands(ReadWhole((here / "README.md").string()))) {
      if (command.starts_with("train ")) continue;
      CAPTURE(command);
      ++commands;
      const RunResult run = RunZeroplan(command, "cd " + own.path() + " && ZEROPLAN_NO_DETECT=1");
      CHECK(run.exit_code == (command.starts_with("config check") ? 2 : 0));  // of its slips
      // A piece begins and ends with a blank, so that words are found whole.
      const std::string out = " " + WordsIn(run.out), err = " " + WordsIn(run.err);
      size_t at = 0;
      std::string left = " " + WordsIn(quoted);
      while (!left.empty()) {
        const size_t cut = left.find(" ... ");
        const std::string piece = left.substr(0, cut == std::string::npos ? cut : cut + 1);
        left = cut == std::string::npos ? "" : left.substr(cut + 4);
        if (piece == " " || err.find(piece) != std::string::npos) continue;
        CAPTURE(piece);
        const size_t found = out.find(piece, at);
        CHECK(found != std::string::npos);
        if (found != std::string::npos) at = found + piece.size() - 1;
      }
    }
    for (const auto& file : std::filesystem::directory_iterator(own.path())) {
      const std::string name = file.path().filename();
      CAPTURE(name);
      const std::string text = ReadWhole(file.path().string());
      CHECK(text.find("⟦") == std::string::npos);  // a field, which is to be named as an option
      if (!std::filesystem::exists(here / name)) continue;
      const bool as_kept = text == ReadWhole((here / name).string());
      CHECK(as_kept);
    }
  }
  CHECK(commands == 16);
}

}  // namespace
}  // namespace zeroplan
