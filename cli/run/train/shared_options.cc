#include "cli/run/train/shared_options.h"

#include <cstdlib>

#include "core/base/error.h"
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

TextChoices TextChoiceOptions::Choices() const { return {text_field, train_on == TrainOn::kAll}; }

void AddTextChoices(Command& command, const char* group, TextChoiceOptions& options) {
  command.Text({group, "--text-field", "NAME",
                "Member of each record that holds its text (default: text, prompt and completion, "
                "or messages, as the first record has them)"},
               options.text_field);
  command.Value({group, "--train-on", "answers|all",
                 "What of records counts in the loss: answers (completions, and what the assistant "
                 "says; a text as a whole) or all (default answers)"},
                options.train_on, WordIn<TrainOn>({"answers", "all"}));
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
