#include "machine/memory_info.h"

#include <fstream>
#include <sstream>
#include <string>

namespace zeroplan {

std::optional<uint64_t> MemoryInfo(std::string_view key, const std::filesystem::path& file) {
  const std::string name = std::string(key) + ":";
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);  // "Node 0 MemTotal: 600 kB" of a node
    std::string word;
    while (words >> word && word != name) {
    }
    uint64_t number = 0;
    if (word != name || !(words >> number)) continue;
    return words >> word && word == "kB" ? number * 1024 : number;
  }
  return std::nullopt;
}

}  // namespace zeroplan
