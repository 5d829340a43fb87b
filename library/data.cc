#include "library/data.h"

#include <string>

#include "planner/request/data_fields.h"
#ifdef ZEROPLAN_WITH_READER
#include "reader/data_reader.h"
#endif

namespace zeroplan {
namespace {

v1::EpochSequences SequencesOf(const EpochRows& epoch, int64_t seq_len) {
  return {epoch.sequences, epoch.PaddingShare(seq_len)};
}

v1::SequenceCuts CutsOf(const SeqLenProposal& from) {
  return {from.seq_len, from.cut_documents, from.cut_tokens};
}

}  // namespace

DataReader ReaderOfLibrary() {
#ifdef ZEROPLAN_WITH_READER
  return ReadingOnce([](const DataFields& fields, const std::string& folder, int64_t vocab) {
    return CountData(fields, folder, vocab, /*says=*/false);
  });
#else
  return nullptr;
#endif
}

std::optional<v1::Data> DataOf(const RunGoal& goal, const BatchSpec& batch) {
  if (!goal.data) return std::nullopt;
  const DataFacts& facts = *goal.data;
  const DocumentLengths& lengths = facts.lengths;
  const MicroBatchTokens micro_batch = MicroBatchOf(facts, batch.micro_batch);
  v1::Data data;
  data.documents = lengths.documents();
  data.tokens = lengths.tokens();
  data.counted_tokens = facts.counted.value_or(data.tokens);
  data.document_tokens = {lengths.AtShare(0),    lengths.AtShare(0.5),  lengths.mean(),
                          lengths.AtShare(0.95), lengths.AtShare(0.99), lengths.AtShare(1)};
  data.seq_len = facts.seq_len;
  data.packing = PackingName(facts.packing);
  data.held_back = facts.held_back;
  data.longer_documents = facts.longer;
  data.left_out_tokens = facts.left_out;
  data.uncounted_documents = facts.unheard;
  data.single_token_documents = facts.single;
  data.epoch = {facts.epoch.sequences, micro_batch.padding};
  if (facts.packed) data.packed = SequencesOf(*facts.packed, facts.seq_len);
  if (facts.padded) data.one_a_sequence = SequencesOf(*facts.padded, facts.seq_len);
  if (facts.packing != Packing::kStream) {
    data.trained_documents = facts.trained_documents;
    data.cuts = CutsOf(zeroplan::CutsOf(lengths, facts.fixed_rows, facts.seq_len));
    data.proposal = CutsOf(ProposeSeqLen(lengths, facts.fixed_rows));
  }
  data.sequences_per_step = batch.global_batch();
  data.epochs = goal.epochs;
  data.steps = CostOf(goal, batch, 0).steps;
  data.micro_batch_tokens = {micro_batch.planned, micro_batch.largest, micro_batch.mean};
  return data;
}

}  // namespace zeroplan
