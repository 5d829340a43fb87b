// Hugging Face config.json: reading throws Error or gives a valid model that can be written and
// read back.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/families/load_model.h"

namespace zeroplan {
namespace {

// A file in memory, which the reader opens by its path.
class MemoryFile {
 public:
  MemoryFile(const void* data, size_t size) : file_(memfd_create("config", 0)) {
    if (file_ < 0 || write(file_, data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  ~MemoryFile() { close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

void Read(const uint8_t* data, size_t size) {
  const MemoryFile file(data, size);
  ModelSpec spec;
  std::vector<std::string> notes;
  try {
    spec = ReadHuggingFaceConfig(file.path(), &notes);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) std::abort();
    return;
  }
  if (spec.ParamCount() == 0) std::abort();
  const std::string written = WriteHuggingFaceConfig(spec);
  const MemoryFile again(written.data(), written.size());
  const ModelSpec back = ReadHuggingFaceConfig(again.path(), nullptr);
  if (back.ParamCount() != spec.ParamCount() || back.layer_norm_eps != spec.layer_norm_eps ||
      back.init_std != spec.init_std || back.heads != spec.heads) {
    std::abort();
  }
}

}  // namespace
}  // namespace zeroplan

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  zeroplan::Read(data, size);
  return 0;
}
