#include "core/base/files.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <optional>

namespace zeroplan {
namespace {

TEST_CASE("the cache folder is the first of three that the environment names") {
  std::map<const char*, std::optional<std::string>> before;
  for (const char* name : {"ZEROPLAN_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}) {
    const char* value = std::getenv(name);
    before[name] = value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }
  setenv("ZEROPLAN_CACHE_DIR", "/a", 1);
  setenv("XDG_CACHE_HOME", "/b", 1);
  setenv("HOME", "/c", 1);
  CHECK(CacheFolder() == "/a");
  unsetenv("ZEROPLAN_CACHE_DIR");
  CHECK(CacheFolder() == "/b/zeroplan");
  setenv("XDG_CACHE_HOME", "", 1);
  CHECK(CacheFolder() == "/c/.cache/zeroplan");
  unsetenv("HOME");
  CHECK(CacheFolder().empty());
  for (const auto& [name, value] : before) {
    if (value) {
      setenv(name, value->c_str(), 1);
    } else {
      unsetenv(name);
    }
  }
}

}  // namespace
}  // namespace zeroplan
