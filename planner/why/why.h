// Why a run died or was slow: its log beside what is predicted of it, and what would change it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "planner/estimate/estimate.h"
#include "planner/request/fields.h"
#include "planner/request/resolved.h"
#include "planner/why/run_log.h"

namespace zeroplan {

// What was asked: fields that win over what a log says.
struct WhyRequest {
  std::string log;  // a file; "-": stdin
  Request common;
  std::map<std::string, std::string> given;  // by field, as given
  std::string add;                           // a file of runs to add this one to
  std::string id;                            // of that row
};

// The fields of a run. What is given is noted in `request.given`.
void AddWhyFields(FieldSink& sink, WhyRequest& request);

// A field that the log filled in.
struct UsedFact {
  std::string field, text, from;
  int64_t line = 0;
};

// A field that neither the log nor the options say, and that a prediction takes.
struct MissingField {
  std::string field;  // "⟦seq_len⟧"
  std::string what;   // "the length of sequences"
  std::string hint;   // what the log has of it instead; "" for nothing
};

// A change after which the run fits, each alone unless nothing alone does.
struct WhyChange {
  std::string options;  // "⟦micro_batch⟧ 2 ⟦grad_accum⟧ 8"
  std::string
      elsewhere;  // what it is called in the program that ran: "gradient_checkpointing=True"
  ChoiceEstimate estimate;
};

// What is predicted of the run.
struct WhyPrediction {
  std::unique_ptr<ResolvedEstimate> resolved;
  ChoiceEstimate choice;
  std::string margin;  // Runtime::MarginText
  double largest_time_error = 0;
  // Of the GPU that the log says, what this process may take; what it had at the least when it
  // died: tensors and what was wanted.
  uint64_t gpu_bytes = 0;
  std::optional<uint64_t> host_bytes;  // of a host, without what its system keeps; unset: not known
  std::optional<uint64_t> needed;
  uint64_t beyond = 0;  // of `needed`, what was not predicted
};

struct WhyAnswer {
  RunLog log;
  std::vector<UsedFact> used;
  std::vector<std::string> conflicts;  // options that say something else than the log
  std::vector<MissingField> missing;
  std::vector<std::string> assumed;  // defaults that neither says
  std::vector<std::string> notes;
  std::optional<WhyPrediction> prediction;
  std::string why_no_prediction;  // where nothing is missing
  std::vector<std::string> findings;
  std::vector<WhyChange> changes;  // the fastest first
  bool single_changes = true;      // each of them alone; else one of several changes
  bool times_known = false;        // the profile is that of the run's GPUs
  std::string added;               // the file and row that --add wrote
};

// Throws Error(kUsage) where nothing of a run is in the log, or a field is wrong.
WhyAnswer FindWhy(const WhyRequest& request);

// Text for people; JSON of schema zeroplan.why/1.
std::string WhyText(const WhyAnswer& answer, size_t columns);
std::string WhyJson(const WhyAnswer& answer);
// Why there is no prediction: "train.log does not say ...; give ⟦model⟧, the model", or what the
// program's model refuses; "" where there is one.
std::string WhyIncomplete(const WhyAnswer& answer);

}  // namespace zeroplan
