// The files in which `train` reports a run for programs: `--metrics`, one JSON object a line or a
// row of CSV a step, and `--tensorboard`, event files. The fields of both are those of
// planner/runs/metric_fields.h.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cli/run/train/tensorboard_log.h"
#include "core/lowering/lower.h"
#include "core/program/program.h"
#include "cost_models/memory_walk.h"
#include "executor/train/trainer.h"
#include "planner/request/fields.h"
#include "planner/runs/metric_fields.h"
#include "planner/runs/prediction_table.h"

namespace zeroplan {

// The values of one event of a run, by the names in planner/runs/metric_fields.h.
class MetricLine {
 public:
  explicit MetricLine(MetricEvent event);

  // REQUIRES: the event has a field `name`, and `value` is of its type.
  MetricLine& Set(std::string_view name, bool value) { return Take(name, value); }
  MetricLine& Set(std::string_view name, int value) { return Set(name, int64_t{value}); }
  MetricLine& Set(std::string_view name, int64_t value) { return Take(name, value); }
  MetricLine& Set(std::string_view name, uint64_t value) { return Take(name, value); }
  MetricLine& Set(std::string_view name, double value) { return Take(name, value); }
  // For kObject the value is JSON.
  MetricLine& Set(std::string_view name, std::string value) { return Take(name, std::move(value)); }
  MetricLine& Set(std::string_view name, std::string_view value) {
    return Take(name, std::string(value));
  }
  MetricLine& Set(std::string_view name, const char* value) {
    return Take(name, std::string(value));
  }
  MetricLine& Set(std::string_view name, const SettingValue& value) {
    return std::visit(
        [&]<typename T>(const T& of) -> MetricLine& {
          return std::is_same_v<T, std::monostate> ? Take(name, Value()) : Take(name, Value(of));
        },
        value);
  }
  // Unset: null, an unknown value.
  template <typename T>
  MetricLine& Set(std::string_view name, const std::optional<T>& value) {
    return value ? Set(name, *value) : Take(name, Value());
  }

  // One JSON object without a line break. REQUIRES: every field of the event was set.
  std::string Json() const;

  // The values of one row of CSV, in the order of CsvHeader(event()); null values are empty.
  // REQUIRES: every field of the event was set.
  std::string Csv() const;
  MetricEvent event() const { return event_; }

  // TensorBoard's scalars: tag and number, including infinities and NaN. Unknown values are left
  // out.
  std::vector<std::pair<std::string_view, double>> Scalars() const;

 private:
  using Value = std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string>;
  struct Slot {
    const MetricField* field;
    Value value;
    bool set = false;
  };
  MetricLine& Take(std::string_view name, Value value);
  // REQUIRES: the slot was set.
  const Value& ValueOf(const Slot& slot) const;

  MetricEvent event_;
  std::vector<Slot> slots_;
};

// The names of an event's fields, except for "event" itself: "step,loss,...".
std::string CsvHeader(MetricEvent event);

// The facts of a run before it starts.
struct RunFacts {
  const Program& program;
  LowerOptions lower;  // options that the program was lowered with
  int ranks_per_host = 1;
  MemoryReport memory;                      // one rank's
  std::optional<RunPrediction> prediction;  // set for a run on GPUs
};

// The places to write to; empty: none.
struct MetricsPlaces {
  std::string file;                // JSON lines, or CSV with the suffix .csv
  std::string tensorboard_folder;  // folder of event files
  bool resume = false;             // appends to existing content, else the file starts empty
};

extern const OutputKind kMetricsOut;

// Throws Error(kUsage) if `path` holds metrics and the run does not resume. Throws it too if a
// resumed run cannot append to the CSV there, because its columns differ.
void CheckMetricsFile(const std::string& path, bool resume);

class MetricsFile {
 public:
  // Touches nothing before Start: a refused run leaves the file unchanged.
  explicit MetricsFile(MetricsPlaces places) : places_(std::move(places)) {}

  // Each writes one line and flushes it, so that a killed run keeps its lines. CSV has a header and
  // the lines of Step alone. Values that the backend cannot measure are null, in CSV empty. If a
  // line cannot be written, its file ends with a warning, and the run continues. `done`: steps
  // before a resume. Throws Error(kRuntime) naming the file if it cannot be opened.
  void Start(const RunFacts& facts, int64_t done);
  void Step(const StepReport& report);
  void Validation(int64_t step, double loss);
  void Saved(const SaveReport& report);
  void End(const RunReport& report, const Program& program);

 private:
  void Open();
  // Ends the file with a warning if it cannot be written.
  void WriteLine(std::string text);
  // Writes an event. `step`: set for an event that belongs to a step.
  void Write(const MetricLine& line, std::optional<int64_t> step = std::nullopt);
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  MetricsPlaces places_;
  bool csv_ = false;
  std::unique_ptr<std::FILE, Close> file_;
  std::optional<TensorboardLog> tensorboard_;
};

}  // namespace zeroplan
