#include "cli/common/help_text.h"

#include <algorithm>

#include "core/base/terminal.h"

namespace zeroplan {
namespace {

// A command line as lines of at most `columns`, all but the last with a backslash at their end.
std::string BreakCommand(std::string_view line, size_t columns) {
  constexpr std::string_view kIndent = "      ", kGoesOn = " \\";
  if (line.size() <= columns) return std::string(line);
  std::string out, row;
  const size_t lead = std::min(line.find_first_not_of(' '), line.size());
  for (size_t at = lead; at < line.size();) {
    const size_t end = std::min(line.find(' ', at), line.size());
    const std::string_view word = line.substr(at, end - at);
    const bool last = end == line.size();
    if (!row.empty() && row.size() + 1 + word.size() + (last ? 0 : kGoesOn.size()) > columns) {
      out += row.append(kGoesOn).append("\n");
      row = std::string(kIndent).append(word);
    } else {
      row = row.empty() ? std::string(lead, ' ').append(word) : row.append(" ").append(word);
    }
    at = std::min(line.find_first_not_of(' ', end), line.size());
  }
  return out + row;
}

bool EndsParagraph(std::string_view line) {
  return line.empty() || line.starts_with(' ') || line.ends_with('.') || line.ends_with(':');
}

}  // namespace

std::string FitHelp(std::string_view help, size_t columns) {
  if (columns >= kPlainColumns) return std::string(help);
  std::string out, prose;
  bool examples = false;
  const auto flush = [&] {
    if (!prose.empty()) out += FitLines(prose, columns) + '\n';
    prose.clear();
  };
  for (size_t begin = 0; begin < help.size();) {
    const size_t end = std::min(help.find('\n', begin), help.size());
    const std::string_view line = help.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() || line.starts_with(' ')) {
      flush();
      out += examples && !line.empty() ? BreakCommand(line, columns) : FitLines(line, columns);
      out += '\n';
      continue;
    }
    examples = line.starts_with("Example");
    if (examples || line.starts_with("Usage:")) flush();
    prose += prose.empty() ? "" : " ";
    prose += line;
    if (EndsParagraph(line)) flush();
  }
  flush();
  return out;
}

}  // namespace zeroplan
