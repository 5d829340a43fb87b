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

// The model and machine that train on ⟦data⟧.
struct DataUse {
  const ModelSpec& model;
  const HardwareProfile& hardware;
  int gpus = 1;
  bool joins = false;  // the program joins documents and cuts them into rows: torchtitan
};

// Reads ⟦data⟧ if it is given and was not read, and decides how its documents become sequences,
// where ⟦packing⟧ and ⟦seq_len⟧ leave it open. It sets the two, and adds them to the assumptions.
//
// Conversations: zeroplan's own executor packs or pads them, in sequences of a length that cuts no
// more than the default length does. It takes the pair of which an epoch is predicted to be
// fastest, on one GPU that has the memory; within kDefaultsLead it keeps the default length, and
// packs. Another runtime pads them, and the length is the longest conversation's. Texts are one
// stream of the default length.
//
// Throws Error(kUsage) as reading does, and for options that the packing does not allow. REQUIRES:
// CheckData passed.
void SettleData(const DataUse& use, Request& request, Assumptions& assumptions);
inline constexpr double kDefaultsLead = 0.03;
// Sets a packing as if the user had typed it.
inline void SetPacking(Given<Packing>& field, Packing packing) {
  field.emplace(packing);
  field.text = PackingName(packing);
}
// Puts into `to` what SettleData settled in `from`.
inline void TakeSettledData(const Request& from, Request& to) {
  to.goal.data = from.goal.data;
  to.settings.packing = from.settings.packing;
  to.settings.seq_len = from.settings.seq_len;
}

// The facts of `data` in such batches. REQUIRES: data.counted.
DataFacts FactsOf(const DataFields& data, const BatchSpec& batch, bool fixed_rows);

}  // namespace zeroplan
