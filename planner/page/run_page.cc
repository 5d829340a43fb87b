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

namespace {

constexpr size_t kMostPoints = 300, kMostRows = 12;

// "Each point is the mean of 4 steps."; "" where it is one.
std::string MeanText(const char* each, size_t steps, size_t most) {
  const size_t of = (steps + most - 1) / most;
  return of <= 1 ? ""
                 : fmt::format("{} is the mean of {} steps, the last of what is left.", each, of);
}

void Draw(const LineChart& chart, Picture& picture) {
  picture.wide = DrawLines(chart, kWidePicture);
  picture.narrow = DrawLines(chart, kNarrowPicture);
}

std::string RateText(double tokens_per_second) {
  return FormatCount(static_cast<uint64_t>(tokens_per_second));
}

double TokensOfAStep(const RunRecord& record) {
  const BatchSpec& batch = record.program.setup.batch;
  return static_cast<double>(batch.global_batch()) * static_cast<double>(batch.seq_len);
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

// A number of each step, as a line over steps and a table.
struct Curve {
  const char* id = "";
  const char* title = "";
  const char* about = "";
  const char* chart = "";  // its name
  const char* what = "";   // is drawn: "in use"
  Quantity quantity = Quantity::kNumber;
  std::optional<double> limit;  // to stand below
  const char* limit_name = "";
};

// Nothing where no step has the number.
template <typename T>
std::optional<Picture> CurvePicture(const std::vector<RunStep>& steps, const Curve& curve,
                                    std::optional<T> RunStep::*value) {
  LineChart chart;
  chart.name = curve.chart;
  chart.x_name = "step";
  chart.y = curve.quantity;
  LineSeries series{curve.what, 0, {}, false};
  for (const RunStep& step : MeanSteps(steps, kMostPoints)) {
    if (!(step.*value)) continue;
    series.points.emplace_back(static_cast<double>(step.step), static_cast<double>(*(step.*value)));
  }
  if (series.points.empty()) return std::nullopt;
  Picture picture;
  picture.id = curve.id;
  picture.title = curve.title;
  picture.about = curve.about;
  const std::string means = MeanText("Each point", steps.size(), kMostPoints);
  if (!means.empty()) picture.about += ' ' + means;
  picture.table.heads = {"up to step", curve.what};
  for (const RunStep& row : MeanSteps(steps, kMostRows)) {
    const std::optional<T>& number = row.*value;
    picture.table.rows.push_back(
        {std::to_string(row.step),
         number ? FormatQuantity(static_cast<double>(*number), curve.quantity) : "?"});
  }
  picture.table.note = MeanText("Each row", steps.size(), kMostRows);
  picture.legend = {{"c0", curve.what, LegendEntry::Shape::kLine}};
  if (curve.limit) {
    chart.limit = Limit{*curve.limit, fmt::format("{} {}", curve.limit_name,
                                                  FormatQuantity(*curve.limit, curve.quantity))};
    picture.legend.push_back({"limit", curve.limit_name, LegendEntry::Shape::kLine});
  }
  chart.series = {std::move(series)};
  Draw(chart, picture);
  return picture;
}

}  // namespace

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
  LineChart chart;
  chart.name = "Loss over steps";
  chart.x_name = "step";
  chart.from_zero = false;
  LineSeries training{"training loss", 0, {}, false};
  for (const RunStep& step : MeanSteps(record.steps, kMostPoints)) {
    if (step.loss) training.points.emplace_back(static_cast<double>(step.step), *step.loss);
  }
  LineSeries validation{"validation loss", 1, {}, true};
  for (const auto& [step, loss] : record.validations) {
    validation.points.emplace_back(static_cast<double>(step), loss);
  }
  Picture picture;
  picture.id = "loss";
  picture.title = "Loss";
  picture.about = MeanText("Each point", record.steps.size(), kMostPoints);
  if (!training.points.empty()) {
    picture.legend.push_back({"c0", training.name, LegendEntry::Shape::kLine});
    chart.series.push_back(std::move(training));
  }
  if (!validation.points.empty()) {
    picture.legend.push_back({"c1", validation.name, LegendEntry::Shape::kDot});
    chart.series.push_back(std::move(validation));
  }
  if (chart.series.empty()) return std::nullopt;
  picture.table.heads = {"up to step", "training loss", "validation loss"};
  const std::vector<RunStep> rows = MeanSteps(record.steps, kMostRows);
  int64_t before = record.done;
  for (const RunStep& row : rows) {
    std::string validated;
    for (const auto& [step, loss] : record.validations) {
      if (step > before && step <= row.step) validated = fmt::format("{:.4f}", loss);
    }
    picture.table.rows.push_back({std::to_string(row.step),
                                  row.loss ? fmt::format("{:.4f}", *row.loss) : "not finite",
                                  validated});
    before = row.step;
  }
  picture.table.note = MeanText("Each row", record.steps.size(), kMostRows);
  Draw(chart, picture);
  return picture;
}

std::optional<Picture> SpeedPicture(const RunRecord& record) {
  if (record.steps.empty()) return std::nullopt;
  LineChart chart;
  chart.name = "Tokens a second over steps";
  chart.x_name = "step";
  chart.y = Quantity::kTokenRate;
  Picture picture;
  picture.id = "speed";
  picture.title = "Tokens a second";
  picture.about = MeanText("Each point", record.steps.size(), kMostPoints);
  picture.legend = {{"c0", "measured, all ranks together", LegendEntry::Shape::kLine}};
  if (record.prediction && record.prediction->step_seconds) {
    const double predicted = TokensOfAStep(record) / *record.prediction->step_seconds;
    chart.limit = Limit{predicted, fmt::format("predicted {}", RateText(predicted))};
    picture.legend.push_back({"limit", "predicted", LegendEntry::Shape::kLine});
  }
  LineSeries series{"tokens a second", 0, {}, false};
  for (const RunStep& step : MeanSteps(record.steps, kMostPoints)) {
    series.points.emplace_back(static_cast<double>(step.step), step.tokens_per_second);
  }
  chart.series = {std::move(series)};
  picture.table.heads = {"up to step", "seconds a step", "tokens/s"};
  for (const RunStep& row : MeanSteps(record.steps, kMostRows)) {
    picture.table.rows.push_back({std::to_string(row.step), FormatSeconds(row.step_seconds),
                                  RateText(row.tokens_per_second)});
  }
  picture.table.note = MeanText("Each row", record.steps.size(), kMostRows);
  Draw(chart, picture);
  return picture;
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
  BarChart chart;
  chart.name = "Seconds of a step by cause, predicted and measured";
  chart.quantity = Quantity::kSeconds;
  chart.parts = {"compute and optimizer", "exposed communication", "exposed offload"};
  Picture picture;
  picture.id = "step-time";
  picture.title = "Time of a step, predicted and measured";
  picture.about =
      "Measured are medians over this run's steps, and of a step's time what was neither waited "
      "for "
      "communication nor for offload.";
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
  for (size_t i = 0; i < chart.parts.size(); ++i) {
    picture.legend.push_back({ColourClass(i), chart.parts[i]});
  }
  picture.wide = DrawBars(chart, kWidePicture);
  picture.narrow = DrawBars(chart, kNarrowPicture);
  return picture;
}

Picture ArenaPicture(const RunRecord& record) {
  constexpr std::array kNames = {"device", "pinned host", "pageable host", "disk"};
  BarChart chart;
  chart.name = "Bytes of one rank by class, planned, and by arena, touched";
  Picture picture;
  picture.id = "arenas";
  picture.title = "Memory of one rank: planned and touched";
  picture.about =
      "Each arena is allocated once, as large as planned. Touched is the end of the highest range "
      "that a kernel, a collective, a copy or a file used, the largest over ranks.";
  chart.parts = {"bytes"};
  picture.table.heads = {"arena", "planned bytes", "touched bytes"};
  for (size_t s = 0; s < kSpaces; ++s) {
    const uint64_t planned = record.program.arena_bytes[s];
    const uint64_t touched = record.end ? record.end->touched_bytes[s] : 0;
    if (planned == 0 && touched == 0) continue;
    chart.bars.push_back({fmt::format("{}, planned", kNames[s]),
                          {static_cast<double>(planned)},
                          false,
                          FormatBytes(planned)});
    if (record.end) {
      chart.bars.push_back({fmt::format("{}, touched", kNames[s]),
                            {static_cast<double>(touched)},
                            false,
                            FormatBytes(touched)});
    }
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
  picture.wide = DrawBars(chart, kWidePicture);
  picture.narrow = DrawBars(chart, kNarrowPicture);
  return picture;
}

std::optional<Picture> UsedMemoryPicture(const RunRecord& record) {
  Curve curve;
  curve.id = "gpu-used";
  curve.title = "GPU memory in use";
  curve.about =
      "The highest seen so far on rank 0's GPU, of all programs on it; asked for now and then.";
  curve.chart = "Memory in use on one GPU over steps";
  curve.what = "in use";
  curve.quantity = Quantity::kBytes;
  if (record.prediction) {
    curve.limit = static_cast<double>(record.prediction->footprint.gpu_total());
    curve.limit_name = "predicted";
  }
  return CurvePicture(record.steps, curve, &RunStep::device_used_bytes);
}

std::optional<Picture> PowerPicture(const RunRecord& record) {
  Curve curve;
  curve.id = "gpu-power";
  curve.title = "Power of the GPU";
  curve.about =
      "Of rank 0's GPU, as its driver averages it, looked at twice a second; a step between two "
      "looks has the last one.";
  curve.chart = "Power of one GPU over steps";
  curve.what = "drawn";
  curve.quantity = Quantity::kWatts;
  curve.limit = record.limit_watts;
  curve.limit_name = "limit";
  return CurvePicture(record.steps, curve, &RunStep::watts);
}

}  // namespace zeroplan
