// How records of training data are taken: options that train and data tokenize share.
#pragma once

#include <string>

#include "cli/common/command.h"
#include "text/documents/tokenize_files.h"

namespace zeroplan {

enum class TrainOn { kAnswers, kAll };

struct TextChoiceOptions {
  std::string text_field;
  Given<TrainOn> train_on;

  TextChoices Choices() const;
};

// Adds --text-field and --train-on, under the heading `group`.
void AddTextChoices(Command& command, const char* group, TextChoiceOptions& options);

}  // namespace zeroplan
