#include "text/files/files_below.h"

#include <algorithm>

#include "core/base/error.h"

namespace zeroplan {

namespace fs = std::filesystem;

std::vector<fs::path> FilesBelow(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  auto entry = fs::recursive_directory_iterator(folder, error);
  while (!error && entry != fs::recursive_directory_iterator()) {
    std::error_code gone;  // a dangling link is no file
    if (entry->is_regular_file(gone)) files.push_back(entry->path());
    entry.increment(error);
  }
  if (error) ThrowUsage("{}: cannot list the folder: {}", folder.string(), error.message());
  if (files.empty()) ThrowUsage("{}: the folder holds no files", folder.string());
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  return files;
}

std::vector<fs::path> DataFiles(std::span<const std::string> paths) {
  std::vector<fs::path> files;
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) {
      const std::vector<fs::path> below = FilesBelow(path);
      files.insert(files.end(), below.begin(), below.end());
    } else {
      files.emplace_back(path);
    }
  }
  return files;
}

}  // namespace zeroplan
