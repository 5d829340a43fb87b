// Prepares the start of another process, such as a remote shell, before the fork.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/files.h"

namespace zeroplan {

// The argument of execv: pointers to the words, which must outlive it, and a null.
std::vector<char*> ArgvOf(std::vector<std::string>& words);

// The file that a command's first word names: itself if it has a slash, else the first program of
// that name in a folder of $PATH. Skips folders of $PATH that are no absolute path ("", "."),
// unlike a shell: they name the working folder, whose files others may have written. Returns an
// absolute path; "" if there is none.
std::string FindProgram(const std::string& word);

// The folder of this program's file.
std::filesystem::path ProgramFolder();

// The command that installs those packages of Python where this program looks for them: pip of the
// environment that holds this program, else the pip on the PATH.
std::string PipInstall(const std::string& packages);

// The ends of a process's stdin, stdout and stderr. All close on exec.
struct StdioPipes {
  UniqueFd in;  // a socket, so that a write to a process that is gone raises no signal
  UniqueFd out, err;
  UniqueFd their_in, their_out, their_err;

  // In the child: makes its ends its stdin, stdout and stderr. System calls only.
  void Become() const;
};

// Throws Error(kRuntime) whose message begins with `whose`.
StdioPipes MakeStdioPipes(const std::string& whose);

}  // namespace zeroplan
