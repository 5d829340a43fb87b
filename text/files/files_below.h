// The files that a folder of data stands for.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace zeroplan {

// The regular files below `folder`, at any depth, in byte order of their paths. Linked files count,
// linked folders are not entered: they could lead in circles. Throws Error(kUsage) naming the
// folder if it cannot be listed or has no files.
std::vector<std::filesystem::path> FilesBelow(const std::filesystem::path& folder);

// What --data names: files as they are, and those below folders, in this order.
std::vector<std::filesystem::path> DataFiles(std::span<const std::string> paths);

}  // namespace zeroplan
