// A folder that looks as the kernel's proc and sys, for what reads them.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace zeroplan {

class FakeRoot {
 public:
  // `groups`: the text of proc/self/cgroup.
  explicit FakeRoot(const std::string& groups) {
    std::string name = (std::filesystem::temp_directory_path() / "zeroplan_root_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    root_ = name;
    Write("proc/self/cgroup", groups);
  }
  ~FakeRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  void Write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  const std::filesystem::path& path() const { return root_; }

 private:
  std::filesystem::path root_;
};

}  // namespace zeroplan
