#include "core/base/cache_folder.h"

#include <cstdlib>

namespace zeroplan {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string CacheFolder() {
  if (std::string folder = Variable("ZEROPLAN_CACHE_DIR"); !folder.empty()) return folder;
  if (std::string base = Variable("XDG_CACHE_HOME"); !base.empty()) return base + "/zeroplan";
  if (std::string home = Variable("HOME"); !home.empty()) return home + "/.cache/zeroplan";
  return "";
}

}  // namespace zeroplan
