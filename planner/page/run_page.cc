#include "planner/page/run_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/units.h"
#include "planner/estimate/choices.h"
#include "planner/page/choice_pictures.h"
#include "planner/page/html.h"
#include "planner/page/run_pictures.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

std::vector<std::string> Findings(const RunRecord& record) {
  std::vector<std::string> texts;
  if (!record.failure.empty()) {
    texts.push_back(fmt::format("The run did not end: {}", record.failure));
  }
  if (record.end && record.end->interrupted) {
    texts.push_back(
        fmt::format("Interrupted after step {} of {}.", record.end->steps, record.planned_steps));
  }
  if (record.end && record.end->out_of_patience) {
    texts.emplace_back("The run ended early: the validation loss no longer fell (@@patience).");
  }
  if (record.done > 0) {
    texts.push_back(fmt::format(
        "The run goes on from a checkpoint: what it did up to step {} is not on this page.",
        record.done));
  }
  if (record.end && record.end->skipped_steps > 0) {
    texts.push_back(fmt::format("{} of {} steps were skipped and changed nothing.",
                                record.end->skipped_steps, record.end->steps));
  }
  if (!record.saves.empty()) {
    texts.push_back(fmt::format("Saved after step{} {}.", record.saves.size() == 1 ? "" : "s",
                                fmt::join(record.saves, ", ")));
  }
  return texts;
}

void AddFigures(const RunRecord& record, Page& page) {
  const auto add = [&](const char* name, std::string value) {
    page.figures.emplace_back(name, std::move(value));
  };
  if (!record.steps.empty()) {
    add("steps", fmt::format("{} of {}", record.steps.back().step, record.planned_steps));
    if (const auto& loss = record.steps.back().loss) add("last loss", fmt::format("{:.4f}", *loss));
  }
  if (!record.validations.empty()) {
    add("validation loss", fmt::format("{:.4f}", record.validations.back().second));
  }
  if (!record.end || record.end->step_seconds_median <= 0) return;
  const BatchSpec& batch = record.program.setup.batch;
  const double tokens =
      static_cast<double>(batch.global_batch()) * static_cast<double>(batch.seq_len);
  add("median step", FormatSeconds(record.end->step_seconds_median));
  add("tokens a second at that",
      FormatCount(static_cast<uint64_t>(tokens / record.end->step_seconds_median)));
}

}  // namespace

Page RunPage(const RunRecord& record, const PageOrigin& origin) {
  const Program& program = record.program;
  const int ranks = program.setup.batch.world_size;
  Page page;
  page.title =
      fmt::format("{} on {} rank{}: the run", program.model.name, ranks, ranks == 1 ? "" : "s");
  page.facts = {ModelLine(program.model, program.setup.batch.seq_len),
                fmt::format("{}; {} backend{}", SetupLabel(program.setup), record.backend,
                            record.prediction ? fmt::format(", predicted with {}'s figures",
                                                            record.prediction->hardware)
                                              : ""),
                BatchLine(program.setup)};
  page.command = origin.command;
  page.assumed = origin.assumed;
  page.notes = origin.notes;
  AddFigures(record, page);
  page.findings = Findings(record);
  if (auto picture = LossPicture(record)) page.pictures.push_back(std::move(*picture));
  if (auto picture = SpeedPicture(record)) page.pictures.push_back(std::move(*picture));
  if (auto picture = MeasuredTimePicture(record)) page.pictures.push_back(std::move(*picture));
  page.pictures.push_back(ArenaPicture(record));
  if (auto picture = UsedMemoryPicture(record)) page.pictures.push_back(std::move(*picture));
  if (auto picture = PowerPicture(record)) page.pictures.push_back(std::move(*picture));
  if (record.costs != nullptr && record.prediction) {
    page.pictures.push_back(StepMemoryPicture(program, record.prediction->footprint, record.memory,
                                              SetupLabel(program.setup), *record.costs));
  }
  return page;
}

}  // namespace zeroplan
