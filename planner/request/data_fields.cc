#include "planner/request/data_fields.h"

#include <fmt/format.h>

#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/families/adapter_config.h"
#include "planner/request/parse.h"

namespace zeroplan {
namespace {

// The first given field that needs ⟦data⟧; "" if there is none.
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

// Follows SettlePacking of train.
Packing PackingOf(const DataUse& use, bool has_mask, Assumptions& assumptions) {
  if (!has_mask || use.joins) return Packing::kStream;
  if (!use.fixed_rows) return Packing::kOff;
  const std::string plain = PlainWithinDocuments(use.model, use.setup, use.gpu);
  if (plain.empty()) return Packing::kDocuments;
  assumptions.notes.push_back(
      fmt::format("Packing: off, one conversation a sequence, padded, as {}: packed, its attention "
                  "would run on plain kernels.",
                  plain));
  return Packing::kOff;
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
             fields.train_on, OneOf(kWords<TrainOn>));
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

void CheckData(const Request& request) {
  const GoalFields& goal = request.goal;
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
  if (!data.read) {
    ThrowUsage(
        "⟦data⟧: this build reads no data, as it was built without what trains "
        "(ZEROPLAN_EXECUTOR=OFF); give ⟦tokens⟧, or build that too");
  }
}

void CheckData(const PlanRequest& request) {
  CheckData(request.common);
  if (!request.common.goal.data.given()) return;
  if (request.largest) {
    ThrowUsage(
        "⟦largest⟧: is not allowed with ⟦data⟧, which is counted for one model and sequence; leave "
        "one of the two out");
  }
  if (request.config_for == ConfigFormat::kTorchtitan &&
      request.common.settings.packing == Packing::kOff) {
    ThrowUsage(
        "⟦packing⟧: off is not allowed with ⟦for⟧ torchtitan, which joins documents and cuts them; "
        "use stream, or leave it out");
  }
}

DataReader ReadingOnce(DataReader read) {
  struct Kept {
    std::string folder;
    int64_t vocab = 0;
    std::shared_ptr<const DataCount> count;
    std::exception_ptr failed;
  };
  return [read = std::move(read), kept = std::make_shared<std::optional<Kept>>()](
             const DataFields& data, const std::string& folder, int64_t vocab) {
    if (!*kept || (*kept)->folder != folder || (*kept)->vocab != vocab) {
      Kept now{folder, vocab, nullptr, nullptr};
      try {
        now.count = read(data, folder, vocab);
      } catch (const Error& error) {
        if (error.code() != ExitCode::kUsage) throw;
        now.failed = std::current_exception();
      }
      *kept = std::move(now);
    }
    if ((*kept)->failed) std::rethrow_exception((*kept)->failed);
    return (*kept)->count;
  };
}

void SettleData(const DataUse& use, Request& request, Assumptions& assumptions) {
  DataFields& data = request.goal.data;
  if (!data.given() || data.counted != nullptr) return;
  const std::string folder =
      data.tokenizer.empty()
          ? TokenizerFolder(FolderOfModel(request.model), request.model.adapter).string()
          : data.tokenizer;
  data.counted = data.read(data, folder, use.model.vocab);
  if (use.fixed_rows && !data.tokenizer.empty()) {
    assumptions.notes.push_back(
        fmt::format("Tokens are counted by {}. 'train' makes them by the tokenizer beside the "
                    "model, so give it a file of these: 'zeroplan data tokenize'.",
                    data.tokenizer));
  }
  Given<Packing>& packing = request.settings.packing;
  data.packing = packing ? *packing : PackingOf(use, data.counted->has_mask(), assumptions);
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

}  // namespace zeroplan
