// The measured runs of tests/data/runtimes/deepspeed_runs.jsonl, and what is predicted for each.
#pragma once

#include <string>
#include <vector>

#include "planner/runtimes/deepspeed.h"

namespace zeroplan {

struct DeepSpeedRow {
  DeepSpeedRun run;
  std::string label;  // "gpt2-xl, 8 GPUs, stage 2, ..."
  std::string group;  // of the context's constants: "1 GPU", "several, stages 0 to 2", ...
  // GiB; 0: not known.
  double after_init = 0, init_peak = 0, allocated = 0, reserved = 0, device_used = 0, host_rss = 0;
  bool out_of_memory = false;  // it did not run: no figures
  RuntimeFootprint predicted;

  // The driver was asked after the allocator had given memory back, so its figure is no peak.
  bool gave_back() const { return device_used < reserved; }
};

std::vector<DeepSpeedRow> LoadDeepSpeedRows();

inline double Gib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// The tables of docs/runtimes.md.
std::string ValidationTable(const std::vector<DeepSpeedRow>& rows);

}  // namespace zeroplan
