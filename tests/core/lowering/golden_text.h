// Texts that are compared with files, for tests: a mismatch shows which lines differ.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace zeroplan::testing {

inline std::vector<std::string> SplitLines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Lines that only the first text has ("-") or only the second ("+"), each with its number, by the
// longest common subsequence.
inline std::string LineDiff(const std::string& before, const std::string& after) {
  const std::vector<std::string> a = SplitLines(before), b = SplitLines(after);
  // common[i][j]: length of the longest one of a[i..] and b[j..].
  std::vector<std::vector<int>> common(a.size() + 1, std::vector<int>(b.size() + 1, 0));
  for (size_t i = a.size(); i-- > 0;) {
    for (size_t j = b.size(); j-- > 0;) {
      common[i][j] =
          a[i] == b[j] ? common[i + 1][j + 1] + 1 : std::max(common[i + 1][j], common[i][j + 1]);
    }
  }
  std::ostringstream out;
  for (size_t i = 0, j = 0; i < a.size() || j < b.size();) {
    if (i < a.size() && j < b.size() && a[i] == b[j]) {
      ++i, ++j;
    } else if (j == b.size() || (i < a.size() && common[i + 1][j] >= common[i][j + 1])) {
      out << "- " << i + 1 << ": " << a[i] << "\n";
      ++i;
    } else {
      out << "+ " << j + 1 << ": " << b[j] << "\n";
      ++j;
    }
  }
  return out.str();
}

// Checks that `text` is what the file holds. With ZEROPLAN_UPDATE_GOLDEN=1 in the environment the
// file is rewritten instead: read the change before committing it.
inline void CheckGolden(const std::filesystem::path& file, const std::string& text) {
  if (const char* update = std::getenv("ZEROPLAN_UPDATE_GOLDEN");
      update != nullptr && std::string(update) == "1") {
    std::ofstream out(file, std::ios::binary);
    out << text;
    out.close();
    REQUIRE_MESSAGE(out.good(), "cannot write " << file.string());
    return;
  }
  std::ifstream in(file, std::ios::binary);
  REQUIRE_MESSAGE(in.good(), file.string() << " is missing; ZEROPLAN_UPDATE_GOLDEN=1 writes it");
  const std::string golden((std::istreambuf_iterator<char>(in)), {});
  const bool same = golden == text;  // or doctest would print both texts in full
  CHECK_MESSAGE(same, file.string() << " differs (-: the file, +: now); if the change is meant, "
                                       "ZEROPLAN_UPDATE_GOLDEN=1 rewrites it\n"
                                    << LineDiff(golden, text));
}

}  // namespace zeroplan::testing
