#include "cli/run/train/train_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/strings.h"
#include "planner/request/data_fields.h"
#include "planner/request/parse.h"
#include "reader/data_reader.h"
#include "text/files/data_files.h"
#include "text/files/token_dataset.h"

namespace zeroplan {
namespace {

// Whether `token` is among those that count in the loss. Of more than a billion tokens blocks are
// looked at that lie evenly in them.
bool IsLearned(const TokenDataset& data, int32_t token) {
  constexpr uint64_t kBlock = uint64_t{1} << 16, kMostBlocks = uint64_t{1} << 14;
  const uint64_t blocks = std::min((data.size() + kBlock - 1) / kBlock, kMostBlocks);
  std::vector<int32_t> ids;
  for (uint64_t i = 0; i < blocks; ++i) {
    const uint64_t begin = data.size() * i / blocks;
    ids.resize(std::min(kBlock, data.size() - begin));
    data.Read(begin, ids);
    data.MaskTargets(begin, ids);
    if (std::find(ids.begin(), ids.end(), token) != ids.end()) return true;
  }
  return false;
}

bool PlannedWithBorders(const TrainWork& work) {
  return work.plan && work.plan->lower.document_borders;
}

}  // namespace

void CheckBytes(const std::vector<std::string>& data, int64_t vocab) {
  const std::string_view why =
      vocab == kByteTokens ? "the model has 256 tokens" : "no tokenizer.json lies beside the model";
  for (const std::filesystem::path& file : DataFiles(data)) {
    const FileKind kind = FileKindOf(file);
    if (kind == FileKind::kRecords) {
      ThrowUsage(
          "--data: {}: bytes are tokens, as {}, so its records would be trained on as they stand, "
          "names and braces too; name a model's folder with a tokenizer.json, make tokens of the "
          "file with 'zeroplan data tokenize', or give plain text",
          file.string(), why);
    }
    if (kind == FileKind::kText && vocab != kByteTokens) {
      return LogInfo("Tokens: bytes, as {}: {} of its {} tokens.", why, kByteTokens, vocab);
    }
  }
}

std::vector<std::string> RepeatedData(const TrainCommand& command, const TokensOf& tokens_of) {
  const std::vector<std::string>& paths = command.run.data;
  if (command.repeats.empty()) return tokens_of(paths);
  std::vector<int64_t> repeats;
  for (const std::string_view count : SplitList(command.repeats)) {
    repeats.push_back(WholeIn<int64_t>(1, 1000)(std::string(count), "--data-repeats"));
  }
  if (repeats.size() != paths.size()) {
    ThrowUsage("--data-repeats: {} has {} numbers, and --data {} paths; give a number for each",
               command.repeats, repeats.size(), paths.size());
  }
  std::vector<std::string> all;
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::vector<std::string> files = tokens_of({paths[i]});
    for (int64_t k = 0; k < repeats[i]; ++k) all.insert(all.end(), files.begin(), files.end());
  }
  return all;
}

bool IsOfRecords(const std::vector<std::string>& data, const std::vector<std::string>& tokens) {
  const std::vector<std::filesystem::path> files = DataFiles(data);
  return std::any_of(files.begin(), files.end(), HoldsRecords) ||
         TokenDataset::Open(tokens).has_mask();
}

bool DataDecides(const TrainCommand& command) {
  const AskedSettings& settings = command.common.settings;
  // The lengths of packed documents decide attention's kernels and time, until they are counted.
  const bool counts = settings.packing && *settings.packing == Packing::kDocuments &&
                      command.common.goal.data.visible_keys == 0;
  if (!command.plan.empty() || (settings.packing && settings.seq_len && !counts)) return false;
  std::error_code ignored;
  return std::any_of(
      command.run.data.begin(), command.run.data.end(), [&](const std::string& path) {
        return std::filesystem::is_directory(path, ignored) || FileKindOf(path) != FileKind::kText;
      });
}

void SettleLayout(TrainCommand& command, const TrainWork& work, Backend backend,
                  std::span<const std::string> data, Assumptions& assumptions) {
  TokenDataset tokens = TokenDataset::Open(data);
  Given<Packing>& packing = command.common.settings.packing;
  Given<int64_t>& seq_len = command.common.settings.seq_len;
  if (!tokens.has_mask() && packing.value_or(Packing::kStream) == Packing::kStream) return;
  if (work.kept) {
    if (!packing) {
      SetPacking(packing, work.kept->lower.document_borders ? Packing::kDocuments : Packing::kOff);
    }
    if (!seq_len) Set(seq_len, work.kept->setup.batch.seq_len);
    return;
  }
  if (backend == Backend::kCpu) {
    if (packing) return;
    SetPacking(packing, Packing::kDocuments);
    assumptions.notes.emplace_back(
        "Packing: documents, as the data is conversations; --packing off pads each instead.");
    return;
  }
  Request request = command.common;
  request.goal.data.paths.assign(data.begin(), data.end());
  request.goal.data.truncate = command.run.truncate;
  request.goal.data.read = [&](const DataFields& fields, const std::string&, int64_t) {
    return CountOf(std::move(tokens), fields.truncate);
  };
  SettleData({work.model, work.hardware, work.setup.batch.world_size}, request, assumptions);
  packing = request.settings.packing;
  seq_len = request.settings.seq_len;
  command.common.goal.data.visible_keys = request.goal.data.visible_keys;
}

void CheckPackingAsked(const TrainCommand& command, const TrainWork& work) {
  const Given<Packing>& asked = command.common.settings.packing;
  const bool planned = PlannedWithBorders(work);
  if (!work.plan || !asked || (*asked == Packing::kDocuments) == planned) return;
  ThrowUsage(
      "--packing: {} is not allowed: {} was planned {} --packing documents; leave the option out, "
      "or plan again {} it",
      PackingName(*asked), command.plan, planned ? "with" : "without",
      planned ? "without" : "with");
}

Packing SettlePacking(const TrainCommand& command, std::span<const std::string> data,
                      TrainWork& work) {
  const auto settle = [&] {
    if (command.common.settings.packing) return *command.common.settings.packing;
    if (PlannedWithBorders(work)) return Packing::kDocuments;
    if (!work.plan || !TokenDataset::Open(data).has_mask()) return Packing::kStream;
    LogInfo(
        "Packing: off, one conversation a sequence, padded; {} was planned without --packing "
        "documents.",
        command.plan);
    return Packing::kOff;
  };
  const Packing packing = settle();
  if (command.run.truncate && packing == Packing::kStream) {
    ThrowUsage("--truncate: goes with --packing documents or off, and it is stream here");
  }
  work.lower.document_borders = packing == Packing::kDocuments;
  const bool timed = !work.plan && work.hardware_is_known && work.lower.backend == Backend::kCuda;
  if (work.lower.document_borders && timed) {
    const double keys = MeanVisibleKeys(CountOf(TokenDataset::Open(data), command.run.truncate)
                                            ->As({work.setup.batch.seq_len, 1, packing, true}));
    SetVisibleKeys(keys, work.model, work.hardware.gpu, work.lower);
  }
  return packing;
}

ChatFolder ReadChatFolder(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (folder.empty() || !std::filesystem::exists(folder / "tokenizer.json", ignored)) return {};
  ChatFolder read;
  try {
    read.tokenizer = Tokenizer::FromFile(folder);
    read.chat = ChatTemplate::FromFolder(folder, *read.tokenizer);
  } catch (const Error&) {
    return {};
  }
  return read;
}

std::vector<int32_t> LearnedStops(const TrainWork& work, const std::vector<std::string>& data,
                                  bool train_on_all) {
  const std::filesystem::path folder = work.tokenizer_folder();
  const auto& [tokenizer, chat] = ReadChatFolder(folder);
  const std::optional<int32_t> end = chat ? chat->end_of_turn_id() : std::nullopt;
  if (!end || *end >= work.model.vocab) return {};
  std::vector<int32_t> stops = StopTokensOf(folder, work.model.vocab);
  if (stops.empty()) stops = StopTokensOf(work.companions_folder(), work.model.vocab);
  const bool named = std::find(stops.begin(), stops.end(), *end) != stops.end();
  const TokenDataset tokens = TokenDataset::Open(data);
  if (named || tokens.is_text() || !(tokens.has_mask() || train_on_all)) return {};
  if (!IsLearned(tokens, *end)) return {};
  if (stops.empty()) {
    if (const auto text_end = EndOfText(folder, *tokenizer)) stops.push_back(*text_end);
  }
  LogInfo("Stops: generation_config.json of what is saved ends texts at {} (token {}), too.",
          tokenizer->TokenText(*end).value_or(""), *end);
  if (std::find(stops.begin(), stops.end(), *end) == stops.end()) stops.push_back(*end);
  return stops;
}

}  // namespace zeroplan
