#include "core/base/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/base/error.h"
#include "core/base/full_screen.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

constexpr size_t kDefaultColumns = 80;
constexpr std::string_view kWipe = "\r\x1b[K";

std::atomic<bool> progress_forbidden{false};
bool progress_shown = false;  // under stderr's lock

// wcwidth() goes by the locale, which this program leaves at "C".
size_t WidthOf(char32_t c) {
  if (c < 0x7f) return 1;
  static const locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (utf8 == nullptr) return 1;
  const locale_t before = uselocale(utf8);
  const int width = wcwidth(static_cast<wchar_t>(c));
  uselocale(before);
  return width < 0 ? 1 : static_cast<size_t>(width);
}

// Bytes of the control sequence that begins at `at` ("\x1b[31m"); 0 if none does.
size_t SequenceBytes(std::string_view text, size_t at) {
  if (text.substr(at, 2) != "\x1b[") return 0;
  size_t end = at + 2;
  while (end < text.size() && (text[end] < 0x40 || text[end] > 0x7e)) ++end;
  return std::min(end + 1, text.size()) - at;
}

// The first character of `text` from `at` on, with the colours before it: its bytes and columns.
struct Glyph {
  size_t bytes, columns;
};
Glyph GlyphAt(std::string_view text, size_t at) {
  if (const size_t sequence = SequenceBytes(text, at); sequence > 0) return {sequence, 0};
  const size_t length = Utf8Length(text[at]);
  if (length == 1 || at + length > text.size() || !IsValidUtf8(text.substr(at, length))) {
    return {1, 1};
  }
  size_t next = at;
  return {length, WidthOf(NextCodePoint(text, &next))};
}

// Where the lines after the first begin.
size_t HangingIndent(std::string_view line, size_t columns) {
  const size_t lead = std::min(line.find_first_not_of(' '), line.size());
  size_t hang = lead + 2;
  for (size_t gap = lead; (gap = line.find("  ", gap)) != std::string_view::npos;) {
    const size_t end = std::min(line.find_first_not_of(' ', gap), line.size());
    const size_t column = ColumnsOf(line.substr(0, end));
    if (column > columns * 3 / 4) break;
    hang = column;
    gap = end;
  }
  return std::min(hang, columns * 3 / 4);
}

class LineFitter {
 public:
  LineFitter(std::string& out, std::string_view line, size_t columns)
      : out_(out), columns_(columns), indent_(HangingIndent(line, columns)) {
    for (size_t at = 0; at < line.size();) {
      const size_t word = std::min(line.find_first_not_of(' ', at), line.size());
      const size_t end = std::min(line.find(' ', word), line.size());
      Put(word - at, line.substr(word, end - word));
      at = end;
    }
  }

 private:
  void Put(size_t spaces, std::string_view word) {
    if (word.empty()) return;
    const size_t width = ColumnsOf(word);
    if (column_ > 0 && column_ + spaces + width > columns_) {
      Break();
      spaces = 0;
    }
    out_.append(spaces, ' ');
    column_ += spaces;
    while (column_ + ColumnsOf(word) > columns_) {
      size_t part = BytesThatFit(word, columns_ - column_);
      if (const size_t border = word.substr(0, part).find_last_of("/,"); border < part) {
        part = border + 1;
      }
      if (part == 0) part = GlyphAt(word, 0).bytes;  // a wide one in a single column
      out_ += word.substr(0, part);
      word.remove_prefix(part);
      if (word.empty()) break;
      Break();
    }
    out_ += word;
    column_ += ColumnsOf(word);
  }
  void Break() {
    out_ += '\n';
    out_.append(indent_, ' ');
    column_ = indent_;
  }

  std::string& out_;
  const size_t columns_, indent_;
  size_t column_ = 0;
};

}  // namespace

size_t TerminalColumns(int fd) {
  if (isatty(fd) != 1) return 0;
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  size_t columns = 0;
  if (const char* text = std::getenv("COLUMNS")) {
    std::from_chars(text, text + std::strlen(text), columns);
  }
  return columns > 0 ? columns : kDefaultColumns;
}

bool TerminalTakesControl(int fd) {
  const char* kind = std::getenv("TERM");
  return kind != nullptr && *kind != '\0' && std::strcmp(kind, "dumb") != 0 && isatty(fd) == 1;
}

size_t ColumnsOf(std::string_view text) {
  size_t columns = 0;
  for (size_t at = 0; at < text.size();) {
    const Glyph glyph = GlyphAt(text, at);
    columns += glyph.columns;
    at += glyph.bytes;
  }
  return columns;
}

size_t BytesThatFit(std::string_view text, size_t columns) {
  size_t at = 0;
  for (size_t used = 0; at < text.size();) {
    const Glyph glyph = GlyphAt(text, at);
    used += glyph.columns;
    if (used > columns) break;
    at += glyph.bytes;
  }
  return at;
}

std::string FitLines(std::string_view text, size_t columns) {
  if (columns == 0) return std::string(text);
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (line.size() <= columns || ColumnsOf(line) <= columns) {
      out += line;
    } else {
      LineFitter(out, line, columns);
    }
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return out;
}

std::string MessageFor(int fd, std::string_view text, bool wipe) {
  std::string message = FitLines(Escaped(text), TerminalColumns(fd));
  return wipe && TerminalTakesControl(fd) ? std::string(kWipe) + message : message;
}

std::string JoinParts(const std::vector<LinePart>& parts, size_t columns) {
  std::vector<bool> left_out(parts.size());
  const auto joined = [&] {
    std::string line;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (left_out[i] || parts[i].text.empty()) continue;
      line += fmt::format("{}{}", line.empty() ? "" : "  ", parts[i].text);
    }
    return line;
  };
  std::string line = joined();
  while (ColumnsOf(line) > columns) {
    size_t next = parts.size();
    for (size_t i = 0; i < parts.size(); ++i) {
      if (left_out[i] || parts[i].drop == 0) continue;
      if (next == parts.size() || parts[i].drop > parts[next].drop) next = i;
    }
    if (next == parts.size()) break;
    left_out[next] = true;
    line = joined();
  }
  if (ColumnsOf(line) <= columns) return line;
  line.resize(BytesThatFit(line, columns - std::min<size_t>(columns, 3)));
  return line + std::string("...").substr(0, columns);
}

void ForbidProgress() {
  HideProgress();
  progress_forbidden.store(true, std::memory_order_relaxed);
}

size_t ProgressColumns() {
  if (progress_forbidden.load(std::memory_order_relaxed)) return 0;
  if (FullScreenIsShown() || !TerminalTakesControl(STDERR_FILENO)) return 0;
  // The last column stays free: writing there moves some terminals to the next line.
  return TerminalColumns(STDERR_FILENO) - 1;
}

void ShowProgress(std::string_view text) noexcept try {
  const size_t columns = ProgressColumns();
  if (columns == 0) return;
  const std::string named = NameFields(text);
  const std::string line =
      std::string(kWipe) + JoinParts({{PrintableText(named, named.size()), 0}}, columns);
  flockfile(stderr);
  progress_shown = true;
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
  funlockfile(stderr);
} catch (...) {  // without memory for it there is none
}

void HideProgress() noexcept {
  flockfile(stderr);
  if (progress_shown) {
    std::fwrite(kWipe.data(), 1, kWipe.size(), stderr);
    std::fflush(stderr);
  }
  progress_shown = false;
  funlockfile(stderr);
}

}  // namespace zeroplan
