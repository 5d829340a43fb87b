#include "cli/run/train/shared_options.h"

#include <cstdint>
#include <cstdlib>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "machine/detect.h"
#include "planner/request/parse.h"
#include "text/documents/tokenize_files.h"

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

void RefuseOnCpu(Backend backend, const char* option, const std::string& text) {
  if (backend != Backend::kCpu || text.empty()) return;
  ThrowUsage("{}: {} has no effect on the CPU backend; leave it out, or use --backend cuda", option,
             text);
}

TextChoices ChoicesOf(const RecordFields& fields) {
  TextChoices choices;
  if (!fields.text_field.empty()) choices.names.emplace_back("text", fields.text_field);
  for (const std::string_view one : Split(fields.map, ',')) {
    const size_t equals = one.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == one.size()) {
      ThrowUsage("--map: {} is no member=name; write it as prompt=question,completion=answer", one);
    }
    if (!fields.text_field.empty()) {
      ThrowUsage("--map: --text-field is given too; use one of both");
    }
    choices.names.emplace_back(one.substr(0, equals), one.substr(equals + 1));
  }
  CheckRecordNames(choices.names);
  choices.train_on_all = fields.train_on == TrainOn::kAll;
  choices.special_tokens = !fields.no_special_tokens;
  choices.skip_bad = static_cast<uint64_t>(fields.skip_bad.value_or(0));
  return choices;
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
