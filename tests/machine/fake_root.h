// A folder that looks as the kernel's proc and sys, for what reads them.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/temp_dir.h"

namespace zeroplan {

class FakeRoot {
 public:
  // `groups`: the text of proc/self/cgroup.
  explicit FakeRoot(const std::string& groups) { Write("proc/self/cgroup", groups); }

  void Write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((path() / file).parent_path());
    std::ofstream(path() / file) << text;
  }
  std::filesystem::path path() const { return root_.path(); }

 private:
  TempDir root_;
};

}  // namespace zeroplan
