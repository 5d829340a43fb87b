// A folder for files that a fuzzer's reader opens by their path: in memory where there is such a
// file system, gone with the object.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/temp_dir.h"

namespace zeroplan {

class ScratchFiles {
 public:
  std::filesystem::path folder() const { return folder_.path(); }
  std::filesystem::path Write(const std::string& name, std::string_view bytes) const {
    const std::filesystem::path path = folder_.path(name);
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) std::abort();
    return path;
  }

 private:
  FastTempDir folder_;
};

}  // namespace zeroplan
