#include "planner/request/data_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"
#include "planner/request/parse.h"
#include "planner/request/resolved.h"

namespace zeroplan {
namespace {

// The first field that says something of data; "" for none.
std::string_view FirstOfData(const DataFields& data) {
  const RecordFields& records = data.records;
  if (data.epochs) return "⟦epochs⟧";
  if (!data.tokenizer.empty()) return "⟦tokenizer⟧";
  if (!records.map.empty()) return "⟦map⟧";
  if (!records.text_field.empty()) return "⟦text_field⟧";
  if (records.train_on) return "⟦train_on⟧";
  if (records.skip_bad) return "⟦skip_bad⟧";
  if (records.no_special_tokens) return "⟦no_special_tokens⟧";
  return data.truncate ? "⟦truncate⟧" : "";
}

void CheckData(const PlanRequest& request) {
  const GoalFields& goal = request.common.goal;
  const DataFields& data = goal.data;
  if (!data.given()) {
    const std::string_view field = FirstOfData(data);
    if (!field.empty()) {
      ThrowUsage("{}: says how ⟦data⟧ is trained on; add ⟦data⟧ FILE, or leave it out", field);
    }
    return;
  }
  if (goal.tokens) {
    ThrowUsage(
        "⟦tokens⟧: {} is not allowed with ⟦data⟧, whose tokens are counted; use ⟦epochs⟧ for a "
        "longer run, or leave one of the two out",
        goal.tokens.text);
  }
  if (request.largest) {
    ThrowUsage(
        "⟦largest⟧: is not allowed with ⟦data⟧, which is counted for one model and sequence; leave "
        "one of the two out");
  }
  if (request.config_for == ConfigFormat::kTorchtitan && request.common.packing == Packing::kOff) {
    ThrowUsage(
        "⟦packing⟧: off is not allowed with ⟦for⟧ torchtitan, which joins documents and cuts them; "
        "use stream, or leave it out");
  }
  if (!data.read) {
    ThrowUsage(
        "⟦data⟧: the library reads no data; use 'zeroplan plan --data' (with --format json), or "
        "give ⟦tokens⟧");
  }
}

// As SettlePacking of train has it.
Packing PackingOf(const ResolvedPlan& plan, bool has_mask, Assumptions& assumptions) {
  // torchtitan joins documents and cuts them into rows.
  if (!has_mask || plan.asked().config_for == ConfigFormat::kTorchtitan) return Packing::kStream;
  const SearchInputs& inputs = plan.inputs();
  if (!inputs.runtime->has_programs()) return Packing::kOff;
  const std::string plain = PlainWithinDocuments(inputs.model, inputs.base, plan.hardware().gpu);
  if (plain.empty()) return Packing::kDocuments;
  assumptions.notes.push_back(
      fmt::format("Packing: off, one conversation a sequence, padded, as {}: packed, its attention "
                  "would run on plain kernels.",
                  plain));
  return Packing::kOff;
}

std::string CutText(const SeqLenProposal& of) {
  if (of.cut_documents == 0) return "none";
  return fmt::format("{} % of them, with {} % of all tokens", FormatPercent(of.cut_documents),
                     FormatPercent(of.cut_tokens));
}

// Where another length than the plan's had better be trained with, of those that the model was made
// for.
std::string ProposalText(const DataFacts& facts, int64_t positions) {
  if (facts.packing == Packing::kStream) return "";  // cut anywhere
  const SeqLenProposal now = CutsOf(facts.lengths, facts.fixed_rows, facts.seq_len);
  const SeqLenProposal better = ProposeSeqLen(facts.lengths, facts.fixed_rows);
  // Where documents are packed, or rows as long as their longest, a shorter one gains nothing; else
  // one of up to twice the length is near enough.
  const bool padded = facts.packing == Packing::kOff && facts.fixed_rows;
  const bool shorter = padded && 2 * better.seq_len <= facts.seq_len;
  if (now.cut_documents <= kMostCut && !shorter) return "";
  if (better.seq_len > positions) {
    if (facts.seq_len >= positions) return "";
    return fmt::format(
        "⟦seq_len⟧ {}, the longest that the model was made for, cuts {}; {} cuts {}.", positions,
        CutText(CutsOf(facts.lengths, facts.fixed_rows, positions)), facts.seq_len, CutText(now));
  }
  return fmt::format(
      "⟦seq_len⟧ {} is the least multiple of {} that cuts at most {:.0f} % of the documents: {}. "
      "{} cuts {}{}.",
      better.seq_len, kSeqLenStep, 100 * kMostCut, CutText(better), facts.seq_len, CutText(now),
      shorter ? ", and has more padding" : "");
}

// The memory and time of batches whose documents differ.
std::string LongestBatchText(const DataFacts& facts, const BatchSpec& batch) {
  if (facts.fixed_rows) {
    return "Every batch takes the memory and time that are planned, whatever lies in it: a "
           "program's sequences are all of one length.";
  }
  const int64_t rows = batch.micro_batch;
  if (facts.packing == Packing::kStream) {
    return fmt::format("Every micro-batch is {} x {} tokens, where the texts are joined and cut.",
                       rows, facts.seq_len);
  }
  const auto most = static_cast<uint64_t>(facts.seq_len);
  const uint64_t longest = std::min(facts.lengths.AtShare(1), most);
  const double mean = facts.lengths.MeanLongestOf(static_cast<uint64_t>(rows), most);
  return fmt::format(
      "Padded to its longest document, a micro-batch has at most {} x {} tokens, and {} x {:.0f} "
      "on "
      "average, {:.0f} % of it padding; memory is planned for {} x {}. Steps are timed at that "
      "length too: shorter ones take less.",
      rows, longest, rows, mean, 100 * (1 - facts.lengths.MeanUpTo(most) / mean), rows,
      facts.seq_len);
}

}  // namespace

void AddRecordFields(FieldSink& sink, const char* group, RecordFields& fields) {
  sink.Text({group, "⟦map⟧", "MEMBER=NAME,...",
             "What records' members are called: text=content, prompt=question,completion=answer, "
             "messages=dialog, instruction=task,output=reply (default: as the first record has "
             "them)"},
            fields.map);
  sink.Text({group, "⟦text_field⟧", "NAME",
             "Member of each record that holds its text; the same as ⟦map⟧ text=NAME"},
            fields.text_field);
  sink.Value({group, "⟦train_on⟧", "answers|all",
              "What of records counts in the loss: answers (completions, and what the assistant "
              "says; a text as a whole) or all (default answers)"},
             fields.train_on, WordIn<TrainOn>({"answers", "all"}));
  sink.Value({group, "⟦skip_bad⟧", "COUNT",
              "Leave out so many records that cannot be read, and name them (default 0: the "
              "first one ends it)"},
             fields.skip_bad, WholeIn<int64_t>(0, INT64_MAX));
  sink.Flag(group, "⟦no_special_tokens⟧",
            "Add no special tokens around texts but the one that ends them (default: as the "
            "tokenizer does, such as one that begins them)",
            fields.no_special_tokens);
}

void AddDataFields(FieldSink& sink, DataFields& fields) {
  const char* group = "Data";
  sink.Texts({.group = group,
              .name = "⟦data⟧",
              .type = "PATH",
              .help = "What is trained on, as train's ⟦data⟧: its documents and their lengths are "
                      "counted, and steps, hours and price are of it, in place of ⟦tokens⟧",
              .path = {PathRole::Use::kReadBelow}},
             fields.paths);
  sink.Value({group, "⟦epochs⟧", "NUMBER",
              "How many times ⟦data⟧ is trained on; fractions are allowed (default 1)"},
             fields.epochs, ParseEpochs);
  sink.Text({group, "⟦tokenizer⟧", "DIR|FILE",
             "Folder with the tokenizer.json that makes tokens of ⟦data⟧, or that file (default: "
             "the folder of ⟦model⟧)"},
            fields.tokenizer);
  AddRecordFields(sink, group, fields.records);
  sink.Flag(group, "⟦truncate⟧",
            "With ⟦packing⟧ documents or off: as train's, of a document longer than a sequence "
            "train on the first ⟦seq_len⟧ tokens",
            fields.truncate);
}

void ReadData(PlanRequest& request, Assumptions& assumptions) {
  CheckData(request);
  DataFields& data = request.common.goal.data;
  if (!data.given()) return;
  PlanRequest one = request;  // what methods and machines have in common
  one.compared.reset();
  if (!one.machines.hw.empty()) one.common.hardware.profile = one.machines.hw.front();
  one.machines = {};
  if (request.machines.given()) {
    BatchFields& batch = one.common.batch;  // the rows' own, and so are their GPUs
    batch.micro_batch.reset();
    batch.grad_accum.reset();
    batch.global_batch.reset();
    batch.global_batch_tokens.reset();
  }
  Assumptions unused;
  const ResolvedPlan plan(one, unused);
  assumptions.logged = assumptions.logged || unused.logged;
  const SearchInputs& inputs = plan.inputs();
  const std::string folder =
      data.tokenizer.empty() ? FolderOfModel(request.common.model) : data.tokenizer;
  data.counted = data.read(data, folder, inputs.model.vocab);
  if (request.machines.given() && !request.common.packing) return;
  SettlePacking(plan, request, assumptions);
}

void SettlePacking(const ResolvedPlan& plan, PlanRequest& request, Assumptions& assumptions) {
  DataFields& data = request.common.goal.data;
  Given<Packing>& packing = request.common.packing;
  data.packing = packing ? *packing : PackingOf(plan, data.counted->has_mask(), assumptions);
  if (data.truncate && data.packing == Packing::kStream) {
    ThrowUsage("⟦truncate⟧: goes with ⟦packing⟧ documents or off, and it is stream here");
  }
  if (packing || data.packing == Packing::kStream) return;
  packing.emplace(data.packing);
  packing.text = PackingName(data.packing);
  assumptions.assumed.push_back(fmt::format("⟦packing⟧ {}", packing.text));
}

DataFacts FactsOf(const DataFields& data, const BatchSpec& batch, bool fixed_rows) {
  ZEROPLAN_CHECK(data.counted != nullptr, "data that was not read");
  return data.counted->As({batch.seq_len, batch.global_batch(), data.packing, fixed_rows});
}

std::vector<std::string> DataParagraphs(const RunGoal& goal, const BatchSpec& batch,
                                        const ModelSpec& model) {
  ZEROPLAN_CHECK(goal.data.has_value(), "no data");
  const DataFacts& facts = *goal.data;
  const int64_t steps = CostOf(goal, batch, 0).steps;
  std::vector<std::string> paragraphs = {"Data: " + DataText(facts)};
  if (std::string better = ProposalText(facts, model.positions); !better.empty()) {
    paragraphs.push_back(std::move(better));
  }
  paragraphs.push_back(fmt::format("{} {}", EpochText(facts, batch.global_batch(), steps),
                                   LongestBatchText(facts, batch)));
  return paragraphs;
}

}  // namespace zeroplan
