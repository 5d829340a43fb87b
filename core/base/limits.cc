#include "core/base/limits.h"

#include <array>

#include "core/base/error.h"
#include "core/base/strings.h"

namespace zeroplan {

void CheckJsonBounds(std::string_view text, std::string_view where) {
  // A key is looked for among those before it: a second of work.
  constexpr uint64_t kMostComparisons = 1'000'000'000;
  struct Open {
    bool object = false;
    size_t members = 0;
  };
  std::array<Open, kMostJsonDepth> open{};
  int depth = 0;
  uint64_t comparisons = 0;
  size_t values = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    switch (text[at]) {
      case '"':
        for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\' ? 1 : 0;
        break;
      case '{':
      case '[':
        if (depth == kMostJsonDepth) {
          ThrowUsage("{}: values are nested more than {} deep; flatten them", where,
                     kMostJsonDepth);
        }
        open[static_cast<size_t>(depth++)] = {text[at] == '{', 0};
        break;
      case '}':
      case ']':
        depth -= depth > 0 ? 1 : 0;
        break;
      case ',':
        if (++values > kMostRecordValues) {
          ThrowUsage("{}: more than {} values; write one record a line", where, kMostRecordValues);
        }
        break;
      case ':': {
        if (depth == 0 || !open[static_cast<size_t>(depth - 1)].object) break;
        const size_t members = ++open[static_cast<size_t>(depth - 1)].members;
        comparisons += members;
        if (members > kMostMembers) {
          ThrowUsage(
              "{}: an object with more than {} members, which no record has; write one record a "
              "line",
              where, kMostMembers);
        }
        if (comparisons > kMostComparisons) {
          ThrowUsage("{}: objects with too many members in all; write one record a line", where);
        }
        break;
      }
      default:
        break;
    }
  }
}

void CheckFileName(const std::filesystem::path& path) {
  if (path.native().find('\0') != std::string::npos) {
    ThrowUsage("{}: a byte 0 is in the name; name the file itself",
               PrintableText(path.native(), 200));
  }
}

std::string BoundedMessage(std::string_view message) {
  constexpr size_t kEnd = kMostMessageBytes / 4, kBegin = kMostMessageBytes - kEnd;
  std::string text;
  const auto add = [&text](std::string_view part) {
    for (const char c : part) {
      if (c == '\0') {
        text += "\\x00";
      } else {
        text += c;
      }
    }
  };
  if (message.size() <= kMostMessageBytes) {
    add(message);
    return text;
  }
  // No part of a character.
  const std::string_view begin = message.substr(0, kBegin);
  add(begin.substr(0, kBegin - IncompleteUtf8Tail(begin)));
  text += fmt::format(" ... ({} bytes are left out) ... ", message.size() - kBegin - kEnd);
  std::string_view end = message.substr(message.size() - kEnd);
  while (!end.empty() && (static_cast<unsigned char>(end.front()) & 0xC0) == 0x80) {
    end.remove_prefix(1);
  }
  add(end);
  return text;
}

}  // namespace zeroplan
