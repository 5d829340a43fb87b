// Training data in a question: its fields, and what is counted of it before anything is planned.
#pragma once

#include <string>
#include <vector>

#include "planner/estimate/estimate.h"
#include "planner/request/fields.h"
#include "planner/request/request.h"
#include "planner/request/resolve.h"

namespace zeroplan {

class ResolvedPlan;

void AddDataFields(FieldSink& sink, DataFields& fields);
// How records are taken, in the group `group`: train and data tokenize have these alone.
void AddRecordFields(FieldSink& sink, const char* group, RecordFields& fields);

// Reads ⟦data⟧ where it is given, and settles how its documents become sequences: as train does, by
// ⟦packing⟧, which is set where conversations are packed and nobody said so; for another runtime
// conversations are padded, and texts a stream. Throws Error(kUsage) for fields that want data, or
// that data decides, for data that this program cannot read, and as reading it throws.
// Of machines that are compared each settles its own (SettlePacking), unless it is said.
void ReadData(PlanRequest& request, Assumptions& assumptions);

// How the documents of data that was read become sequences on the machine of `plan`, which is of
// `request`: sets it there, and says it where nobody said so.
void SettlePacking(const ResolvedPlan& plan, PlanRequest& request, Assumptions& assumptions);

// What `data`, which was read, comes to in such batches. REQUIRES: data.counted.
DataFacts FactsOf(const DataFields& data, const BatchSpec& batch, bool fixed_rows);

// The data's facts, and what they mean for a run in such batches: how long sequences had better be,
// how many steps it takes, what its longest batch is. A paragraph each. REQUIRES: goal.data.
std::vector<std::string> DataParagraphs(const RunGoal& goal, const BatchSpec& batch,
                                        const ModelSpec& model);

}  // namespace zeroplan
