// The data of a run: what it reads, what that decides of the run, and what is refused.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/run/train/train_work.h"
#include "core/settings/packing.h"
#include "text/documents/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {

// The token files, or texts that are read byte by byte, of paths of --data.
using TokensOf = std::function<std::vector<std::string>(const std::vector<std::string>& paths)>;

// The files that the run reads: each path of --data as often as --data-repeats requests.
std::vector<std::string> RepeatedData(const TrainCommand& command, const TokensOf& tokens_of);

// Refuses records of `data`, which the run reads, that nobody turned into tokens: names and braces
// would be trained on. Logs a line where text is taken so.
void CheckBytes(const std::vector<std::string>& data, int64_t vocab);

// Whether people count a run of `data`, which became `tokens`, in epochs: it is records, or
// conversations that are tokens already.
bool IsOfRecords(const std::vector<std::string>& data, const std::vector<std::string>& tokens);

// Whether the data will decide --packing or --seq-len, or attention's kernels by the lengths of its
// documents: there is no plan, one of the two is not given or documents are packed and not counted,
// and --data is more than plain text, which is a stream.
bool DataDecides(const TrainCommand& command);

// Sets --packing and --seq-len in `command` where they are not given and `data`, the run's tokens,
// decides them: as SettleData does on GPUs, documents of the default length on the CPU, and as the
// run to resume had them. Adds notes. REQUIRES: DataDecides; `work` is of such a command.
void SettleLayout(TrainCommand& command, const TrainWork& work, Backend backend,
                  std::span<const std::string> data, Assumptions& assumptions);

// Throws Error(kUsage) if the plan cannot have what --packing requests.
void CheckPackingAsked(const TrainCommand& command, const TrainWork& work);

// The run's packing; sets work.lower accordingly. Without --packing, given or set by SettleLayout,
// it is stream. A plan with borders of documents makes it documents; a plan without borders makes
// it off for conversations, and a line reports that. REQUIRES: CheckPackingAsked passed.
Packing SettlePacking(const TrainCommand& command, std::span<const std::string> data,
                      TrainWork& work);

// The tokenizer and chat template in a folder; without a template where there is none, or one that
// cannot be read, which made none of the data.
struct ChatFolder {
  std::optional<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat;
};
ChatFolder ReadChatFolder(const std::filesystem::path& folder);

// Tokens at which texts of the saved model end: those that its folder names, and the token that
// ends turns, if the model learns to write it. Empty: those that its folder names alone. Plain text
// that happens to hold the token teaches no turns: conversations have a loss mask, or were taken
// whole.
std::vector<int32_t> LearnedStops(const TrainWork& work, const std::vector<std::string>& data,
                                  bool train_on_all);

}  // namespace zeroplan
