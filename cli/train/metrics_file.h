// What `train` writes of a run for programs: `--metrics`, one JSON object a line, and
// `--tensorboard`, event files. The fields of both are planner/runs/metric_fields.h's.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cli/train/metric_line.h"
#include "cli/train/tensorboard_log.h"
#include "core/lowering/lower.h"
#include "core/program/program.h"
#include "cost_models/memory_walk.h"
#include "executor/train/trainer.h"
#include "planner/runs/run_prediction.h"

namespace zeroplan {

// What is known of a run before it starts.
struct RunFacts {
  const Program& program;
  LowerOptions lower;  // what the program was lowered with
  int ranks_per_host = 1;
  MemoryReport memory;                      // of one rank
  std::optional<RunPrediction> prediction;  // of a run on GPUs
};

// Where to; empty: nowhere.
struct MetricsPlaces {
  std::string file;                // of JSON lines
  std::string tensorboard_folder;  // of event files
  bool resume = false;             // goes on after what is there, else the file starts empty
};

class MetricsFile {
 public:
  // Nothing is touched before Start: a run that is refused leaves the file as it was.
  explicit MetricsFile(MetricsPlaces places) : places_(std::move(places)) {}

  // Each writes one line and flushes it, so that a killed run keeps what it had. What the backend
  // cannot know is null. A line that cannot be written ends its file with a warning, not the run.
  // `done`: steps before a resume. Throws Error(kRuntime) naming the file if it cannot be opened.
  void Start(const RunFacts& facts, int64_t done);
  void Step(const StepReport& report);
  void Validation(int64_t step, double loss);
  void Saved(const SaveReport& report);
  void End(const RunReport& report, const Program& program);

 private:
  void Open();
  // An event that is no step's, or of `step`.
  void Write(const MetricLine& line, std::optional<int64_t> step = std::nullopt);
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  MetricsPlaces places_;
  std::unique_ptr<std::FILE, Close> file_;
  std::optional<TensorboardLog> tensorboard_;
};

}  // namespace zeroplan
