// Protects the files of a command line: files that are read must not be overwritten, nor files that
// zeroplan did not write. Commands declare for each option whether it is read or written (PathRole,
// planner/request/fields.h); the default is read.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "planner/request/fields.h"

namespace zeroplan {

// The target of an option: a given path, or the name of something built in.
struct CommandFile {
  std::string option;  // "--report"
  std::string path;
  PathRole role;
};

// Called once a command line is read, before any work. Throws Error(kUsage) that names option and
// file
//   - if a file to write cannot be written, as far as that can be checked without writing;
//   - if a file to write is one that is read: the same file, through any links, or one of a folder
//     that is read; for PathRole::kReadBelow also if it would be made below such a folder;
//   - if two options write one file;
//   - if an existing file is not of the kind that is written. Empty files, devices and pipes are
//     of any kind.
void CheckFiles(std::vector<CommandFile> files);

// The same for further files that a command makes, checked against those of CheckFiles.
void CheckMoreFiles(const std::vector<CommandFile>& written);

// Whether an existing file is of that kind, by the rules of CheckFiles.
bool IsOfKind(const std::filesystem::path& file, const OutputKind& kind);

// The kinds of files that several commands write.
extern const OutputKind kPage, kTrace;

}  // namespace zeroplan
