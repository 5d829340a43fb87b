// Reads another process's pipe line by line, and passes the lines on.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/files.h"

namespace zeroplan {

// Writes all of `text`, in as many calls as needed; text that can no longer be written is lost.
void WriteWhole(int fd, std::string_view text);

class PipeLines {
 public:
  PipeLines() = default;
  // The reading end, made non-blocking; or none.
  explicit PipeLines(UniqueFd pipe);

  bool open() const { return bool{pipe_}; }
  // -1, which poll ignores, if it is closed.
  int fd() const { return pipe_.get(); }
  // The lines that are complete, without their line feeds. At the pipe's end, which closes it, the
  // rest counts as a line.
  std::vector<std::string> Read();

 private:
  UniqueFd pipe_;
  std::string partial_;  // beginning of the incomplete line
};

// The messages of other ranks while rank 0 uses the whole terminal (--watch): the launcher prints
// them when rank 0 has ended, and sends rank 0 a copy to show meanwhile.

// The variable in rank 0's environment that names its end of a socket, a line a packet.
inline constexpr const char* kRankMessagesVariable = "ZEROPLAN_MESSAGES_FD";

// Makes the launcher's end and rank 0's, both closed on exec. Throws Error(kRuntime).
std::pair<UniqueFd, UniqueFd> MakeRankMessages();

// Sends the lines of `text`; drops lines for which there is no room, because rank 0 is busy,
// stopped or gone. Never waits.
void SendRankMessages(const UniqueFd& to, std::string_view text);

class RankMessages {
 public:
  // Reads the messages of this process's launcher; none if it passes none on.
  RankMessages();
  // The lines since the last call, "rank 3: warning: ...", unescaped.
  std::vector<std::string> Take();

 private:
  UniqueFd from_;
};

}  // namespace zeroplan
