// Notes what records have and the tokens of them do not, for a line a file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "text/documents/chat_template.h"

namespace zeroplan {

// Names the parts of a conversation that the template prints nothing of: "messages[].time".
// `rendered`: of it, without a generation prompt.
std::vector<std::string> UnprintedParts(const ChatTemplate& chat, const Conversation& conversation,
                                        const ChatTemplate::Rendered& rendered);

class UntrainedMembers {
 public:
  // A record at `where` ("chats.jsonl:7") has members that nothing was made of (`unused`), and some
  // that the chat template prints nothing of (`unprinted`). REQUIRES: the records of a file follow
  // one another.
  void Add(const std::string& where, const std::vector<std::string>& unused,
           const std::vector<std::string>& unprinted);
  // Names all of them, once for the files of which they are the same.
  void Say() const;

 private:
  struct OfFile {
    std::vector<std::filesystem::path> files;
    std::vector<std::string> unused, unprinted;
  };
  std::vector<OfFile> all_;
};

}  // namespace zeroplan
