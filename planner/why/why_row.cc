// A run as a row of measured runs (tests/fixtures/published_runs.jsonl has the format).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_source.h"
#include "core/base/strings.h"
#include "planner/why/why_parts.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using RowJson = nlohmann::ordered_json;

// "⟦micro_batch⟧" as "micro_batch".
std::string KeyOf(const std::string& field) {
  constexpr size_t kBracket = 3;  // bytes of each
  return field.substr(kBracket, field.size() - 2 * kBracket);
}

// Numbers and true as such; other texts as given.
RowJson ValueOf(const std::string& text) {
  const RowJson value = RowJson::parse(text, nullptr, false);
  return value.is_number() || value.is_boolean() ? value : RowJson(text);
}

RowJson MeasuredOf(const WhyAnswer& answer) {
  constexpr double kGiB = 1ull << 30;
  const RunLog& log = answer.log;
  RowJson measured = RowJson::object();
  if (log.Cause() != nullptr) return measured;
  // A rate of the whole run has loading and saving in it.
  const bool of_steps = log.samples_per_second || log.tokens_per_second_of_gpu || log.step_seconds;
  const std::optional<double> step = StepSecondsOf(log, answer.prediction->choice.setup);
  if (of_steps && step) measured["step_seconds"] = *step;
  if (log.allocated) measured["allocated_gib"] = log.allocated->value / kGiB;
  if (log.reserved) measured["reserved_gib"] = log.reserved->value / kGiB;
  return measured;
}

// Ids of the rows that are there.
std::set<std::string> IdsIn(const std::string& text, const std::string& file) {
  std::set<std::string> ids;
  int line = 0;
  for (const std::string_view row : Split(text, '\n')) {
    ++line;
    if (row.find_first_not_of(" \t\r") == row.npos) continue;
    const RowJson json = RowJson::parse(row, nullptr, false);
    const bool run = json.is_object() && json.contains("id") && json["id"].is_string();
    if (!run && !(json.is_object() && json.contains("about"))) {
      ThrowUsage("⟦add⟧: {}:{}: is no row of a run (an object with id); name another file", file,
                 line);
    }
    if (run) ids.insert(json["id"].get<std::string>());
  }
  return ids;
}

}  // namespace

std::string AddRow(const WhyRequest& request, const WhyAnswer& answer,
                   const MergedRequest& merged) {
  const RunLog& log = answer.log;
  const RunFailure* cause = log.Cause();
  const bool out_of_memory = cause != nullptr && cause->kind == FailureKind::kGpuMemory;
  if (cause != nullptr && !out_of_memory) {
    ThrowUsage(
        "⟦add⟧: the run died of something else than GPU memory (line {}), so it says nothing "
        "of either; leave it out",
        cause->line);
  }
  std::vector<std::string> unsaid;
  for (const MissingField& missing : answer.missing) unsaid.push_back(missing.field);
  // Nothing is taken for granted that decides memory or time.
  for (const std::string& assumed : merged.assumed) {
    unsaid.push_back(assumed.substr(0, assumed.find(' ')));
  }
  if (!merged.hardware_known && std::find(unsaid.begin(), unsaid.end(), "⟦hw⟧") == unsaid.end()) {
    unsaid.emplace_back("⟦hw⟧");
  }
  if (!unsaid.empty()) {
    ThrowUsage(
        "⟦add⟧: a row has what decides memory and time, and neither the log nor an option "
        "says {}; give them",
        fmt::join(unsaid, ", "));
  }
  if (!answer.prediction) {
    ThrowUsage("⟦add⟧: the run cannot be predicted ({}), so that its row would not be read",
               answer.why_no_prediction);
  }
  RowJson fields = RowJson::object();
  for (const auto& [field, text] : request.given) {
    if (field != "⟦config⟧") fields[KeyOf(field)] = ValueOf(text);
  }
  ForEachSetting(request.common.settings, [&](const SettingRow& row, const auto& field) {
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, bool>) {
      if (field) fields[std::string(row.name)] = true;
    }
  });
  if (request.common.model.lora.rslora) fields["rslora"] = true;
  RowJson config;
  for (const UsedFact& fact : merged.used) {
    if (fact.field == "⟦config⟧") continue;
    if (fact.field == "⟦model⟧" && merged.common.model.described.given()) {
      fields["model"] = RowJson::parse(merged.common.model.described.root().Dump());
    } else {
      fields[KeyOf(fact.field)] = ValueOf(fact.text);
    }
  }
  if (merged.common.config.given()) {
    config = RowJson::parse(merged.common.config.root().Dump());
  }
  if (!fields.contains("model")) {
    ThrowUsage("⟦add⟧: a row names a model; give ⟦model⟧ by name");
  }
  if (config.is_object()) {
    for (const char* decided : {"stage", "offload_optimizer", "offload_param", "checkpointing"}) {
      fields.erase(decided);
    }
  }
  const std::optional<uint64_t> usable =
      out_of_memory ? UsableOf(cause->gpu) : std::optional<uint64_t>();
  if (usable && !fields.contains("gpu_memory")) fields["gpu_memory"] = std::to_string(*usable);
  const RowJson measured = MeasuredOf(answer);
  if (!out_of_memory && measured.empty()) {
    ThrowUsage(
        "⟦add⟧: the log has neither the time of steps nor peaks of memory; there is nothing "
        "to add");
  }
  std::error_code ignored;
  const std::string before = fs::exists(request.add, ignored) ? ReadTextFile(request.add) : "";
  const std::set<std::string> ids = IdsIn(before, request.add);
  std::string id = request.id;
  if (id.empty()) {
    const std::string stem = log.source == "-" ? "run" : fs::path(log.source).stem().string();
    id = stem;
    for (int n = 2; ids.contains(id); ++n) id = fmt::format("{}-{}", stem, n);
  } else if (ids.contains(id)) {
    ThrowUsage("⟦id⟧: {} is in {} already; give another one", id, request.add);
  }
  const std::string source = log.source == "-" ? "stdin" : fs::path(log.source).filename().string();
  RowJson row = {
      {"id", id},
      {"framework", log.programs.empty() ? std::string(merged.common.runtime.of().name())
                                         : fmt::format("{}", fmt::join(log.programs, " + "))},
      {"source", source},
      {"trust", "medium"},
      {"request", std::move(fields)}};
  if (config.is_object()) row["config"] = std::move(config);
  row["outcome"] = out_of_memory ? "out of memory" : "ran";
  row["measured"] = measured;
  if (log.fsdp1) row["notes"] = "FullyShardedDataParallel, FSDP's first version";
  const bool ends = before.empty() || before.ends_with('\n');
  ReplaceFile(request.add, before + (ends ? "" : "\n") +
                               row.dump(-1, ' ', false, RowJson::error_handler_t::replace) + "\n");
  std::vector<std::string> keys;
  for (const auto& [key, value] : measured.items()) keys.push_back(key);
  return fmt::format("{}: row {} ({})", request.add, id,
                     out_of_memory ? "out of memory" : fmt::format("{}", fmt::join(keys, ", ")));
}

}  // namespace zeroplan
