#include "cli/common/text_flow.h"

#include <unistd.h>

#include <algorithm>

#include "cli/common/output.h"
#include "core/base/strings.h"
#include "core/base/terminal.h"

namespace zeroplan {
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

}  // namespace zeroplan
