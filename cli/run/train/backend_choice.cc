#include "cli/run/train/backend_choice.h"

#include "core/base/error.h"
#include "machine/detect.h"

namespace zeroplan {

bool BuiltWithCuda() {
#ifdef ZEROPLAN_WITH_CUDA
  return true;
#else
  return false;
#endif
}

Backend ChooseBackend(const Given<BackendChoice>& choice, std::string_view cpu_does) {
  switch (choice.value_or(BackendChoice::kAuto)) {
    case BackendChoice::kCpu:
      return Backend::kCpu;
    case BackendChoice::kCuda:
      if (!BuiltWithCuda()) {
        ThrowUsage(
            "--backend: cuda is not in this build; configure it with -DZEROPLAN_CUDA=ON, or use "
            "cpu, which {}",
            cpu_does);
      }
      return Backend::kCuda;
    case BackendChoice::kAuto:
      break;
  }
  return BuiltWithCuda() && !QueryGpus().empty() ? Backend::kCuda : Backend::kCpu;
}

void RefuseOnCpu(Backend backend, const char* option, const std::string& text) {
  if (backend != Backend::kCpu || text.empty()) return;
  ThrowUsage("{}: {} has no effect on the CPU backend; leave it out, or use --backend cuda", option,
             text);
}

}  // namespace zeroplan
