// Runs that others published, one JSON object a line (docs/runtimes.md, "Runs as rows"), and what
// is predicted for each, as a request that asks for it is answered.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "planner/estimate/estimate.h"
#include "planner/request/resolved.h"

namespace zeroplan {

struct PublishedRow {
  std::string id, framework, trust;
  std::string gpu;  // "A100 SXM 80 GB"
  bool ran = true;  // else it ran out of memory
  // Of the run; unset: not published.
  std::optional<double> step_seconds, allocated_gib, reserved_gib, device_gib;
  int64_t seq_len = 0;
  std::map<std::string, std::string> leave_out;  // "fit", "memory", "time": why it is not judged
  std::vector<std::string> notes;                // those of an answer to the request
  std::string refused;  // why the planner does not answer the request; empty: it does
  std::shared_ptr<const ResolvedEstimate> resolved;
  double attention_speed = 1;

  bool Judged(const std::string& what) const { return !leave_out.contains(what); }
};

// Of a file of the source tree. Throws Error(kUsage) naming file, line and key.
std::vector<PublishedRow> LoadPublishedRuns(
    const std::string& file = "tests/fixtures/published_runs.jsonl");

// Unset where the planner refuses the request; `*why` says so then.
std::optional<ChoiceEstimate> Predict(const PublishedRow& row, std::string* why);

}  // namespace zeroplan
