// Hardware profiles: reading throws Error or succeeds.
#include <cstdlib>
#include <string_view>

#include "core/base/error.h"
#include "hwprofiles/loader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    zeroplan::ParseProfile(std::string_view(reinterpret_cast<const char*>(data), size), "input");
  } catch (const zeroplan::Error& error) {
    if (error.code() != zeroplan::ExitCode::kUsage) std::abort();
  }
  return 0;
}
