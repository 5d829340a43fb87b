// What lies in somebody's folder of weights: the index of a sharded save and the header of a
// safetensors file. Reading throws Error or gives names that stay in the folder and tensors that
// stay in the file.
#include <cstdlib>
#include <string>

#include "core/base/error.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/checkpoint/safetensors.h"

namespace zeroplan {
namespace {

void ReadIndex(std::string_view text) {
  try {
    for (const auto& [tensor, file] : ParseWeightIndex(text, "index")) {
      if (std::filesystem::path(file).filename() != file || file == "..") std::abort();
    }
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) std::abort();
  }
}

void ReadHeader(std::string_view text, uint64_t data_bytes) {
  try {
    const SafetensorsHeader header = ParseSafetensorsHeader(text, data_bytes, "file");
    uint64_t covered = 0;
    for (const SafetensorsEntry& entry : header.entries) {
      if (entry.begin != covered || entry.end < entry.begin) std::abort();
      covered = entry.end;
    }
    if (covered != data_bytes) std::abort();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) std::abort();
  }
}

}  // namespace
}  // namespace zeroplan

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  zeroplan::ReadIndex(text);
  for (const uint64_t data_bytes : {0, 4, 24}) zeroplan::ReadHeader(text, data_bytes);
  return 0;
}
