#include "machine/visible_gpus.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace zeroplan {

bool DetectionIsOff() {
  const char* off = std::getenv("ZEROPLAN_NO_DETECT");
  return off != nullptr && std::strcmp(off, "") != 0 && std::strcmp(off, "0") != 0;
}

std::optional<std::vector<unsigned>> VisibleDevices() {
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) return std::nullopt;
  std::vector<unsigned> indices;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view item = rest.substr(0, comma);
    unsigned index = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), index);
    if (error != std::errc() || end != item.data() + item.size()) {
      // CUDA ends its list at the first device that is not there ("-1").
      if (item.starts_with("-")) break;
      return std::nullopt;
    }
    indices.push_back(index);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return indices;
}

}  // namespace zeroplan
