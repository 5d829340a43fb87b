// A folder that is gone at the end of a test.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace zeroplan {

class TempDir {
 public:
  // In `parent`. Throws std::system_error.
  explicit TempDir(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    path_ = (parent / "zeroplan-test-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), path_);
    }
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// In memory where there is such a folder: for hundreds of saves, whose fsyncs would otherwise take
// a minute.
class FastTempDir : public TempDir {
 public:
  FastTempDir()
      : TempDir(access("/dev/shm", W_OK) == 0 ? "/dev/shm"
                                              : std::filesystem::temp_directory_path()) {}
};

}  // namespace zeroplan
