#include "cli/run/train/metrics_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/settings/setup_facts.h"
#include "planner/plan/plan_file.h"
#include "planner/report/csv.h"

namespace zeroplan {
namespace {

std::optional<std::string_view> SkipReasonName(int32_t reason) {
  switch (reason) {
    case kGradientsNotFinite:
      return "gradients";
    case kLossNotFinite:
      return "loss";
    case kLossSpike:
      return "loss_spike";
    case kGradientSpike:
      return "gradient_spike";
    case kNothingCounts:
      return "nothing_counts";
    default:
      return std::nullopt;
  }
}

void SetBySpace(const std::string& name, const std::array<uint64_t, kSpaces>& bytes,
                MetricLine& line) {
  for (size_t s = 0; s < kSpaces; ++s) {
    line.Set(fmt::format("{}.{}", name, SpaceName(static_cast<Space>(s))), bytes[s]);
  }
}

void SetPlannedBytes(const MemoryReport& memory, const std::optional<RunPrediction>& prediction,
                     MetricLine& line) {
  for (int c = 0; c < kMemoryClasses; ++c) {
    const auto memory_class = static_cast<MemoryClass>(c);
    line.Set(fmt::format("planned_bytes.gpu.{}", MemoryClassName(memory_class)),
             memory.of(memory_class));
  }
  std::optional<uint64_t> runtime;
  if (prediction) runtime = prediction->footprint.runtime_bytes;
  const uint64_t pinned = memory.arena(Space::kPinned), pageable = memory.arena(Space::kPageable);
  line.Set("planned_bytes.gpu.runtime", runtime)
      .Set("planned_bytes.gpu.total",
           prediction ? prediction->footprint.gpu_total() : memory.arena(Space::kDevice))
      .Set("planned_bytes.host.pinned", pinned)
      .Set("planned_bytes.host.pageable", pageable)
      .Set("planned_bytes.host.total", pinned + pageable)
      .Set("planned_bytes.nvme", memory.arena(Space::kFile));
}

void SetPlan(const Program& program, int ranks_per_host, MetricLine& line) {
  line.Set("plan.model", program.model.name).Set("plan.params", program.model.ParamCount());
  const auto set = [&](const char* prefix, const SettingRow& row) {
    line.Set(fmt::format("{}.{}", prefix, row.name), RecordValue(row, program.setup));
  };
  for (const SettingRow* row : kMetricSettings) set("plan", *row);
  line.Set("plan.gpus_per_node", ranks_per_host)
      .Set("plan.backend", program.backend == Backend::kCpu ? "cpu" : "cuda");
  for (const SettingRow* row : kSettingRows) {
    if (row->record != RecordType::kNone) set("choice", *row);
  }
}

bool IsCsv(const std::string& path) { return path.ends_with(".csv"); }

// A killed run may have left an incomplete line. The next line must not continue it.
void DropTornLine(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty() || text.back() == '\n') return;
  const size_t line = text.rfind('\n');
  std::filesystem::resize_file(path, line == std::string::npos ? 0 : line + 1, error);
  if (error) ThrowRuntime("--metrics {}: {}", path, error.message());
  LogWarning("--metrics {}: half a line at its end, of a run that was cut off, is dropped", path);
}

}  // namespace

const OutputKind kMetricsOut = {"what 'zeroplan train --metrics' wrote",
                                {R"({"event":")", "step,loss"}};

void CheckMetricsFile(const std::string& path, bool resume) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  if (!resume && std::filesystem::file_size(path, error) > 0) {
    ThrowUsage(
        "--metrics: {}: holds the metrics of an earlier run; continue that one with --resume, "
        "remove the file, or choose another",
        path);
  }
  if (!IsCsv(path) || !resume) return;
  std::ifstream file(path, std::ios::binary);
  std::string header;
  std::getline(file, header);
  // A header without a line feed is incomplete and is written again.
  if (file.eof() || header == CsvHeader(MetricEvent::kStep)) return;
  ThrowUsage(
      "--metrics {}: its first line does not name the columns that this run would add to; name "
      "another file, or move it away",
      path);
}

void MetricsFile::Open() {
  const std::string& path = places_.file;
  if (path.empty()) return;
  csv_ = IsCsv(path);
  CheckMetricsFile(path, places_.resume);
  if (places_.resume) DropTornLine(path);
  file_.reset(std::fopen(path.c_str(), places_.resume ? "a" : "w"));
  if (!file_) ThrowRuntime("--metrics {}: {}", path, std::strerror(errno));
  if (!csv_) return;
  std::error_code error;
  const bool has_header = std::filesystem::is_regular_file(path, error) &&
                          std::filesystem::file_size(path, error) > 0 && !error;
  if (!has_header) WriteLine(CsvHeader(MetricEvent::kStep));
}

void MetricsFile::WriteLine(std::string text) {
  if (!file_) return;
  text += '\n';  // written with the line, so that a killed run leaves whole lines
  const bool written = std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() &&
                       std::fflush(file_.get()) == 0;
  if (written) return;
  LogWarning("--metrics {}: {}; the run goes on without it", places_.file, std::strerror(errno));
  file_.reset();
}

void MetricsFile::Write(const MetricLine& line, std::optional<int64_t> step) {
  if (tensorboard_ && step) tensorboard_->Add(*step, line.Scalars());
  if (!file_) return;
  if (!csv_) return WriteLine(line.Json());
  if (line.event() == MetricEvent::kStep) WriteLine(line.Csv());
}

void MetricsFile::Start(const RunFacts& facts, int64_t done) {
  Open();
  if (!places_.tensorboard_folder.empty()) {
    tensorboard_.emplace(places_.tensorboard_folder, done + 1);
  }
  const std::optional<RunPrediction>& prediction = facts.prediction;
  MetricLine line(MetricEvent::kStart);
  line.Set("schema", kMetricsSchema);
  SetPlan(facts.program, facts.ranks_per_host, line);
  SetPlannedBytes(facts.memory, prediction, line);
  std::optional<std::string> hardware;
  if (prediction) hardware = prediction->hardware;
  line.Set("predicted.hardware", hardware)
      .Set("predicted.step_seconds", prediction ? prediction->step_seconds : std::nullopt)
      .Set("program", WriteProgramRecord(facts.program, facts.lower));
  Write(line);
}

void MetricsFile::Step(const StepReport& report) {
  const StepState& state = report.state;
  std::optional<int> slowest;
  std::optional<double> slowest_seconds, slowest_share;
  if (report.slowest) {
    slowest = report.slowest->rank;
    slowest_seconds = report.slowest->seconds;
    slowest_share = report.slowest->share;
  }
  std::optional<double> balance, z, most;
  std::optional<int64_t> without;
  if (const auto& router = report.router) {
    balance = router->balance_loss;
    z = router->z_loss;
    most = router->most;
    without = router->without;
  }
  MetricLine line(MetricEvent::kStep);
  line.Set("step", report.step)
      .Set("loss", state.loss_sum)
      .Set("grad_norm", static_cast<double>(state.grad_norm))
      .Set("lr", static_cast<double>(state.lr))
      .Set("loss_scale", static_cast<double>(state.loss_scale))
      .Set("skipped", state.skip != kTaken)
      .Set("skip_reason", SkipReasonName(state.skip))
      .Set("tokens", report.tokens)
      .Set("step_seconds", report.step_seconds)
      .Set("tokens_per_second", report.tokens_per_second)
      .Set("mfu", report.mfu)
      .Set("exposed_comm_seconds", report.times.exposed_comm_seconds)
      .Set("exposed_offload_seconds", report.times.exposed_offload_seconds)
      .Set("device_used_bytes", report.device_used_bytes)
      .Set("slowest_rank", slowest)
      .Set("slowest_rank_seconds", slowest_seconds)
      .Set("slowest_rank_share", slowest_share)
      .Set("router_balance_loss", balance)
      .Set("router_z_loss", z)
      .Set("expert_most", most)
      .Set("experts_without_tokens", without);
  Write(line, report.step);
}

void MetricsFile::Validation(int64_t step, double loss) {
  MetricLine line(MetricEvent::kValidation);
  line.Set("step", step).Set("loss", loss).Set("perplexity", std::exp(loss));
  Write(line, step);
}

void MetricsFile::Saved(const SaveReport& report) {
  MetricLine line(MetricEvent::kSaved);
  line.Set("step", report.step)
      .Set("folder", report.folder.filename().string())
      .Set("beside", report.beside)
      .Set("stall_seconds", report.stall_seconds)
      .Set("waited_seconds", report.waited_seconds)
      .Set("write_seconds", report.write_seconds);
  const std::optional<ChosenInterval>& chosen = report.chosen;
  const auto of = [&](double ChosenInterval::*member) {
    return chosen ? std::optional(*chosen.*member) : std::nullopt;
  };
  line.Set("interval_steps", chosen ? std::optional(chosen->steps) : std::nullopt)
      .Set("interruptions_per_hour",
           chosen ? std::optional(chosen->rate * 3600) : std::optional<double>())
      .Set("interval_step_seconds", of(&ChosenInterval::step_seconds))
      .Set("interval_save_seconds", of(&ChosenInterval::save_seconds))
      .Set("interval_write_seconds", of(&ChosenInterval::write_seconds));
  Write(line, report.step);
}

void MetricsFile::End(const RunReport& report, const Program& program) {
  MetricLine line(MetricEvent::kEnd);
  // A measured step lasts more than 0 s.
  std::optional<double> median;
  if (report.step_seconds_median > 0) median = report.step_seconds_median;
  line.Set("steps", report.steps)
      .Set("skipped_steps", report.skipped_steps)
      .Set("saves", report.saves)
      .Set("saves_waited_for", report.saves_waited_for)
      .Set("device_used_bytes", report.device_used_bytes)
      .Set("step_seconds_median", median);
  SetBySpace("high_water_bytes", report.high_water.touched_bytes, line);
  SetBySpace("planned_arena_bytes", program.arena_bytes, line);
  Write(line);
}

namespace {

using OrderedJson = nlohmann::ordered_json;

// Whether a value has the type of a field.
template <typename T>
bool IsOf(MetricType type, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return type == MetricType::kBool;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return type == MetricType::kWhole && value >= 0;
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    return type == MetricType::kWhole;
  } else if constexpr (std::is_same_v<T, double>) {
    return type == MetricType::kNumber;
  } else {
    return type == MetricType::kText || type == MetricType::kObject;
  }
}

// The object that contains `name`, "plan" for "plan.model"; created if it is missing.
OrderedJson& At(OrderedJson& line, std::string_view name) {
  OrderedJson* at = &line;
  for (size_t dot; (dot = name.find('.')) != std::string_view::npos; name.remove_prefix(dot + 1)) {
    at = &(*at)[std::string(name.substr(0, dot))];
  }
  return (*at)[std::string(name)];
}

}  // namespace

MetricLine::MetricLine(MetricEvent event) : event_(event) {
  for (const MetricField& field : MetricFields()) {
    if (field.event == event) slots_.push_back({&field, {}, false});
  }
}

MetricLine& MetricLine::Take(std::string_view name, Value value) {
  const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                 [&](const Slot& s) { return s.field->name == name; });
  ZEROPLAN_CHECK(slot != slots_.end(), "a {} event has no {}", MetricEventName(event_), name);
  const MetricField& field = *slot->field;
  const bool fits = std::visit(
      [&]<typename T>(const T& v) {
        if constexpr (std::is_same_v<T, std::monostate>) {
          return field.may_be_null;
        } else if constexpr (std::is_same_v<T, std::string>) {
          return IsOf(field.type, v) &&
                 (field.words.empty() ||
                  std::find(field.words.begin(), field.words.end(), v) != field.words.end());
        } else {
          return IsOf(field.type, v);
        }
      },
      value);
  ZEROPLAN_CHECK(fits, "a {} event's {} is not what its field says", MetricEventName(event_), name);
  slot->value = std::move(value);
  slot->set = true;
  return *this;
}

std::string MetricLine::Json() const {
  OrderedJson line = {{"event", MetricEventName(event_)}};
  for (const Slot& slot : slots_) {
    At(line, slot.field->name) = std::visit(
        [&]<typename T>(const T& value) -> OrderedJson {
          if constexpr (std::is_same_v<T, std::monostate>) {
            return nullptr;
          } else if constexpr (std::is_same_v<T, double>) {
            // JSON has no infinities and no NaN; they are written as null.
            return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr);
          } else if constexpr (std::is_same_v<T, std::string>) {
            return slot.field->type == MetricType::kObject ? OrderedJson::parse(value)
                                                           : OrderedJson(value);
          } else {
            return value;
          }
        },
        ValueOf(slot));
  }
  return line.dump();
}

const MetricLine::Value& MetricLine::ValueOf(const Slot& slot) const {
  ZEROPLAN_CHECK(slot.set, "a {} event's {} is missing", MetricEventName(event_), slot.field->name);
  return slot.value;
}

std::string MetricLine::Csv() const {
  std::vector<std::string> cells;
  for (const Slot& slot : slots_) {
    cells.push_back(std::visit(
        []<typename T>(const T& value) -> std::string {
          if constexpr (std::is_same_v<T, std::monostate>) {
            return "";
          } else if constexpr (std::is_same_v<T, double>) {
            return std::isfinite(value) ? fmt::format("{}", value) : "";
          } else if constexpr (std::is_same_v<T, std::string>) {
            return CsvCell(value);
          } else {
            return fmt::format("{}", value);
          }
        },
        ValueOf(slot)));
  }
  return fmt::format("{}", fmt::join(cells, ","));
}

std::string CsvHeader(MetricEvent event) {
  std::vector<std::string> names;
  for (const MetricField& field : MetricFields()) {
    if (field.event == event) names.push_back(CsvCell(field.name));
  }
  return fmt::format("{}", fmt::join(names, ","));
}

std::vector<std::pair<std::string_view, double>> MetricLine::Scalars() const {
  std::vector<std::pair<std::string_view, double>> scalars;
  for (const Slot& slot : slots_) {
    if (slot.field->tag.empty()) continue;
    std::visit(
        [&]<typename T>(const T& value) {
          if constexpr (std::is_arithmetic_v<T>) {
            scalars.emplace_back(slot.field->tag, static_cast<double>(value));
          }
        },
        slot.value);
  }
  return scalars;
}

}  // namespace zeroplan
