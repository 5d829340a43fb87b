#include "planner/page/run_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/base/timing.h"
#include "core/base/units.h"
#include "planner/estimate/choices.h"
#include "planner/page/charts.h"
#include "planner/page/choice_pictures.h"
#include "planner/page/html.h"
#include "planner/page/svg.h"
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
    texts.emplace_back("The run ended early: the validation loss no longer fell (⟦patience⟧).");
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

double TokensOfAStep(const RunRecord& record) {
  const BatchSpec& batch = record.program.setup.batch;
  return static_cast<double>(batch.global_batch()) * static_cast<double>(batch.seq_len);
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
  add("median step", FormatSeconds(record.end->step_seconds_median));
  add("tokens a second at that",
      FormatRate(TokensOfAStep(record) / record.end->step_seconds_median));
}

constexpr size_t kMostPoints = 300, kMostRows = 12;

// "Each point is the mean of 4 steps."; "" where it is one.
std::string MeanText(const char* each, size_t steps, size_t most) {
  const size_t of = (steps + most - 1) / most;
  return of <= 1 ? ""
                 : fmt::format("{} is the mean of {} steps, the last of what is left.", each, of);
}

// Means of `value`, which may be absent.
template <typename T>
std::optional<T> Mean(const std::vector<RunStep>& steps, size_t begin, size_t end,
                      std::optional<T> RunStep::*value) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) {
    if (!(steps[i].*value)) return std::nullopt;
    sum += static_cast<double>(*(steps[i].*value));
  }
  return static_cast<T>(sum / static_cast<double>(end - begin));
}

// A line of what `value` says of each point's steps; those without are left out.
template <typename Value>
LineSeries LineOf(const std::vector<RunStep>& steps, const char* name, Value value) {
  LineSeries series{.name = name};
  for (const RunStep& step : MeanSteps(steps, kMostPoints)) {
    const auto number = value(step);
    if (!number) continue;
    series.points.emplace_back(static_cast<double>(step.step), static_cast<double>(*number));
  }
  return series;
}

// `chart` in `picture`, with a table of what `cells` says of each row's steps under `heads`.
template <typename Cells>
Picture OverSteps(const std::vector<RunStep>& steps, LineChart chart, Picture picture,
                  std::vector<std::string> heads, Cells cells) {
  const std::string means = MeanText("Each point", steps.size(), kMostPoints);
  if (!means.empty()) picture.about += (picture.about.empty() ? "" : " ") + means;
  picture.table.heads = std::move(heads);
  picture.table.heads.insert(picture.table.heads.begin(), "up to step");
  for (const RunStep& row : MeanSteps(steps, kMostRows)) {
    std::vector<std::string> texts = cells(row);
    texts.insert(texts.begin(), std::to_string(row.step));
    picture.table.rows.push_back(std::move(texts));
  }
  picture.table.note = MeanText("Each row", steps.size(), kMostRows);
  chart.x_name = "step";
  picture.Draw(DrawLines, chart);
  return picture;
}

// A number of each step below a limit. Nothing where no step has the number.
template <typename T>
std::optional<Picture> CurvePicture(const std::vector<RunStep>& steps, LineChart chart,
                                    Picture picture, const char* what, const char* limit_name,
                                    std::optional<double> limit, std::optional<T> RunStep::*value) {
  chart.series = {LineOf(steps, what, [&](const RunStep& step) { return step.*value; })};
  if (chart.series.front().points.empty()) return std::nullopt;
  picture.legend = {{"c0", what, LegendEntry::Shape::kLine}};
  if (limit) {
    chart.limit = Limit{*limit, fmt::format("{} {}", limit_name, FormatQuantity(*limit, chart.y))};
    picture.legend.push_back({"limit", limit_name, LegendEntry::Shape::kLine});
  }
  const Quantity quantity = chart.y;
  return OverSteps(steps, std::move(chart), std::move(picture), {what}, [&](const RunStep& row) {
    const std::optional<T>& number = row.*value;
    return std::vector{number ? FormatQuantity(static_cast<double>(*number), quantity) : "?"};
  });
}

}  // namespace

Page RunPage(const RunRecord& record, const PageOrigin& origin) {
  const Program& program = record.program;
  const int ranks = program.setup.batch.world_size;
  Page page{.origin = origin};
  page.title =
      fmt::format("{} on {} rank{}: the run", program.model.name, ranks, ranks == 1 ? "" : "s");
  page.facts = {ModelLine(program.model, program.setup.batch.seq_len),
                fmt::format("{}; {} backend{}", SetupLabel(program.setup), record.backend,
                            record.prediction ? fmt::format(", predicted with {}'s figures",
                                                            record.prediction->hardware)
                                              : ""),
                BatchLine(program.setup)};
  AddFigures(record, page);
  page.findings = Findings(record);
  page.Add(LossPicture(record));
  page.Add(SpeedPicture(record));
  page.Add(MeasuredTimePicture(record));
  page.Add(ArenaPicture(record));
  page.Add(UsedMemoryPicture(record));
  page.Add(PowerPicture(record));
  if (record.costs != nullptr && record.prediction) {
    page.Add(StepMemoryPicture(program, record.prediction->footprint, record.memory,
                               SetupLabel(program.setup), *record.costs));
  }
  return page;
}

std::vector<RunStep> MeanSteps(const std::vector<RunStep>& steps, size_t most) {
  const size_t each = std::max<size_t>(1, (steps.size() + most - 1) / most);
  std::vector<RunStep> means;
  for (size_t begin = 0; begin < steps.size(); begin += each) {
    const size_t end = std::min(begin + each, steps.size());
    const auto count = static_cast<double>(end - begin);
    RunStep mean;
    mean.step = steps[end - 1].step;
    for (size_t i = begin; i < end; ++i) {
      mean.step_seconds += steps[i].step_seconds / count;
      mean.tokens_per_second += steps[i].tokens_per_second / count;
    }
    mean.loss = Mean(steps, begin, end, &RunStep::loss);
    mean.exposed_comm_seconds = Mean(steps, begin, end, &RunStep::exposed_comm_seconds);
    mean.exposed_offload_seconds = Mean(steps, begin, end, &RunStep::exposed_offload_seconds);
    mean.device_used_bytes = Mean(steps, begin, end, &RunStep::device_used_bytes);
    mean.watts = Mean(steps, begin, end, &RunStep::watts);
    means.push_back(mean);
  }
  return means;
}

std::optional<Picture> LossPicture(const RunRecord& record) {
  LineChart chart{.name = "Loss over steps", .from_zero = false};
  Picture picture{.id = "loss", .title = "Loss"};
  LineSeries training =
      LineOf(record.steps, "training loss", [](const RunStep& step) { return step.loss; });
  LineSeries validation{.name = "validation loss", .colour = 1, .dots = true};
  for (const auto& [step, loss] : record.validations) {
    validation.points.emplace_back(static_cast<double>(step), loss);
  }
  for (LineSeries* series : {&training, &validation}) {
    if (series->points.empty()) continue;
    picture.legend.push_back({ColourClass(series->colour), series->name,
                              series->dots ? LegendEntry::Shape::kDot : LegendEntry::Shape::kLine});
    chart.series.push_back(std::move(*series));
  }
  if (chart.series.empty()) return std::nullopt;
  int64_t before = record.done;
  return OverSteps(record.steps, std::move(chart), std::move(picture),
                   {"training loss", "validation loss"}, [&](const RunStep& row) {
                     std::string validated;
                     for (const auto& [step, loss] : record.validations) {
                       if (step > before && step <= row.step) {
                         validated = fmt::format("{:.4f}", loss);
                       }
                     }
                     before = row.step;
                     return std::vector{row.loss ? fmt::format("{:.4f}", *row.loss) : "not finite",
                                        validated};
                   });
}

std::optional<Picture> SpeedPicture(const RunRecord& record) {
  if (record.steps.empty()) return std::nullopt;
  LineChart chart{.name = "Tokens a second over steps", .y = Quantity::kTokenRate};
  Picture picture{.id = "speed", .title = "Tokens a second"};
  picture.legend = {{"c0", "measured, all ranks together", LegendEntry::Shape::kLine}};
  if (record.prediction && record.prediction->step_seconds) {
    const double predicted = TokensOfAStep(record) / *record.prediction->step_seconds;
    chart.limit = Limit{predicted, fmt::format("predicted {}", FormatRate(predicted))};
    picture.legend.push_back({"limit", "predicted", LegendEntry::Shape::kLine});
  }
  chart.series = {LineOf(record.steps, "tokens a second", [](const RunStep& step) {
    return std::optional(step.tokens_per_second);
  })};
  return OverSteps(record.steps, std::move(chart), std::move(picture),
                   {"seconds a step", "tokens/s"}, [&](const RunStep& row) {
                     return std::vector{FormatSeconds(row.step_seconds),
                                        FormatRate(row.tokens_per_second)};
                   });
}

std::optional<Picture> MeasuredTimePicture(const RunRecord& record) {
  std::vector<double> comm, offload, total;
  for (const RunStep& step : record.steps) {
    if (!step.exposed_comm_seconds || !step.exposed_offload_seconds) return std::nullopt;
    comm.push_back(*step.exposed_comm_seconds);
    offload.push_back(*step.exposed_offload_seconds);
    total.push_back(step.step_seconds);
  }
  if (total.empty()) return std::nullopt;
  BarChart chart{.name = "Seconds of a step by cause, predicted and measured",
                 .quantity = Quantity::kSeconds,
                 .parts = {"compute and optimizer", "exposed communication", "exposed offload"}};
  Picture picture{.id = "step-time", .title = "Time of a step, predicted and measured"};
  picture.about =
      "Measured are medians over this run's steps, and of a step's time what was neither waited "
      "for communication nor for offload.";
  picture.table.heads = {"", "compute and optimizer", "exposed comm.", "exposed offload", "total"};
  const auto add = [&](const char* name, const std::array<double, 3>& parts) {
    const double sum = parts[0] + parts[1] + parts[2];
    chart.bars.push_back({name, {parts.begin(), parts.end()}, false, FormatSeconds(sum)});
    picture.table.rows.push_back({name, FormatSeconds(parts[0]), FormatSeconds(parts[1]),
                                  FormatSeconds(parts[2]), FormatSeconds(sum)});
  };
  if (record.prediction && record.prediction->step) {
    const StepTime& time = *record.prediction->step;
    add("predicted", {time.compute_seconds + time.optimizer_seconds, time.exposed_comm_seconds,
                      time.exposed_offload_seconds});
  }
  const double waited = Median(comm) + Median(offload);
  add("measured", {std::max(0.0, Median(total) - waited), Median(comm), Median(offload)});
  picture.legend = LegendOf(chart.parts);
  picture.Draw(DrawBars, chart);
  return picture;
}

Picture ArenaPicture(const RunRecord& record) {
  constexpr std::array kNames = {"device", "pinned host", "pageable host", "disk"};
  BarChart chart{.name = "Bytes of one rank by class, planned, and by arena, touched",
                 .parts = {"bytes"}};
  Picture picture{.id = "arenas", .title = "Memory of one rank: planned and touched"};
  picture.about =
      "Each arena is allocated once, as large as planned. Touched is the end of the highest range "
      "that a kernel, a collective, a copy or a file used, the largest over ranks.";
  const auto add = [&](size_t space, const char* what, uint64_t bytes) {
    chart.bars.push_back({fmt::format("{}, {}", kNames[space], what),
                          {static_cast<double>(bytes)},
                          false,
                          FormatBytes(bytes)});
  };
  picture.table.heads = {"arena", "planned bytes", "touched bytes"};
  for (size_t s = 0; s < kSpaces; ++s) {
    const uint64_t planned = record.program.arena_bytes[s];
    const uint64_t touched = record.end ? record.end->touched_bytes[s] : 0;
    if (planned == 0 && touched == 0) continue;
    add(s, "planned", planned);
    if (record.end) add(s, "touched", touched);
    picture.table.rows.push_back({kNames[s], std::to_string(planned),
                                  record.end ? std::to_string(touched) : "the run did not end"});
  }
  for (int c = 0; c < kMemoryClasses; ++c) {
    const auto memory_class = static_cast<MemoryClass>(c);
    picture.table.note +=
        fmt::format("{}{} {}", c == 0 ? "Of the device arena at its peak: " : ", ",
                    MemoryClassName(memory_class), FormatBytes(record.memory.of(memory_class)));
  }
  picture.table.note += '.';
  picture.Draw(DrawBars, chart);
  return picture;
}

std::optional<Picture> UsedMemoryPicture(const RunRecord& record) {
  std::optional<double> predicted;
  if (record.prediction) predicted = static_cast<double>(record.prediction->footprint.gpu_total());
  return CurvePicture(
      record.steps, {.name = "Memory in use on one GPU over steps", .y = Quantity::kBytes},
      {.id = "gpu-used",
       .title = "GPU memory in use",
       .about = "The highest seen so far on rank 0's GPU, of all programs on it; asked for now and "
                "then."},
      "in use", "predicted", predicted, &RunStep::device_used_bytes);
}

std::optional<Picture> PowerPicture(const RunRecord& record) {
  return CurvePicture(
      record.steps, {.name = "Power of one GPU over steps", .y = Quantity::kWatts},
      {.id = "gpu-power",
       .title = "Power of the GPU",
       .about = "Of rank 0's GPU, as its driver averages it, looked at twice a second; a step "
                "between two looks has the last one."},
      "drawn", "limit", record.limit_watts, &RunStep::watts);
}

}  // namespace zeroplan
