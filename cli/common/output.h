// Writes results.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cli/common/command.h"
#include "core/program/chrome_trace.h"
#include "core/program/program.h"
#include "cost_models/cost_model.h"
#include "planner/page/plan_page.h"
#include "planner/request/resolve.h"

namespace zeroplan {

// Writes to `file`, or to stdout if it is empty: data, byte by byte, on a terminal too. An existing
// file stays whole until all is on disk. Throws Error(kRuntime) if not all of it could be written.
//
// If the reader of stdout has gone away, as `head` does, this ends the process by SIGPIPE, unless
// files are still to be written: then it prints nothing more, so that they are written.
void WriteData(const std::string& file, std::string_view text);
// Announces that files are still to be written.
void ExpectFiles();

// The same for zeroplan's own text, with fields named as options (core/base/error.h).
void WriteOutput(const std::string& file, std::string_view text);

// Ends the process by SIGPIPE (141 in a shell) if the reader went away, because the printed output
// is incomplete.
void EndIfReaderGone();

// The same as WriteOutput for text for people: escapes names from others (core/base/strings.h), and
// fits lines to a terminal. `coloured`: the text has colours of zeroplan's own in it, and the
// caller escaped the rest.
void WriteReport(const std::string& file, std::string_view text, bool coloured = false);

// The same for help. On a terminal its headings, lines that end in ':' and are not indented, are
// bold, and what is longer than the screen goes through $PAGER, by default less.
void WriteHelp(std::string_view text);

// The page width of tables: a terminal's, up to kMostColumns, else kPlainColumns
// (core/base/terminal.h). Prose is at least kLeastColumns wide, and at most kPlainColumns (Wrap).
inline constexpr size_t kLeastColumns = 30, kMostColumns = 140;
size_t PageColumns();
// Sets the page width for output to `file`, or to stdout if it is empty.
void LayOutFor(const std::string& file);
// Wrap (planner/report/report_text.h) to the page width.
std::string Paragraph(const std::string& text, size_t indent);

// An answer's assumptions and notes, a paragraph each.
std::string AssumedText(const Assumptions& assumptions);
// Returns the notes about the reading of model and machine names, and about packing.
std::vector<std::string> Taken(const Assumptions& assumptions);

// Whether stdout is a terminal that shows colours and NO_COLOR (no-color.org) is not set.
bool StdoutTakesColour();

// Prints text of others on stdout, piece by piece as it is generated: a model's, or that of its
// data.

// If stdout is no terminal, passes each byte on unchanged. On a terminal, breaks lines between
// words to fit it, escapes control characters (core/base/strings.h), and shows a word once it is
// complete.
class TextFlow {
 public:
  TextFlow();

  // Throws Error(kRuntime) if stdout cannot be written to any more.
  void Push(std::string_view text);
  // Prints the text held back, and a line feed.
  void Finish();

 private:
  void PutWord(std::string& out);

  const size_t columns_;  // 0: no terminal
  size_t column_ = 0;     // column of the cursor
  size_t spaces_ = 0;     // spaces after it, not yet written
  std::string word_;
};

// Files that commands write in addition to their answer: --report, a page for a browser, and
// --trace, the step as the time model plays it.

// `shows`: "every choice in pictures".
void AddReportOption(Command& command, const char* group, const char* shows, std::string& file);

// The page's information about this process's command line and assumptions.
PageOrigin ReportOrigin(const Assumptions& assumptions);

// This process's own arguments, the program's name first. Empty if /proc does not provide them.
std::vector<std::string> OwnArguments();
// This process's command line as one types it, without the options `without` ("--hw") and their
// values, and with the words `more`. "" if /proc does not provide it.
std::string OwnCommand(const std::vector<std::string_view>& without,
                       const std::vector<std::string>& more);

// Adds one optimizer step: first micro-step, at most two middle ones, the last one, the update. It
// is a process of its own, "predicted", aligned with the last whole step in `trace`.
void AddPredictedStep(const Program& program, const CostModel& costs, ChromeTrace& trace);

// Writes a trace of that step alone. Throws Error(kRuntime) if `file` cannot be written.
void WritePredictedTrace(const Program& program, const CostModel& costs, const std::string& file);

}  // namespace zeroplan
