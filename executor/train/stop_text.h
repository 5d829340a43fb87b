// Where generated text ends: before any of some texts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// Takes text as it is made and hands on what is certain to come before every stop text: what may
// be the beginning of one is held back until the next piece says.
class StopText {
 public:
  // Empty ones are left out.
  explicit StopText(std::vector<std::string> stops);

  // What may be shown of the text so far and was not yet. REQUIRES: not found().
  std::string Push(std::string_view text);
  // The text is over: what was held back.
  std::string Finish();
  // Whether a stop text has come; nothing of it, or behind it, was or will be handed on.
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace zeroplan
