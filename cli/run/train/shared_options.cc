#include "cli/run/train/shared_options.h"

#include <cstdint>
#include <cstdlib>

#include "core/base/error.h"
#include "executor/measure/measure_device.h"
#include "machine/detect.h"
#include "planner/request/parse.h"

namespace zeroplan {

bool BuiltWithCuda() {
#ifdef ZEROPLAN_WITH_CUDA
  return true;
#else
  return false;
#endif
}

Backend ChooseBackend(const Given<BackendChoice>& choice, std::string_view cpu_does) {
  switch (choice.value_or(BackendChoice::kFound)) {
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
    case BackendChoice::kFound:
      break;
  }
  return BuiltWithCuda() && !QueryGpus().empty() ? Backend::kCuda : Backend::kCpu;
}

void RequireBackend([[maybe_unused]] Backend backend, [[maybe_unused]] int ranks) {
#ifdef ZEROPLAN_WITH_CUDA
  if (backend == Backend::kCuda) RequireCuda(ranks);
#endif
}

void RefuseOnCpu(Backend backend, const char* option, const std::string& text) {
  if (backend != Backend::kCpu || text.empty()) return;
  ThrowUsage("{}: {} has no effect on the CPU backend; leave it out, or use --backend cuda", option,
             text);
}

std::function<double(const std::string&, std::string_view)> NumberWhere(bool (*allowed)(double),
                                                                        const char* use) {
  return [allowed, use](const std::string& text, std::string_view option) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !allowed(value)) {
      ThrowUsage("{}: {} is not allowed; use {}", option, text, use);
    }
    return value;
  };
}

}  // namespace zeroplan
