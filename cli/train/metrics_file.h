// The metrics of `train --metrics`: one JSON object a line, schema zeroplan.metrics/1.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

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

class MetricsFile {
 public:
  // `resume` appends to what is there, else the file starts empty. Nothing is touched before Start:
  // a run that is refused leaves the file as it was.
  MetricsFile(std::string path, bool resume) : path_(std::move(path)), resume_(resume) {}

  // Each writes one line and flushes it, so that a killed run keeps what it had. What the backend
  // cannot know is null. A line that cannot be written ends the file with a warning, not the run.
  // Throws Error(kRuntime) naming the file if it cannot be opened.
  void Start(const RunFacts& facts);
  void Step(const StepReport& report);
  void Validation(int64_t step, double loss);
  void Saved(const SaveReport& report);
  void End(const RunReport& report, const Program& program);

 private:
  void Open();
  void WriteLine(const std::string& line);
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  bool resume_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace zeroplan
