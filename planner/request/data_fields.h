// Training data in a request: its fields, and its facts, which are counted before anything is
// planned.
#pragma once

#include "core/model/model_spec.h"
#include "hwprofiles/profile.h"
#include "planner/estimate/estimate.h"
#include "planner/request/fields.h"
#include "planner/request/request.h"
#include "planner/request/resolve.h"

namespace zeroplan {

void AddDataFields(FieldSink& sink, DataFields& fields);
// Adds the fields that control how records become text, in the help's group `group`. 'train' and
// 'data tokenize' have these fields alone.
void AddRecordFields(FieldSink& sink, const char* group, RecordFields& fields);

// Reads no data. Throws Error(kUsage) for fields that need ⟦data⟧, fields that ⟦data⟧ decides and
// fields that contradict it, and for data in a build that cannot read any.
void CheckData(const Request& request);
void CheckData(const PlanRequest& request);

// Returns a `read` that keeps its last result. REQUIRES: all calls are for one request, whose
// fields do not change.
DataReader ReadingOnce(DataReader read);

// The model, setup and GPU that train on ⟦data⟧.
struct DataUse {
  const ModelSpec& model;
  const TrainSetup& setup;
  const GpuProfile& gpu;
  bool fixed_rows = true;  // as SequencesAsked
  bool joins = false;      // the program joins documents and cuts them into rows: torchtitan
};

// Reads ⟦data⟧ if it is given and was not read, and decides how its documents become sequences. For
// zeroplan's own executor ⟦packing⟧ decides, as in 'train'; if it is not given, this sets it for
// conversations. For another runtime conversations are padded, and texts are one stream. Throws
// Error(kUsage) as reading does, and for options that the packing does not allow. REQUIRES:
// CheckData passed.
void SettleData(const DataUse& use, Request& request, Assumptions& assumptions);

// The facts of `data` in such batches. REQUIRES: data.counted.
DataFacts FactsOf(const DataFields& data, const BatchSpec& batch, bool fixed_rows);

}  // namespace zeroplan
