// The terminal behind a stream, where there is one: how wide it is, text that fits it, and the one
// line on it that redraws itself while something takes long. What is no terminal gets no control
// sequence and no line breaks of ours.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// Columns that text is laid out for where no terminal says otherwise, and the most that any gets:
// longer lines of prose are hard to read.
inline constexpr size_t kPlainColumns = 100;

// Columns of the terminal behind `fd`: what its driver says (TIOCGWINSZ), else COLUMNS of the
// environment, else 80. 0: it is no terminal.
size_t TerminalColumns(int fd);

// Whether the terminal behind `fd` takes control sequences: TERM is neither unset nor "dumb".
bool TerminalTakesControl(int fd);

// Columns that `text`, one line, takes: none for colours ("\x1b[1m"), two for a wide character.
size_t ColumnsOf(std::string_view text);

// How many bytes of `text` fit in `columns`, its last character whole.
size_t BytesThatFit(std::string_view text, size_t columns);

// `text` with its longer lines broken at spaces, what follows indented: under the last of several
// columns, where two spaces or more set it off, else by two more than the line. A word longer than
// a line is broken behind a '/' or ',' where it has one. 0 columns: as it is.
std::string FitLines(std::string_view text, size_t columns);

// What a stream of messages gets of `text`: escaped (core/base/strings.h), and, on a terminal,
// fitted to it. `wipe`: after wiping the terminal's line, where another process may show progress.
std::string MessageFor(int fd, std::string_view text, bool wipe = false);

// A part of a progress line: the higher `drop`, the sooner it is left out where there is no room;
// with 0 it stays.
struct LinePart {
  std::string text;
  int drop = 0;
};
// The parts, two spaces apart, in at most `columns`; what is still too long is cut ("...").
std::string JoinParts(const std::vector<LinePart>& parts, size_t columns);

// ---- the progress line: the last line of stderr's terminal ----

// --no-progress: none is shown from now on.
void ForbidProgress();
// Columns that it has; 0 where there is none: stderr is no terminal that takes control sequences,
// or it is forbidden.
size_t ProgressColumns();
// Replaces it. `text` is escaped, and cut where it is too long. Never throws.
void ShowProgress(std::string_view text) noexcept;
// Wipes it off; whoever writes messages does so first. Never throws.
void HideProgress() noexcept;

}  // namespace zeroplan
