// A folder for files that a fuzzer's reader opens by their path: in memory where there is such a
// file system, gone with the object.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace zeroplan {

class ScratchFiles {
 public:
  ScratchFiles() {
    std::string name = access("/dev/shm", W_OK) == 0 ? "/dev/shm/zeroplan-fuzz-XXXXXX"
                                                     : "/tmp/zeroplan-fuzz-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    folder_ = name;
  }
  ~ScratchFiles() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  ScratchFiles(const ScratchFiles&) = delete;
  ScratchFiles& operator=(const ScratchFiles&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path Write(const std::string& name, std::string_view bytes) const {
    const std::filesystem::path path = folder_ / name;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) std::abort();
    return path;
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace zeroplan
