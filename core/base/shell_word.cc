#include "core/base/shell_word.h"

namespace zeroplan {

std::string QuoteForShell(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + '\'';
}

std::string ShellWord(std::string_view text) {
  // Not "~", which is a home folder, nor "=" but in an option: zsh looks up "=name" as a command.
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+@%";
  const bool option = text.starts_with('-');
  bool plain = !text.empty();
  for (const char c : text) {
    plain = plain && (kPlain.find(c) != std::string_view::npos || (option && c == '='));
  }
  return plain ? std::string(text) : QuoteForShell(text);
}

std::string ShellCommand(const std::vector<std::string>& words) {
  std::string command;
  for (const std::string& word : words) {
    if (!command.empty()) command += ' ';
    command += ShellWord(word);
  }
  return command;
}

}  // namespace zeroplan
