// The files of a command line: what it reads is not written over, and neither is what zeroplan did
// not write. Commands say of each option whether it is read or written (PathRole,
// planner/request/fields.h); whoever says nothing reads.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "planner/request/fields.h"

namespace zeroplan {

// What an option leads to: a path that was given, or the name of something built in.
struct CommandFile {
  std::string option;  // "--report"
  std::string path;
  PathRole role;
};

// Called once a command line is read, before any work. Throws Error(kUsage) that names option and
// file
//   - where a file to write cannot be written, as far as can be told without doing it;
//   - where it is one that is read: the same one, whatever links lead to it, or one of a folder
//     that is read; for PathRole::kReadBelow also where it would be made below such a folder;
//   - where two options write one file;
//   - where what is there is not of the kind that is written. Empty files, devices and pipes are
//     of any kind.
void CheckFiles(std::vector<CommandFile> files);

// The same of files that a command makes besides, as CheckFiles had the others.
void CheckMoreFiles(const std::vector<CommandFile>& written);

// Whether a file that is there is of that kind, as CheckFiles has it.
bool IsOfKind(const std::filesystem::path& file, const OutputKind& kind);

// The kinds of what several commands write.
extern const OutputKind kPage, kTrace;

}  // namespace zeroplan
