// Where results go.
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

// Writes to `file`, or to stdout if it is empty: data, byte by byte, on a terminal too. A file that
// is there stays whole until all is on disk. Throws Error(kRuntime) if not all of it could be
// written.
//
// Where the reader of stdout has gone away, as `head` does, this ends the process by SIGPIPE,
// unless files are to be written besides: then nothing more is printed, so that these still are.
void WriteData(const std::string& file, std::string_view text);
// Says that they are.
void ExpectFiles();

// The same of zeroplan's own words, with fields named as options (core/base/error.h).
void WriteOutput(const std::string& file, std::string_view text);

// Ends the process by SIGPIPE (141 in a shell) if that happened: what was printed is not whole.
void EndIfReaderGone();

// The same as WriteOutput of text for people: what others named is escaped (core/base/strings.h),
// and on a terminal lines are fitted to it. `coloured`: the text has colours of zeroplan's own in
// it, and whoever made it escaped the rest.
void WriteReport(const std::string& file, std::string_view text, bool coloured = false);

// Columns that reports are laid out for: a terminal's, else kPlainColumns (core/base/terminal.h).
// Prose has them at least kLeastColumns wide.
inline constexpr size_t kLeastColumns = 30;
size_t PageColumns();
// Sets them for what is written to `file`, or to stdout if it is empty.
void LayOutFor(const std::string& file);
// Wrap (planner/report/report_text.h) to them.
std::string Paragraph(const std::string& text, size_t indent);

// What an answer assumed, and its notes, a paragraph each.
std::string AssumedText(const Assumptions& assumptions);

// True if stdout is a terminal that shows colours and NO_COLOR (no-color.org) is not set.
bool StdoutTakesColour();

// Text of others on stdout, piece by piece as it is made: a model's, or that of its data.

// Where stdout is no terminal each byte goes there as it is. On one, lines are broken between words
// to fit it, control characters are escaped (core/base/strings.h), and a word is shown once it is
// whole.
class TextFlow {
 public:
  TextFlow();

  // Throws Error(kRuntime) if stdout takes no more.
  void Push(std::string_view text);
  // What is still held back, and a line feed.
  void Finish();

 private:
  void PutWord(std::string& out);

  const size_t columns_;  // 0: no terminal
  size_t column_ = 0;     // where the line stands
  size_t spaces_ = 0;     // behind it, not yet written
  std::string word_;
};

// What commands write beside their answer: --report, a page for a browser, and --trace, the step as
// the time model plays it.

// `shows`: "every choice in pictures".
void AddReportOption(Command& command, const char* group, const char* shows, std::string& file);

// What the page says of this process's command line and of what was assumed.
PageOrigin ReportOrigin(const Assumptions& assumptions);

// This process's own arguments, the program's name first. Empty where /proc does not tell them.
std::vector<std::string> OwnArguments();

// One optimizer step: first micro-step, at most two of those in the middle, the last one, the
// update. A process of its own, "predicted", beside the last whole step of what is in `trace`.
void AddPredictedStep(const Program& program, const CostModel& costs, ChromeTrace& trace);

// Writes a trace of that alone. Throws Error(kRuntime) if `file` cannot be written.
void WritePredictedTrace(const Program& program, const CostModel& costs, const std::string& file);

}  // namespace zeroplan
