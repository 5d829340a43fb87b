// Why a run died or was slow: its log compared with its prediction, and changes that would help.
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

// The request: fields that override the log's.
struct WhyRequest {
  std::string log;  // a file; "-": stdin
  Request common;
  std::map<std::string, std::string> given;  // by field, as given
  std::string add;                           // a file of runs, to which this run is added
  std::string id;                            // name of that row
};

// The fields of a run. Records the given ones in `request.given`.
void AddWhyFields(FieldSink& sink, WhyRequest& request);

// A field that the log filled in.
struct UsedFact {
  std::string field, text, from;
  int64_t line = 0;
};

// A field that a prediction needs and neither the log nor the options set.
struct MissingField {
  std::string field;  // "⟦seq_len⟧"
  std::string what;   // "the length of sequences"
  std::string hint;   // related facts of the log; "" for none
};

// A change after which the run fits: alone, or together with others if no single change suffices.
struct WhyChange {
  std::string options;    // "⟦micro_batch⟧ 2 ⟦grad_accum⟧ 8"
  std::string elsewhere;  // its name in the program that ran: "gradient_checkpointing=True"
  ChoiceEstimate estimate;
};

// The prediction for the run.
struct WhyPrediction {
  std::unique_ptr<ResolvedEstimate> resolved;
  ChoiceEstimate choice;
  std::string margin;  // Runtime::MarginText
  double largest_time_error = 0;
  // `gpu_bytes`: memory of the log's GPU that this process may use. `needed`: the least that it
  // needed when it died: tensors and the failed request.
  uint64_t gpu_bytes = 0;
  std::optional<uint64_t> host_bytes;  // a host's, without the system's reserve; unset: unknown
  std::optional<uint64_t> needed;
  uint64_t beyond = 0;  // the part of `needed` that was not predicted
};

struct WhyAnswer {
  RunLog log;
  std::vector<UsedFact> used;
  std::vector<std::string> conflicts;  // options that contradict the log
  std::vector<MissingField> missing;
  std::vector<std::string> assumed;  // defaults that neither sets
  std::vector<std::string> notes;
  std::optional<WhyPrediction> prediction;
  std::string why_no_prediction;  // set if nothing is missing
  std::vector<std::string> findings;
  std::vector<WhyChange> changes;  // the fastest first
  bool changes_sought = false;     // if not, an empty list has no meaning
  bool single_changes = true;      // each change suffices alone; else they are needed together
  bool times_known = false;        // the profile is of the run's GPUs
  std::string added;               // the file and row that --add wrote
};

// Throws Error(kUsage) if the log has nothing of a run, or a field is wrong.
WhyAnswer FindWhy(const WhyRequest& request);

// The cause, the changes that help and the command that tries one, on one screen. Without a
// prediction: as WhyText. `next`: the command line that asks about the first change.
std::string WhyScreen(const WhyAnswer& answer, const std::string& next, size_t columns,
                      bool colour);
// Text for people; JSON of schema zeroplan.why/1.
std::string WhyText(const WhyAnswer& answer, size_t columns);
std::string WhyJson(const WhyAnswer& answer);
// The reason why there is no prediction: "train.log does not say ...; give ⟦model⟧, the model", or
// a value that the program's model refuses; "" if there is one.
std::string WhyIncomplete(const WhyAnswer& answer);

}  // namespace zeroplan
