// What another process writes to a pipe, line by line, and passing it on.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/files.h"

namespace zeroplan {

// Writes all of it, however often that takes; what can no longer be written is lost.
void WriteWhole(int fd, std::string_view text);

class PipeLines {
 public:
  PipeLines() = default;
  // The reading end, which does not block from now on; or none.
  explicit PipeLines(UniqueFd pipe);

  bool open() const { return bool{pipe_}; }
  // -1, which poll passes over, where it is closed.
  int fd() const { return pipe_.get(); }
  // The lines that are whole by now, without their line feeds. At the pipe's end, which closes it,
  // the rest is one too.
  std::vector<std::string> Read();

 private:
  UniqueFd pipe_;
  std::string partial_;  // of the line under way
};

// What other ranks say while rank 0 has the whole terminal (--watch): the launcher prints it when
// rank 0 has ended, and sends rank 0 a copy to show meanwhile.

// The variable in rank 0's environment that names its end of a socket, a line a packet.
inline constexpr const char* kRankMessagesVariable = "ZEROPLAN_MESSAGES_FD";

// The launcher's end and rank 0's, both closed on exec. Throws Error(kRuntime).
std::pair<UniqueFd, UniqueFd> MakeRankMessages();

// Sends the lines of `text`; those that there is no room for, as rank 0 is busy, stopped or gone,
// are left out. Never waits.
void SendRankMessages(const UniqueFd& to, std::string_view text);

class RankMessages {
 public:
  // The messages of this process's launcher; none where it hands none on.
  RankMessages();
  // The lines since the last call, "rank 3: warning: ...", as they came: not escaped.
  std::vector<std::string> Take();

 private:
  UniqueFd from_;
};

}  // namespace zeroplan
