// What another process writes to a pipe, line by line, and passing it on.
#pragma once

#include <string>
#include <string_view>
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

}  // namespace zeroplan
