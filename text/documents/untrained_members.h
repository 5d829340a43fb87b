// Collects members of records that their tokens lack, to report them in a line a file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "text/documents/chat_template.h"

namespace zeroplan {

// Names the parts of a conversation of which the template prints nothing: "messages[].time".
// `rendered`: its rendering, without a generation prompt.
std::vector<std::string> UnprintedParts(const ChatTemplate& chat, const Conversation& conversation,
                                        const ChatTemplate::Rendered& rendered);

class UntrainedMembers {
 public:
  // Notes that a record at `where` ("chats.jsonl:7") has members that are not used (`unused`), and
  // some of which the chat template prints nothing (`unprinted`). REQUIRES: the records of a file
  // follow one another.
  void Add(const std::string& where, const std::vector<std::string>& unused,
           const std::vector<std::string>& unprinted);
  // Logs all of them, once for files with the same ones.
  void Say() const;

 private:
  struct OfFile {
    std::vector<std::filesystem::path> files;
    std::vector<std::string> unused, unprinted;
  };
  std::vector<OfFile> all_;
};

}  // namespace zeroplan
