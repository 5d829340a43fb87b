// Training data in a question: its fields, and what is counted of it before anything is planned.
#pragma once

#include "core/model/model_spec.h"
#include "hwprofiles/profile.h"
#include "planner/estimate/estimate.h"
#include "planner/request/fields.h"
#include "planner/request/request.h"
#include "planner/request/resolve.h"

namespace zeroplan {

void AddDataFields(FieldSink& sink, DataFields& fields);
// How records are taken, in the group `group`: train and data tokenize have these alone.
void AddRecordFields(FieldSink& sink, const char* group, RecordFields& fields);

// Throws Error(kUsage) for fields that want ⟦data⟧, that it decides, or that do not go with it, and
// where this program reads none. Reads nothing.
void CheckData(const Request& request);
void CheckData(const PlanRequest& request);

// `read`, which keeps what it read last: of one question, whose fields stay as they are.
DataReader ReadingOnce(DataReader read);

// What ⟦data⟧ is trained on with.
struct DataUse {
  const ModelSpec& model;
  const TrainSetup& setup;
  const GpuProfile& gpu;
  bool fixed_rows = true;  // as SequencesAsked
  bool joins = false;      // a program that joins documents and cuts them into rows: torchtitan
};

// Reads ⟦data⟧ where it is given and was not read, and settles how its documents become sequences:
// as train does, by ⟦packing⟧, which is set where conversations are packed and nobody said so; for
// another runtime conversations are padded, and texts a stream. Throws Error(kUsage) as reading
// does, and for what the packing does not allow. REQUIRES: CheckData passed.
void SettleData(const DataUse& use, Request& request, Assumptions& assumptions);

// What `data`, which was read, comes to in such batches. REQUIRES: data.counted.
DataFacts FactsOf(const DataFields& data, const BatchSpec& batch, bool fixed_rows);

}  // namespace zeroplan
