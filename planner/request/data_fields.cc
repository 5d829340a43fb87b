#include "planner/request/data_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/families/adapter_config.h"
#include "core/lowering/lower.h"
#include "cost_models/cost_model.h"
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

// How documents become sequences, and what that costs.
struct Layout {
  Packing packing = Packing::kStream;
  int64_t seq_len = 0;
  double epoch_seconds = 0;
};

// LowerOptions::visible_keys of a packing; 0 where it is not documents.
double VisibleKeysOf(const DataFacts& facts) {
  return facts.packing == Packing::kDocuments ? MeanVisibleKeys(facts) : 0;
}

// The tokens of the micro-steps by which layouts are compared.
constexpr int64_t kComparedTokens = 4096;

// Times layouts on one GPU of the machine, whatever memory they need: all of a step but matmuls and
// attention is alike in two layouts of as many tokens.
class LayoutTimes {
 public:
  LayoutTimes(const DataUse& use, const Request& request)
      : model_(use.model), gpu_(use.hardware.gpu), costs_(use.hardware, ClusterShape{1, 1}) {
    Assumptions unsaid;
    if (request.config.given()) {
      const TrainSetup asked = ResolveConfig(request, model_, use.hardware, use.gpus, unsaid);
      setup_.precision = asked.precision;
      setup_.deterministic = asked.deterministic;
    } else {
      setup_.precision =
          ResolvePrecision(request.settings, use.hardware, DefaultDtype(use.hardware), unsaid);
    }
    setup_.deterministic = setup_.deterministic || request.settings.deterministic;
    lower_ = GpuLowerOptions(model_, setup_.precision.dtype, use.hardware.gpu);
    lower_.checkpoints = false;
    cluster_.gpus = cluster_.gpus_per_node = 1;
  }

  // An epoch of sequences like those of `facts`.
  double SecondsOf(const DataFacts& facts) {
    TrainSetup setup = setup_;
    setup.batch.seq_len = facts.seq_len;
    setup.batch.micro_batch = std::max<int64_t>(1, kComparedTokens / facts.seq_len);
    LowerOptions lower = lower_;
    lower.document_borders = facts.packing == Packing::kDocuments;
    SetVisibleKeys(VisibleKeysOf(facts), model_, gpu_, lower);
    const TimeEstimate time = EstimateProgram(Lower(model_, setup, lower), cluster_, &costs_).time;
    const uint64_t sequences = std::max<uint64_t>(facts.epoch.sequences, 1);
    return *time.total_seconds / static_cast<double>(setup.batch.micro_batch) *
           static_cast<double>(sequences);
  }

 private:
  const ModelSpec& model_;
  const GpuProfile& gpu_;
  CostModel costs_;
  Cluster cluster_;
  TrainSetup setup_;
  LowerOptions lower_;
};

// The lengths that are compared: `usual`, and shorter ones that cut no document of `longest` tokens
// that it does not cut, each twice the one before.
std::vector<int64_t> LengthsToCompare(uint64_t longest, int64_t usual) {
  std::vector<int64_t> lengths = {usual};
  const uint64_t positions = longest > 1 ? longest - 1 : 1;  // the last token is a target alone
  for (uint64_t length = AlignUp(positions, static_cast<uint64_t>(kSeqLenStep));
       length < static_cast<uint64_t>(usual); length *= 2) {
    lengths.push_back(static_cast<int64_t>(length));
  }
  return lengths;
}

std::string PackingNote(const Layout& best, const Layout& other) {
  const double times = other.epoch_seconds / best.epoch_seconds;
  const bool packs = best.packing == Packing::kDocuments;
  return fmt::format(
      "Packing: {}, in sequences of {} tokens. {}, in sequences of {}, an epoch is predicted to "
      "take {:.2g} times as long. ⟦packing⟧ and ⟦seq_len⟧ set it.",
      packs ? "documents" : "off, one conversation a sequence, padded", best.seq_len,
      packs ? "Padded" : "Packed", other.seq_len, times);
}

// The layout of conversations for zeroplan's own executor.
Layout FastestLayout(const DataUse& use, const Request& request, int64_t usual,
                     Assumptions& assumptions) {
  const DataCount& count = *request.goal.data.counted;
  const Given<Packing>& packing = request.settings.packing;
  const bool fixed_length = request.settings.seq_len.has_value();
  std::vector<Packing> packings = {Packing::kDocuments, Packing::kOff};
  if (packing) packings = {*packing};
  const std::vector<int64_t> lengths =
      fixed_length ? std::vector{usual} : LengthsToCompare(count.longest(), usual);
  if (packings.size() * lengths.size() == 1) return {packings.front(), usual};
  LayoutTimes times(use, request);
  std::map<Packing, Layout> fastest;
  std::optional<Layout> usual_packed;
  for (const int64_t length : lengths) {
    for (const Packing how : packings) {
      Layout layout{how, length};
      try {
        layout.epoch_seconds = times.SecondsOf(count.As({length, 1, how, true}));
      } catch (const Error& error) {
        // The data are less than a sequence of this length.
        if (error.code() != ExitCode::kUsage) throw;
        continue;
      }
      if (length == usual && how == packings.front()) usual_packed = layout;
      const auto [it, first] = fastest.try_emplace(how, layout);
      if (!first && layout.epoch_seconds < it->second.epoch_seconds) it->second = layout;
    }
  }
  if (fastest.empty()) return {packings.front(), usual};
  Layout best = std::min_element(fastest.begin(), fastest.end(), [](const auto& a, const auto& b) {
                  return a.second.epoch_seconds < b.second.epoch_seconds;
                })->second;
  if (usual_packed && usual_packed->epoch_seconds <= (1 + kDefaultsLead) * best.epoch_seconds) {
    best = *usual_packed;
  }
  for (const auto& [how, layout] : fastest) {
    if (how == best.packing) continue;
    assumptions.notes.push_back(PackingNote(best, layout));
  }
  return best;
}

// The layout of ⟦data⟧, which was read.
Layout LayoutOf(const DataUse& use, const Request& request, Assumptions& assumptions) {
  const DataCount& count = *request.goal.data.counted;
  const Given<Packing>& packing = request.settings.packing;
  Assumptions unsaid;
  const int64_t usual = ResolveSeqLen(request, use.model, unsaid);
  if (packing.value_or(Packing::kOff) == Packing::kStream) return {Packing::kStream, usual};
  if (!packing && (!count.has_mask() || use.joins)) return {Packing::kStream, usual};
  if (request.runtime.of().facts().fixed_rows) {
    return FastestLayout(use, request, usual, assumptions);
  }
  if (request.settings.seq_len) return {Packing::kOff, usual};
  const uint64_t whole = AlignUp(count.longest(), static_cast<uint64_t>(kSeqLenStep));
  return {Packing::kOff, static_cast<int64_t>(std::min(whole, static_cast<uint64_t>(usual)))};
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
  if (request.runtime.of().facts().fixed_rows && !data.tokenizer.empty()) {
    assumptions.notes.push_back(
        fmt::format("Tokens are counted by {}. 'train' makes them by the tokenizer beside the "
                    "model, so give it a file of these: 'zeroplan data tokenize'.",
                    data.tokenizer));
  }
  const Layout layout = LayoutOf(use, request, assumptions);
  data.packing = layout.packing;
  if (data.truncate && data.packing == Packing::kStream) {
    ThrowUsage("⟦truncate⟧: goes with ⟦packing⟧ documents or off, and it is stream here");
  }
  if (data.packing == Packing::kStream) return;
  const bool fixed_rows = request.runtime.of().facts().fixed_rows;
  if (data.packing == Packing::kDocuments && fixed_rows) {
    data.visible_keys = VisibleKeysOf(data.counted->As({layout.seq_len, 1, data.packing, true}));
  }
  Given<Packing>& packing = request.settings.packing;
  if (!packing) {
    SetPacking(packing, layout.packing);
    assumptions.assumed.push_back(fmt::format("⟦packing⟧ {}", packing.text));
  }
  if (!request.settings.seq_len) {
    Set(request.settings.seq_len, layout.seq_len);
    assumptions.assumed.push_back(fmt::format("⟦seq_len⟧ {}", layout.seq_len));
  }
}

DataFacts FactsOf(const DataFields& data, const BatchSpec& batch, bool fixed_rows) {
  ZEROPLAN_CHECK(data.counted != nullptr, "data that was not read");
  return data.counted->As({batch.seq_len, batch.global_batch(), data.packing, fixed_rows});
}

}  // namespace zeroplan
