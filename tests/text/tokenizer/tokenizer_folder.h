// A folder of texts and models, and tokenizers of tests/fixtures/tokenizers.
#pragma once

#include <fstream>
#include <string>
#include <string_view>

#include "tests/paths.h"
#include "tests/temp_dir.h"

namespace zeroplan {

class TokenizerFolder {
 public:
  std::string path(const std::string& name) const { return root_.path() + "/" + name; }
  void Write(const std::string& name, std::string_view text) const {
    std::ofstream(path(name), std::ios::binary) << text;
  }

 private:
  TempDir root_;
};

inline std::string TokenizerFixture(const std::string& name) {
  return SourcePath("tests/fixtures/tokenizers/" + name + ".json");
}

}  // namespace zeroplan
