#include "cli/common/output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "cli/common/command_files.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/shell_process.h"
#include "core/base/strings.h"
#include "core/base/terminal.h"
#include "cost_models/step_time.h"
#include "planner/report/report_columns.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

// What is left to do where nobody reads stdout any more.
std::atomic<bool> g_files_wanted = false;
std::atomic<bool> g_reader_gone = false;

std::atomic<size_t> g_page_columns = kPlainColumns;

[[noreturn]] void EndBySigpipe() {
  HideProgress();
  std::signal(SIGPIPE, SIG_DFL);
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  sigprocmask(SIG_UNBLOCK, &pipe, nullptr);
  raise(SIGPIPE);
  _exit(128 + SIGPIPE);
}

void WriteToStdout(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (written && std::fflush(stdout) == 0) return;
  if (errno != EPIPE) ThrowRuntime("cannot write to stdout: {}", std::strerror(errno));
  g_reader_gone = true;
  if (!g_files_wanted) EndBySigpipe();
}

}  // namespace

void WriteData(const std::string& file, std::string_view text) {
  if (file.empty()) {
    if (g_reader_gone) return;
    HideProgress();  // it may be on the same terminal
    return WriteToStdout(text);
  }
  ReplaceFile(file, text);
}

void WriteOutput(const std::string& file, std::string_view text) {
  WriteData(file, NameFields(text));
}

void EndIfReaderGone() {
  if (g_reader_gone) EndBySigpipe();
}

void WriteReport(const std::string& file, std::string_view text, bool coloured) {
  const std::string named = NameFields(text);
  const std::string shown = coloured ? named : Escaped(named);
  WriteData(file, file.empty() ? FitLines(shown, TerminalColumns(STDOUT_FILENO)) : shown);
}

namespace {

// The pager's command line; "" for none.
std::string PagerFor(std::string_view text) {
  winsize window{};
  if (isatty(STDOUT_FILENO) != 1 || !TerminalTakesControl(STDOUT_FILENO) ||
      ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 ||
      std::count(text.begin(), text.end(), '\n') < window.ws_row) {
    return "";
  }
  if (const char* pager = std::getenv("PAGER")) return pager;
  const std::string less = FindProgram("less");
  return less.empty() ? "" : less + " -R";
}

}  // namespace

void WriteHelp(std::string_view text) {
  if (!StdoutTakesColour()) {
    WriteReport("", text);
    return;
  }
  const Paints paints(true);
  const std::string fitted = FitLines(Escaped(NameFields(text)), TerminalColumns(STDOUT_FILENO));
  std::string page;
  for (const std::string_view line : Split(fitted, '\n')) {
    const bool heading = line.ends_with(':') && !line.starts_with(' ');
    page += fmt::format("{}{}{}\n", heading ? paints.bold : "", line, heading ? paints.reset : "");
  }
  page.pop_back();
  const std::string pager = PagerFor(page);
  if (!pager.empty()) {
    bool shown = false;
    const auto before = std::signal(SIGPIPE, SIG_IGN);  // who leaves the pager has read enough
    if (FILE* to = popen(pager.c_str(), "w")) {
      std::fwrite(page.data(), 1, page.size(), to);
      const int status = pclose(to);
      constexpr int kNoSuchCommand = 127;
      shown = !WIFEXITED(status) || WEXITSTATUS(status) != kNoSuchCommand;
    }
    std::signal(SIGPIPE, before);
    if (shown) return;
  }
  WriteData("", page);
}

size_t PageColumns() { return g_page_columns; }

void LayOutFor(const std::string& file) {
  const size_t columns = file.empty() ? TerminalColumns(STDOUT_FILENO) : 0;
  g_page_columns = columns == 0 ? kPlainColumns : std::clamp(columns, kLeastColumns, kMostColumns);
}

std::string Paragraph(const std::string& text, size_t indent) {
  return Wrap(text, indent, PageColumns());
}

void ExpectFiles() { g_files_wanted = true; }

std::string AssumedText(const Assumptions& assumptions) {
  std::string text;
  if (!assumptions.assumed.empty()) {
    text += Paragraph(fmt::format("Assumed: {}", fmt::join(assumptions.assumed, ", ")), 2);
  }
  for (const std::string& note : assumptions.notes) text += Paragraph(note, 2);
  return text;
}

std::vector<std::string> Taken(const Assumptions& assumptions) {
  std::vector<std::string> taken;
  for (const std::string& note : assumptions.notes) {
    const auto begins = [&](std::string_view with) { return note.starts_with(with); };
    // A batch that is close to the requested one.
    const bool rounded = begins("Batch: ") && note.find(", the nearest to ") != std::string::npos;
    if (!begins("Model: ") && !begins("Hardware: ") && !begins("Packing: ") && !rounded) continue;
    taken.push_back(note);
    if (const size_t parts = note.find(" Approximated: "); parts != std::string::npos) {
      taken.back().erase(parts);
      taken.back() += " Parts of it are approximated, and named by --explain.";
    }
    // The heading has the full name of the card.
    const size_t open = note.find(" (1 x "), close = note.find(')', open);
    if (open != std::string::npos) taken.back().erase(open, close + 1 - open);
  }
  return taken;
}

bool StdoutTakesColour() {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && (no_colour == nullptr || *no_colour == '\0') &&
         (terminal == nullptr || std::strcmp(terminal, "dumb") != 0);
}

namespace {

constexpr size_t kTab = 8;

}  // namespace

TextFlow::TextFlow() : columns_(TerminalColumns(STDOUT_FILENO)) {}

void TextFlow::Push(std::string_view text) {
  if (columns_ == 0) return WriteData("", text);
  std::string out;
  for (const char c : text) {
    if (c != '\n' && c != ' ' && c != '\t') {
      word_ += c;
      // Nobody waits for the end of a word that does not fit anyway.
      if (word_.size() >= columns_ && IncompleteUtf8Tail(word_) == 0) PutWord(out);
      continue;
    }
    PutWord(out);
    if (c == '\n') {
      out += c;
      column_ = spaces_ = 0;
    } else {
      spaces_ += c == ' ' ? 1 : kTab - (column_ + spaces_) % kTab;
    }
  }
  WriteData("", out);
}

void TextFlow::Finish() {
  if (columns_ == 0) return WriteData("", "\n");
  std::string out;
  PutWord(out);
  WriteData("", out + '\n');
  column_ = spaces_ = 0;
}

void TextFlow::PutWord(std::string& out) {
  if (word_.empty()) return;
  const std::string word = Escaped(word_);
  word_.clear();
  const auto next_line = [&] {
    out += '\n';
    column_ = spaces_ = 0;
  };
  if (column_ + spaces_ + ColumnsOf(word) > columns_ && column_ + spaces_ > 0) next_line();
  out.append(spaces_, ' ');
  column_ += spaces_;
  spaces_ = 0;
  for (std::string_view rest = word; !rest.empty();) {
    const size_t part = std::max<size_t>(BytesThatFit(rest, columns_ - column_), 1);
    out += rest.substr(0, part);
    column_ += ColumnsOf(rest.substr(0, part));
    rest.remove_prefix(part);
    if (!rest.empty()) next_line();
  }
}

void AddReportOption(Command& command, const char* group, const char* shows, std::string& file) {
  command.Text({.group = group,
                .name = "--report",
                .type = "FILE.html",
                .help = fmt::format("Write {} as one page for a browser: pictures, and tables with "
                                    "their numbers",
                                    shows),
                .path = PathRole::Writes(kPage)},
               file);
}

PageOrigin ReportOrigin(const Assumptions& assumptions) {
  std::vector<std::string> words = OwnArguments();
  // Whichever of the two programs this is, from wherever: who tries it has it elsewhere.
  if (!words.empty()) words.front() = "zeroplan";
  return {ShellCommand(words), assumptions.assumed, assumptions.notes};
}

std::vector<std::string> OwnArguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

std::string OwnCommand(const std::vector<std::string_view>& without,
                       const std::vector<std::string>& more) {
  const std::vector<std::string> words = OwnArguments();
  if (words.empty()) return "";
  std::vector<std::string> kept = {"zeroplan"};
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string_view name = std::string_view(words[i]).substr(0, words[i].find('='));
    if (std::find(without.begin(), without.end(), name) == without.end()) {
      kept.push_back(words[i]);
    } else if (name.size() == words[i].size()) {
      ++i;  // its value
    }
  }
  kept.insert(kept.end(), more.begin(), more.end());
  return ShellCommand(kept);
}

void AddPredictedStep(const Program& program, const CostModel& costs, ChromeTrace& trace) {
  constexpr int64_t kMostMiddle = 2;
  trace.AddBesideLastStep("predicted", StepTimer(costs).Trace(program, kMostMiddle));
}

void WritePredictedTrace(const Program& program, const CostModel& costs, const std::string& file) {
  ChromeTrace trace(program);
  AddPredictedStep(program, costs, trace);
  WriteTraceFile(file, trace, "--trace");
}

}  // namespace zeroplan
