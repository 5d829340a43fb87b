#include "cli/common/report_option.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>

namespace zeroplan {
namespace {

std::string Quoted(const std::string& word) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + '\'';
}

// Of this process; the first is how it was called.
std::vector<std::string> CommandLineWords() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

}  // namespace

void AddReportOption(Command& command, const char* group, const char* shows, std::string& file) {
  command.Text({group, "--report", "FILE.html",
                fmt::format("Write {} as one page for a browser: pictures, and tables with their "
                            "numbers",
                            shows)},
               file);
}

std::string ShellLine(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty()) line += ' ';
    line += Quoted(word);
  }
  return line;
}

PageOrigin ReportOrigin(const Assumptions& assumptions) {
  std::vector<std::string> words = CommandLineWords();
  // Whichever of the two programs this is, from wherever: who tries it has it elsewhere.
  if (!words.empty()) words.front() = "zeroplan";
  return {ShellLine(words), assumptions.assumed, assumptions.notes};
}

}  // namespace zeroplan
