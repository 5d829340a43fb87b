// DeepSpeed configs: reading throws Error or succeeds, and what was read can be written and read
// back. Anything else (another exception, a crash, a difference) ends the process.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "core/base/error.h"
#include "core/config/deepspeed_reader.h"
#include "core/config/deepspeed_writer.h"

namespace zeroplan {
namespace {

ReadContext Context(bool known) {
  ReadContext context;
  context.world_size = known ? 4 : 1;
  context.layers = known ? 10 : 0;
  context.has_bf16 = known;
  return context;
}

void RoundTrip(std::string_view text, const ReadContext& context) {
  TrainSetup setup;
  try {
    setup = ReadDeepSpeedConfig(text, "input", context).setup;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage || std::string_view(error.what()).empty()) std::abort();
    return;
  }
  if (setup.zero.reduce_bucket_elements == kAuto) setup.zero.reduce_bucket_elements = 8'000'000;
  if (setup.zero.prefetch_bucket_elements == kAuto) setup.zero.prefetch_bucket_elements = 1;
  if (!DeepSpeedCannot(setup).empty()) return;
  const std::string written = WriteDeepSpeedConfig(setup, context.layers);
  // What was written must load: an Error here is not caught.
  const TrainSetup back = ReadDeepSpeedConfig(written, "written", context).setup;
  if (back == CanonicalSetup(setup, context.layers)) return;
  std::fprintf(stderr, "not read back as it was:\n%s", written.c_str());
  std::abort();
}

}  // namespace
}  // namespace zeroplan

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  zeroplan::RoundTrip(text, zeroplan::Context(true));
  zeroplan::RoundTrip(text, zeroplan::Context(false));
  return 0;
}
