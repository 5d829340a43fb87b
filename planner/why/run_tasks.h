// Training tasks other than supervised fine-tuning: how logs name them, what they hold beyond it,
// and their own ways out of a shortage of memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace zeroplan {

// The task of a trainer's file or class ("grpo_trainer.py"), or of words of a command ("trl dpo",
// "--stage dpo", "examples/grpo.py"); "": supervised training, as far as it tells.
std::string_view TaskOfFile(std::string_view file);
std::string_view TaskOfWord(std::string_view word);
// Sentences on the task: the memory it needs beyond the prediction, and its ways out; "": the task
// is unknown. `line`: the line of the log that names it.
std::string TaskText(std::string_view task, int64_t line);

}  // namespace zeroplan
