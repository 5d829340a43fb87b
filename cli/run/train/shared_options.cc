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

TextChoices TextChoiceOptions::Choices() const {
  TextChoices choices;
  if (!text_field.empty()) choices.names.emplace_back("text", text_field);
  for (const std::string_view one : Split(map, ',')) {
    const size_t equals = one.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == one.size()) {
      ThrowUsage("--map: {} is no member=name; write it as prompt=question,completion=answer", one);
    }
    if (!text_field.empty()) ThrowUsage("--map: --text-field is given too; use one of both");
    choices.names.emplace_back(one.substr(0, equals), one.substr(equals + 1));
  }
  CheckRecordNames(choices.names);
  choices.train_on_all = train_on == TrainOn::kAll;
  choices.special_tokens = !no_special_tokens;
  choices.skip_bad = static_cast<uint64_t>(skip_bad.value_or(0));
  return choices;
}

void AddTextChoices(Command& command, const char* group, TextChoiceOptions& options) {
  command.Text(
      {group, "--map", "MEMBER=NAME,...",
       "What records' members are called: text=content, prompt=question,completion=answer, "
       "messages=dialog, instruction=task,output=reply (default: as the first record has "
       "them)"},
      options.map);
  command.Text({group, "--text-field", "NAME",
                "Member of each record that holds its text; the same as --map text=NAME"},
               options.text_field);
  command.Value({group, "--train-on", "answers|all",
                 "What of records counts in the loss: answers (completions, and what the assistant "
                 "says; a text as a whole) or all (default answers)"},
                options.train_on, WordIn<TrainOn>({"answers", "all"}));
  command.Value({group, "--skip-bad", "COUNT",
                 "Leave out so many records that cannot be read, and name them (default 0: the "
                 "first one ends it)"},
                options.skip_bad, WholeIn<int64_t>(0, INT64_MAX));
  command.Flag(group, "--no-special-tokens",
               "Add no special tokens around texts but the one that ends them (default: as the "
               "tokenizer does, such as one that begins them)",
               options.no_special_tokens);
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
