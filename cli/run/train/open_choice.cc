#include "cli/run/train/open_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "cli/run/train/train_work.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_section.h"
#include "core/base/json_source.h"
#include "core/base/log.h"
#include "core/base/long_work.h"
#include "core/base/units.h"
#include "core/families/adapter_config.h"
#include "core/model/lora.h"
#include "planner/estimate/choices.h"
#include "planner/report/report_text.h"
#include "planner/request/plan_answer.h"
#include "planner/search/search_space.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {
namespace {

// The assumed network between hosts if neither profile nor options set one.
constexpr const char* kGuessedNetwork = "eth-100";

template <typename T>
bool Contains(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

bool UsesDisk(const TrainSetup& setup) {
  return setup.zero.offload_optimizer.device == OffloadDevice::kNvme ||
         setup.zero.offload_param.device == OffloadDevice::kNvme;
}

bool NamesDisk(const Request& request) {
  const auto names = [](const Given<std::vector<OffloadDevice>>& devices) {
    return devices && Contains(*devices, OffloadDevice::kNvme);
  };
  return names(request.settings.offload_optimizer) || names(request.settings.offload_param) ||
         request.config.given();
}

// The least multiple of `unit` that is at least `wanted`.
int64_t RoundUpTo(int64_t unit, int64_t wanted) { return (wanted + unit - 1) / unit * unit; }

std::string MemoryText(const Plan& plan) {
  return fmt::format("{} of {} a GPU", FormatBytes(plan.choice.footprint.gpu_total()),
                     FormatBytes(plan.cluster.gpu_capacity_bytes));
}

}  // namespace

AskedSettings WithDefaultBatch(AskedSettings fields, const ConfigDocument& config, int ranks,
                               int64_t kept, int64_t seq_len, std::vector<std::string>& notes) {
  const bool global =
      fields.global_batch || fields.global_batch_tokens || config.Says("train_batch_size");
  const bool micro = fields.micro_batch || config.Says("train_micro_batch_size_per_gpu");
  const bool accum = fields.grad_accum || config.Says("gradient_accumulation_steps");
  if (global || (micro && accum)) return fields;
  if (micro) {
    Set<int64_t>(fields.grad_accum, 1);
    return fields;
  }
  if (accum && !fields.grad_accum) {  // DeepSpeed's rule
    Set<int64_t>(fields.micro_batch, 1);
    return fields;
  }
  const int64_t unit = static_cast<int64_t>(ranks) * fields.grad_accum.value_or(1);
  const bool of_run = kept > 0 && kept % unit == 0;
  Set(fields.global_batch, of_run ? kept : RoundUpTo(unit, kDefaultSequences));
  const int64_t sequences = *fields.global_batch;
  notes.push_back(fmt::format("Batch: {} sequences a step ({} tokens), {}; ⟦global_batch⟧ sets it.",
                              sequences, FormatCount(static_cast<uint64_t>(sequences * seq_len)),
                              of_run ? "as in the run to resume" : "as none is given"));
  return fields;
}

int SetNode(ClusterFields& cluster, int ranks, int ranks_per_host) {
  const int per_node = std::gcd(ranks, std::max(1, ranks_per_host));
  Set(cluster.gpus_per_node, per_node);
  return per_node;
}

OpenChoice::OpenChoice(const Request& options, const HardwareProfile& hardware, int ranks,
                       int ranks_per_host, std::optional<ProgramRecord> kept,
                       const std::string& nvme_path, Assumptions& assumptions)
    : options_(options), nvme_path_(nvme_path), kept_(std::move(kept)) {
  PlanRequest asked;
  Request& request = asked.common;
  request = options;
  asked.quick = true;
  Set(request.cluster.gpus, ranks);
  const int per_node = SetNode(request.cluster, ranks, ranks_per_host);
  if (per_node < ranks && !hardware.network && request.hardware.network.empty()) {
    request.hardware.network = kGuessedNetwork;
    assumptions.notes.push_back(fmt::format(
        "Network: the hardware profile has none; the choice is made for {} (⟦network⟧ says which).",
        kGuessedNetwork));
  }
  // For plan and search "cpu" allows any ratio. For a run, as for estimate, it means the whole
  // optimizer.
  Given<double>& ratio = request.settings.offload_ratio;
  const auto& devices = request.settings.offload_optimizer;
  if (devices && Contains(*devices, OffloadDevice::kCpu) && !ratio) {
    ratio.emplace(1);
    ratio.text = "1";
  }
  // The hardware is known, so nothing looks at the machine again. The driver's limit on pinned
  // memory applies if pinning is open; else the run handles it.
  const bool pins_as_told = request.config.given() || request.settings.pin_memory;
  if (pins_as_told) request.cluster.pinned_limit = {};
  request.hardware.profile.clear();
  request.hardware.find = [hardware, ranks, pins_as_told](bool) {
    FoundMachine found;
    found.profile = hardware;
    if (pins_as_told) found.profile->node.pinned_limit.reset();
    found.gpus = ranks;
    return found;
  };
  Assumptions unsaid;
  const ModelSpec model = ResolveModel(request.model, request.settings.seq_len, unsaid);
  const int64_t seq_len = ResolveSeqLen(request, model, unsaid);
  const Given<std::vector<int>>& asked_sequences = request.settings.sequence_ranks;
  CheckSequenceRanks(asked_sequences, OwnExecutor(), model, seq_len, ranks);
  const int shared =
      asked_sequences ? asked_sequences->front() : ConfigSequenceRanks(request.config);
  request.settings =
      WithDefaultBatch(request.settings, request.config, std::max(1, ranks / shared),
                       kept_ ? kept_->setup.batch.global_batch() : 0, seq_len, assumptions.notes);
  const std::optional<int> detected = assumptions.detected_gpus;
  plan_.emplace(asked, assumptions);
  assumptions.detected_gpus = detected;
}

TrainSetup OpenChoice::Any() const {
  const SearchSpace& space = plan_->inputs().space;
  Candidate first = Groups(space).front();
  const std::vector<BatchPair> batches = BatchPairs(space, first.data_ranks());
  if (!batches.empty()) {
    first.micro_batch = batches.front().micro_batch;
    first.grad_accum = batches.front().grad_accum;
  }
  return SetupOf(first, base());
}

bool OpenChoice::KeepsRun() const {
  const TrainSetup& kept = kept_->setup;
  const SearchSpace& space = plan_->inputs().space;
  const Candidate ran = CandidateOf(kept);
  const AskedSettings& choice = options_.settings;
  const AskedSettings& batch = options_.settings;
  const bool config = options_.config.given();
  if (kept.batch.world_size != base().batch.world_size ||
      kept.batch.seq_len != base().batch.seq_len || kept.precision != base().precision) {
    return false;
  }
  if ((config || choice.sequence_ranks) && !Contains(space.sequence_ranks, ran.sequence_ranks)) {
    return false;
  }
  if ((config || choice.stage) && !Contains(space.stages, ran.stage)) return false;
  if ((config || choice.shard_group || choice.across_groups) &&
      !Contains(space.groupings, ran.grouping)) {
    return false;
  }
  if ((config || choice.offload_param) && !Contains(space.offload_param, ran.param)) return false;
  if ((config || choice.offload_optimizer || choice.offload_ratio) &&
      !Contains(space.offload_optimizer, ran.optimizer)) {
    return false;
  }
  if ((config || choice.pin_memory) && !Contains<uint8_t>(space.pin_memory, ran.pin_memory)) {
    return false;
  }
  const bool asks_homes = options_.settings.offload_activations || choice.offload_activation_layers;
  if ((config || choice.checkpointing || choice.checkpoint_every || asks_homes) &&
      !Contains(space.recompute, ran.recompute)) {
    return false;
  }
  const bool asks_batch = config || batch.global_batch || batch.global_batch_tokens ||
                          batch.micro_batch || batch.grad_accum;
  if (asks_batch && space.global_batch && *space.global_batch != kept.batch.global_batch()) {
    return false;
  }
  if (space.micro_batch_fixed && !Contains(space.micro_batches, ran.micro_batch)) return false;
  if (space.grad_accum_fixed && (batch.grad_accum || config) &&
      !Contains(space.grad_accums, ran.grad_accum)) {
    return false;
  }
  // If the config names sizes of buckets, the earlier run may have had others.
  if (config && !Contains(space.gathering, ran.gathering)) return false;
  return !UsesDisk(kept) || !nvme_path_.empty() || NamesDisk(options_);
}

TrainSetup OpenChoice::Choose(Assumptions& assumptions) {
  const auto finish = [&](TrainSetup setup) {
    setup.optimizer = base().optimizer;
    for (const SettingRow* row : kSettingRows) {
      if (row->set != nullptr) row->set(setup, row->get(base()));
    }
    return setup;
  };
  if (kept_ && KeepsRun()) {
    assumptions.notes.push_back(fmt::format("Choice: {}, {}, as in the run to resume.",
                                            SetupLabel(kept_->setup),
                                            BatchText(kept_->setup.batch)));
    return finish(kept_->setup);
  }
  SearchInputs inputs = plan_->inputs();
  if (nvme_path_.empty() && !NamesDisk(options_)) {
    inputs.excluded = [](const TrainSetup& setup) { return UsesDisk(setup); };
  }
  LongWork progress("Choosing what to run");
  inputs.progress = [&](uint64_t programs) {
    progress.Show([&] { return fmt::format("{} programs lowered", programs); });
  };
  const std::unique_ptr<ChoiceSearch> searcher = MakeSearch(std::move(inputs));
  const Plan plan = FindChoice(*plan_, *searcher);
  std::string speed;
  if (const auto& seconds = plan.choice.time.total_seconds) {
    speed = fmt::format("{} a step, ", FormatSeconds(*seconds));
  }
  assumptions.notes.push_back(fmt::format(
      "Choice: {}, {}, as 'plan' finds it for {} x {}: {}{} predicted. What is given is kept.",
      SetupLabel(plan.setup), BatchText(plan.setup.batch), plan.cluster.gpus, plan.cluster.gpu_name,
      speed, MemoryText(plan)));
  if (const auto& tokens = plan.choice.time.tokens_per_second; tokens && options_.config.given()) {
    progress.Doing("Looking for what the config costs");
    std::string loss = ConfigLoss(*plan_, plan.setup.batch, *tokens);
    if (!loss.empty()) assumptions.notes.push_back(std::move(loss));
  }
  return finish(plan.setup);
}

void ResizeVocab(TrainWork& work) {
  const std::string folder = work.tokenizer_folder();
  ModelSpec& model = work.model;
  if (folder.empty()) {
    ThrowUsage("--resize-embeddings: no folder has a tokenizer for this model; leave it out");
  }
  const int64_t tokens = Tokenizer::FromFile(folder).vocab_size();
  if (tokens <= model.vocab) {
    LogInfo("Embeddings: as they are, {} for {} tokens of {}.", model.vocab, tokens, folder);
    return;
  }
  if (!work.adapter.empty()) {
    ThrowUsage(
        "--resize-embeddings: the adapter in {} is of {} tokens, and {} has {}; leave the option "
        "out, or train a new adapter",
        work.adapter, model.vocab, folder, tokens);
  }
  LogInfo("Embeddings: resized from {} to {}, the tokens of {}; new ones start as the mean.",
          model.vocab, tokens, folder);
  model.vocab = tokens;
  model.padded_vocab = PadVocab(tokens);
  // PEFT saves a resized embedding with the adapters, trained or not.
  if (HasAdapters(model)) CarryVocabulary(model);
}

}  // namespace zeroplan
