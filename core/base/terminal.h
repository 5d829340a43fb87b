// The terminal behind a stream: its width, text that fits it, and the progress line, the one line
// that is redrawn during long work. A stream without a terminal gets no control sequence and no
// line breaks of ours.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// The default number of columns of text, if no terminal sets it, and the maximum: longer lines of
// prose are hard to read.
inline constexpr size_t kPlainColumns = 100;

// Columns of the terminal behind `fd`: from its driver (TIOCGWINSZ), else from COLUMNS of the
// environment, else 80. 0: it is no terminal.
size_t TerminalColumns(int fd);

// Whether the terminal behind `fd` accepts control sequences: TERM is neither unset nor "dumb".
bool TerminalTakesControl(int fd);

// The columns of `text`, one line: none for colours ("\x1b[1m"), two for a wide character.
size_t ColumnsOf(std::string_view text);

// The number of bytes of `text` that fit in `columns`, in whole characters.
size_t BytesThatFit(std::string_view text, size_t columns);

// `text` with its longer lines broken at spaces and the rest indented: under the last of several
// columns, if two spaces or more set it off, else by two more than the line. A word longer than a
// line is broken behind a '/' or ',' if it has one. 0 columns: unchanged.
std::string FitLines(std::string_view text, size_t columns);

// `text` as a stream of messages gets it: escaped (core/base/strings.h), and, on a terminal, fitted
// to it. `wipe`: wipes the terminal's line first, because another process may show progress there.
std::string MessageFor(int fd, std::string_view text, bool wipe = false);

// A part of a progress line. If there is no room, parts with a higher `drop` are left out first;
// those with 0 stay.
struct LinePart {
  std::string text;
  int drop = 0;
};
// Joins the parts, two spaces apart, in at most `columns`; cuts a line that is still too long
// ("...").
std::string JoinParts(const std::vector<LinePart>& parts, size_t columns);

// ---- the progress line: the last line of stderr's terminal ----

// --no-progress: shows no progress line from now on.
void ForbidProgress();
// Columns of the progress line; 0 if there is none: stderr is no terminal that accepts control
// sequences, or the line is forbidden.
size_t ProgressColumns();
// Replaces the progress line. Escapes `text`, and cuts it if it is too long. Never throws.
void ShowProgress(std::string_view text) noexcept;
// Wipes the progress line, as writers of messages must do first. Never throws.
void HideProgress() noexcept;

}  // namespace zeroplan
