// A process that starts another, such as a remote shell, prepares this before it forks.
#pragma once

#include <string>
#include <vector>

#include "core/base/files.h"

namespace zeroplan {

// For execv: the words, which outlive it, and a null.
std::vector<char*> ArgvOf(std::vector<std::string>& words);

// The file that a command's first word names: itself where it has a slash, else the first program
// of that name in a folder of $PATH. Folders of $PATH that are no absolute path ("", ".") are
// passed over, unlike by a shell: they mean the working folder, which may hold what others wrote.
// An absolute path; "" if there is none.
std::string FindProgram(const std::string& word);

// The ends of a process's stdin, stdout and stderr. All close on exec.
struct StdioPipes {
  UniqueFd in;  // a socket, so that a write to a process that is gone raises no signal
  UniqueFd out, err;
  UniqueFd their_in, their_out, their_err;

  // In the child: its ends become its own. System calls alone.
  void Become() const;
};

// Throws Error(kRuntime) that begins with `whose`.
StdioPipes MakeStdioPipes(const std::string& whose);

}  // namespace zeroplan
