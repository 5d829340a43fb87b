#include "cli/run/train/text_choices.h"

#include "planner/request/parse.h"

namespace zeroplan {

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

}  // namespace zeroplan
