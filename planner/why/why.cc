#include "planner/why/why.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/settings/setup_facts.h"
#include "planner/advice/smallest_change.h"
#include "planner/report/report_text.h"
#include "planner/runtimes/planned/planned_models.h"
#include "planner/runtimes/runtimes.h"
#include "planner/why/merged_request.h"
#include "planner/why/run_tasks.h"
#include "planner/why/why_parts.h"

namespace zeroplan {
namespace {

// Notes every field that is given, and hands it on.
class NotingFields : public FieldSink {
 public:
  NotingFields(FieldSink& to, std::map<std::string, std::string>& given) : to_(to), given_(given) {}
  void Take(AddedField field) override {
    // A run's recompute is turned on outside its config.
    if (field.info.name == "⟦checkpointing⟧") field.info.decided_by = {};
    auto take = std::move(field.take);
    field.take = [take, &given = given_, name = field.info.name](const std::string& text,
                                                                 std::string_view as) {
      take(text, as);
      given[name] = text;
    };
    to_.Take(std::move(field));
  }
  void Flag(const char* group, const std::string& name, const std::string& help,
            bool& value) override {
    to_.Flag(group, name, help, value);
  }

 private:
  FieldSink& to_;
  std::map<std::string, std::string>& given_;
};

// How a size may be met that is printed with two digits behind the point.
bool IsPrintedAs(uint64_t bytes, uint64_t printed) {
  // The allocator asks the driver for whole segments of 2 MiB.
  constexpr uint64_t kSegment = uint64_t{2} << 20;
  const uint64_t unit = printed >= (uint64_t{1} << 30) ? uint64_t{1} << 30 : uint64_t{1} << 20;
  const uint64_t asked = AlignUp(bytes, kSegment);
  const uint64_t off = asked > printed ? asked - printed : printed - asked;
  return off <= unit / 100;
}

// Tensors of the run that have the size that was wanted, by name.
std::vector<std::string> TensorsOfSize(uint64_t wanted, const WhyPrediction& of) {
  constexpr uint64_t kTooCommon = uint64_t{32} << 20;
  if (wanted < kTooCommon) return {};
  const ModelSpec& model = of.resolved->inputs().model;
  const TrainSetup& setup = of.choice.setup;
  const auto u = [](int64_t value) { return static_cast<uint64_t>(value); };
  const uint64_t sequences = u(setup.batch.micro_batch), length = u(setup.batch.seq_len);
  const uint64_t tokens = sequences * length;
  const uint64_t params = model.ParamCount();
  const auto ranks = static_cast<uint64_t>(ShardRanks(setup.zero, setup.batch.world_size));
  // A mixture's experts have the width ffn; the MLP that tokens use besides is the shared one.
  const PlannedCode* code = model.family->planned();
  const bool mixture = code != nullptr && code->experts > 0;
  const uint64_t rows = mixture ? tokens * u(code->experts_per_token) : 0;
  const std::pair<const char*, uint64_t> tensors[] = {
      {"logits", tokens * u(model.vocab)},
      {"logits", tokens * u(model.padded_vocab)},
      {"logits without the last token of each sequence", sequences * (length - 1) * u(model.vocab)},
      {"a column of the MLP for each token", tokens * u(mixture ? code->shared_ffn : model.ffn)},
      {"the rows of a layer's experts", rows * u(model.hidden)},
      {"gate and up of a layer's experts", rows * u(2 * model.ffn)},
      {"the residual stream", tokens * u(model.hidden)},
      {"attention scores of a layer", sequences * u(model.heads) * length * length},
      {"the embedding or its gradient", u(model.vocab) * u(model.hidden)},
      {"all parameters in one piece", params},
      {"a rank's part of the parameters", params / ranks},
      {"the reduce bucket", of.choice.settings.reduce_bucket_elements},
  };
  std::vector<std::string> names;
  for (const auto& [name, elements] : tensors) {
    for (const auto& [dtype, bytes] : {std::pair{"fp32", 4}, std::pair{"16 bit", 2}}) {
      if (elements == kAuto || elements > (uint64_t{1} << 50)) continue;
      if (!IsPrintedAs(elements * static_cast<uint64_t>(bytes), wanted)) continue;
      const bool nearly = std::string_view(name).starts_with("logits ");
      if (nearly && !names.empty()) continue;
      std::string text = fmt::format("{} in {}", name, dtype);
      if (std::find(names.begin(), names.end(), text) == names.end()) {
        names.push_back(std::move(text));
      }
    }
  }
  return names;
}

std::string Because(std::vector<std::string> assumed) {
  std::erase_if(assumed,
                [](const std::string& text) { return text.starts_with("⟦host_reserve⟧"); });
  if (assumed.empty()) return "";
  return fmt::format(" Taken without being said: {}.", fmt::join(assumed, ", "));
}

// FSDP1 moves each wrapped module to the GPU before it shards it. False: the failure is none of
// that.
bool FindWholeModules(const RunFailure& failure, WhyAnswer& answer) {
  const bool moves = std::any_of(
      failure.frames.begin(), failure.frames.end(),
      [](const std::string& frame) { return frame.ends_with(" _move_states_to_device"); });
  if (!moves) return false;
  answer.findings.emplace_back(
      "FSDP1 moves a wrapped module whole to the GPU before it shards it (_move_states_to_device): "
      "layers have to be wrapped each for itself (fsdp_transformer_layer_cls_to_wrap), and a 4-bit "
      "base has to be sharded, which takes bnb_4bit_quant_storage in the dtype of training. "
      "fsdp_offload_params keeps the shards on the host.");
  return true;
}

// What of the memory was in the way.
void FindGpuShortage(const RunFailure& failure, WhyAnswer& answer) {
  const OomMessage& gpu = failure.gpu;
  if (failure.phase == RunPhase::kGather) {
    answer.findings.emplace_back(
        "Not fragmentation: all parameters are gathered, and what was wanted is one of them.");
    return;
  }
  if (!failure.of_list.empty()) {
    const bool optimizer = failure.of_list.starts_with("torch._foreach_") ||
                           failure.of_list.starts_with("_multi_tensor_");
    answer.findings.push_back(fmt::format(
        "Not fragmentation: {} makes one tensor for each parameter, and {} is one of them; the "
        "whole list has to fit.{}",
        failure.of_list, gpu.wanted ? fmt::format("the wanted {}", GiBText(*gpu.wanted)) : "this",
        optimizer ? " A fused optimizer (optim adamw_torch_fused, or foreach=False) makes none of "
                    "them."
                  : ""));
    return;
  }
  const std::optional<uint64_t> unallocated = gpu.Unallocated();
  if (gpu.wanted && unallocated) {
    // What the allocator could still ask the driver for.
    uint64_t free = gpu.free.value_or(0);
    const LogFact* segments = answer.log.Fact("⟦expandable_segments⟧");
    const bool joins = segments != nullptr && segments->text == "true";
    const auto advice = [&](const char* does) {
      return joins ? std::string()
                   : fmt::format(
                         " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (PYTORCH_ALLOC_CONF "
                         "from PyTorch 2.9 on) lets the allocator {}.",
                         does);
    };
    const char* head =
        joins ? "Fragmentation, although expandable segments are on:" : "Fragmentation:";
    // Next to nothing would be left without any fragment.
    constexpr double kFull = 0.97;
    const uint64_t room = std::min(gpu.total.value_or(kAuto), gpu.allowed.value_or(kAuto));
    const uint64_t both = gpu.allocated.value_or(0) + *gpu.wanted;
    const bool full =
        room != kAuto && static_cast<double>(both) > kFull * static_cast<double>(room);
    if (gpu.allowed && gpu.reserved)
      free = std::min(free, *gpu.allowed - std::min(*gpu.allowed, *gpu.reserved));
    if (full && *unallocated + free >= *gpu.wanted) {
      answer.findings.push_back(fmt::format(
          "Not fragmentation alone: {} allocated and {} wanted are {:.0f} % of {}; pieces that the "
          "allocator joins leave next to nothing free.",
          GiBText(*gpu.allocated), GiBText(*gpu.wanted),
          100 * static_cast<double>(both) / static_cast<double>(room), GiBText(room)));
    } else if (*unallocated >= *gpu.wanted) {
      answer.findings.push_back(fmt::format(
          "{} {} were reserved and not allocated, more than the {} that were wanted, but in pieces "
          "that are too small.{}",
          head, GiBText(*unallocated), GiBText(*gpu.wanted), advice("join them")));
    } else if (*unallocated + free >= *gpu.wanted) {
      answer.findings.push_back(fmt::format(
          "{} with what was free ({}) the {} that were reserved and not allocated would have "
          "sufficed for {}.{}",
          head, GiBText(free), GiBText(*unallocated), GiBText(*gpu.wanted), advice("use both")));
    } else {
      answer.findings.push_back(fmt::format(
          "Not fragmentation: {} were reserved and not allocated, {} free, less than the {} that "
          "were wanted.{}",
          GiBText(*unallocated), GiBText(free), GiBText(*gpu.wanted),
          joins ? "" : " expandable_segments:True alone does not help."));
    }
  }
  if (gpu.total && gpu.in_use && gpu.free && *gpu.in_use + *gpu.free < *gpu.total) {
    const uint64_t others = *gpu.total - *gpu.in_use - *gpu.free;
    if (others > (uint64_t{256} << 20)) {
      answer.findings.push_back(
          fmt::format("{} of the GPU are other processes'.", GiBText(others)));
    }
  }
}

// The part of what a run held and wanted that was not predicted.
double UnexplainedShare(const WhyPrediction& predicted) {
  if (!predicted.needed) return 0;
  return static_cast<double>(predicted.beyond) / static_cast<double>(*predicted.needed);
}
// Beyond this share no change is known to suffice.
constexpr double kMostUnexplained = 0.2;

// The predicted peak beside what the allocator said.
void CompareShortage(const RunFailure& failure, WhyAnswer& answer) {
  WhyPrediction& predicted = *answer.prediction;
  const OomMessage& gpu = failure.gpu;
  const ChoiceEstimate& choice = predicted.choice;
  const TorchFootprint& torch = *choice.footprint.torch;
  std::optional<TorchPhase> phase = PredictedPhase(failure.phase);
  const bool unknown = failure.phase == RunPhase::kUnknown;
  if (unknown) phase = torch.DecidingPhase();
  if (gpu.allocated && gpu.wanted) predicted.needed = *gpu.allocated + *gpu.wanted;
  if (phase && predicted.needed) {
    const uint64_t peak = torch.peak(*phase).allocated_bytes;
    if (*predicted.needed > peak) predicted.beyond = *predicted.needed - peak;
  }
  if (gpu.wanted) {
    const std::vector<std::string> names = TensorsOfSize(*gpu.wanted, predicted);
    if (!names.empty() && names.size() <= 2) {
      answer.findings.push_back(
          fmt::format("{}, which were wanted, is the size of {} of this run, and "
                      "may be that of other tensors.",
                      GiBText(*gpu.wanted), fmt::join(names, ", or of ")));
    }
  }
  if (!phase) return;
  const bool init_fits =
      phase == TorchPhase::kInit &&
      torch.peak(TorchPhase::kInit).allocated_bytes + torch.context_bytes <= predicted.gpu_bytes;
  if (!choice.fits && init_fits) {
    answer.findings.push_back(
        fmt::format("Initialisation is predicted to fit, with {} in tensors; the steps after it "
                    "are predicted not to: {}.",
                    GiBText(torch.peak(TorchPhase::kInit).allocated_bytes), choice.why_not));
  } else if (!choice.fits) {
    const bool cached = gpu.Unallocated().value_or(0) >= gpu.wanted.value_or(kAuto);
    const bool tensors = torch.TensorBytes() + torch.context_bytes > predicted.gpu_bytes;
    answer.findings.push_back(fmt::format(
        "The prediction agrees that it does not fit: {}.{}", choice.why_not,
        cached && tensors ? " Mending the fragmentation alone would not be enough." : ""));
  }
  if (choice.fits && predicted.beyond == 0) {
    answer.findings.push_back(fmt::format(
        "The prediction is that it fits, with {} reserved and {} outside the allocator of {}: what "
        "ran takes more than the log and the options say, or other processes take memory later.{}",
        GiBText(torch.ReservedBytes()), GiBText(torch.context_bytes), GiBText(predicted.gpu_bytes),
        Because(answer.assumed)));
  }
  const uint64_t peak = torch.peak(*phase).allocated_bytes;
  if (static_cast<double>(predicted.beyond) > kWorthSaying * static_cast<double>(peak)) {
    answer.findings.push_back(
        fmt::format("It needed {} for tensors. That is {} more than predicted for {}, so the log "
                    "and the options "
                    "do not say all that ran.{}{}",
                    GiBText(*predicted.needed), GiBText(predicted.beyond),
                    unknown ? "the peak" : RunPhaseText(failure.phase), Because(answer.assumed),
                    UnexplainedShare(predicted) > kMostUnexplained
                        ? ""
                        : " The changes below leave that much free."));
  }
}

// Of a run that ran: how far off the prediction is, and what the log has that explains it.
void CompareRun(WhyAnswer& answer) {
  const WhyPrediction& predicted = *answer.prediction;
  const RunLog& log = answer.log;
  const ChoiceEstimate& choice = predicted.choice;
  const std::optional<double> step = StepSecondsOf(log, choice.setup);
  const std::optional<double>& expected = choice.time.total_seconds;
  const bool offloads = choice.setup.zero.offload_optimizer.device != OffloadDevice::kNone;
  if (answer.times_known && step && expected) {
    const double factor = *step / *expected;
    const double margin = predicted.largest_time_error;
    const bool slower = factor > 1 + margin;
    if (margin > 0 && !slower && factor >= 1 - margin) {
      answer.findings.push_back(fmt::format(
          "Its step took {:.2f} times the prediction, within what runs were off by ({:.0f} %).",
          factor, 100 * margin));
    } else if (slower) {
      answer.findings.push_back(fmt::format(
          "Its step took {:.2f} times the prediction{}.", factor,
          margin > 0 ? fmt::format(", more than runs were off by ({:.0f} %)", 100 * margin) : ""));
    } else {
      answer.findings.push_back(fmt::format(
          "Its step took {:.2f} times the prediction: less. Sequences shorter than {} tokens would "
          "explain it.",
          factor, choice.setup.batch.seq_len));
    }
  }
  if (!choice.fits) {
    answer.findings.push_back(fmt::format(
        "It ran, and the prediction is that it does not fit ({}): what ran is not all that the log "
        "and the options say.{}",
        choice.why_not, Because(answer.assumed)));
  }
  const auto had = [](const std::optional<LogFigure>& figure) {
    return figure ? figure->value : 0;
  };
  const auto tensors = static_cast<double>(choice.footprint.torch->TensorBytes());
  if (had(log.allocated) > (1 + kWorthSaying) * tensors) {
    answer.findings.push_back(
        fmt::format("It allocated {}, {:.0f} % more than is predicted: what ran is not all that "
                    "the log and the "
                    "options say.{}",
                    GiBText(static_cast<uint64_t>(had(log.allocated))),
                    100 * (had(log.allocated) / tensors - 1), Because(answer.assumed)));
  }
  if (log.one_thread_line > 0 && offloads) {
    answer.findings.push_back(fmt::format(
        "torchrun set OMP_NUM_THREADS to 1 (line {}): the optimizer on the host then has one "
        "thread, which the prediction does not count. Set OMP_NUM_THREADS to the host's cores over "
        "its ranks.",
        log.one_thread_line));
  }
  if (log.run_samples_per_second && step && !log.samples_per_second) {
    const double run =
        static_cast<double>(choice.setup.batch.global_batch()) / log.run_samples_per_second->value;
    if (run > 1.1 * *step) {
      answer.findings.push_back(fmt::format(
          "Over the whole run a step comes to {}, {:.2f} times the steps themselves: loading, "
          "evaluation and saving are in it.",
          FormatSeconds(run), run / *step));
    }
  }
}

// Whether the log counts as many parameters as this model has; of FSDP a rank may count its shard.
void CheckCount(WhyAnswer& answer) {
  const int64_t counted = answer.log.trained_params;
  if (counted == 0) return;
  const EstimateInputs& inputs = answer.prediction->resolved->inputs();
  const ModelSpec& model = inputs.model;
  const auto trained = static_cast<double>(model.TrainedParamCount());
  const auto padding =
      static_cast<double>(model.ParamCount()) - static_cast<double>(model.UnpaddedParamCount());
  for (const double expected : {trained, trained - padding}) {
    for (const double of_rank : {expected, expected / inputs.cluster.gpus}) {
      if (std::abs(static_cast<double>(counted) / of_rank - 1) < 0.01) return;
    }
  }
  answer.findings.push_back(fmt::format(
      "The log counts {} trained parameters, the prediction {}: ⟦model⟧ or what is trained of it "
      "is "
      "not the run's.",
      FormatCount(static_cast<uint64_t>(counted)), FormatCount(model.TrainedParamCount())));
}

void Predict(MergedRequest& merged, WhyAnswer& answer) {
  Request& common = merged.common;
  const Runtime& runtime = common.runtime.of();
  if (runtime.facts().trains_here) {
    ThrowUsage(
        "⟦runtime⟧: {} trains with 'zeroplan train', which says itself why it ends; name the "
        "program of the log",
        runtime.key());
  }
  if (!merged.unreadable.empty()) {
    answer.why_no_prediction = merged.unreadable;
    return;
  }
  WhyPrediction predicted;
  Assumptions assumptions;
  try {
    predicted.resolved = std::make_unique<ResolvedEstimate>(common, assumptions);
    EstimateInputs inputs = predicted.resolved->inputs();
    if (inputs.setups.size() != 1) {
      ThrowUsage(
          "⟦stage⟧, ⟦offload_optimizer⟧, ⟦offload_param⟧ and ⟦checkpointing⟧: they name {} "
          "choices; a run had one",
          inputs.setups.size());
    }
    constexpr uint64_t kNoLimit = uint64_t{1} << 50;
    if (merged.gpu_unknown) inputs.cluster.gpu_capacity_bytes = kNoLimit;
    if (!merged.hardware_known) {
      if (!common.cluster.host_memory) inputs.cluster.host_capacity_bytes.reset();
      inputs.cluster.pinned_limit_bytes.reset();
    }
    if (const LogFact* batch = answer.log.Fact(kEvalBatchFact)) {
      constexpr int64_t kMost = 1'000'000;  // products stay in range
      inputs.recipe.per_device_eval_batch_size = std::min<int64_t>(std::stoll(batch->text), kMost);
    }
    Estimate estimate = EstimateChoices(inputs);
    predicted.choice = std::move(estimate.choices.front());
    predicted.margin = std::move(estimate.margin);
    predicted.gpu_bytes = inputs.cluster.gpu_capacity_bytes;
    predicted.host_bytes = CapacityOf(inputs.cluster).host_bytes;
    predicted.largest_time_error =
        runtime.LargestTimeError(predicted.choice, inputs.cluster, *inputs.hardware);
  } catch (const Error& error) {
    answer.why_no_prediction = error.what();
    return;
  }
  answer.times_known = merged.hardware_known;
  for (std::string& text : assumptions.assumed) {
    const bool of_profile =
        text.starts_with("⟦hw⟧") || (text.starts_with("⟦host_reserve⟧") && !predicted.host_bytes);
    if (merged.hardware_known || !of_profile) answer.assumed.push_back(std::move(text));
  }
  for (std::string& note : assumptions.notes) {
    answer.notes.push_back(std::move(note));
  }
  for (std::string& note : runtime.Notes(predicted.choice, predicted.resolved->inputs().recipe)) {
    answer.notes.push_back(std::move(note));
  }
  answer.prediction = std::move(predicted);
  CheckCount(answer);
}

}  // namespace

std::string GiBText(uint64_t bytes) {
  constexpr double kGiB = 1ull << 30;
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / kGiB);
}

std::optional<TorchPhase> PredictedPhase(RunPhase phase) {
  switch (phase) {
    case RunPhase::kInit:
      return TorchPhase::kInit;
    case RunPhase::kForward:
    case RunPhase::kLoss:
    case RunPhase::kBackward:
      return TorchPhase::kForwardBackward;
    case RunPhase::kStep:
      return TorchPhase::kStep;
    case RunPhase::kUnknown:
    case RunPhase::kLoading:
    case RunPhase::kResume:
    case RunPhase::kEvaluation:
    case RunPhase::kSaving:
    case RunPhase::kGather:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<double> StepSecondsOf(const RunLog& log, const TrainSetup& setup) {
  const auto sequences = static_cast<double>(setup.batch.global_batch());
  const auto tokens = sequences * static_cast<double>(setup.batch.seq_len);
  if (log.samples_per_second) return sequences / log.samples_per_second->value;
  if (log.tokens_per_second_of_gpu) {
    return tokens / (log.tokens_per_second_of_gpu->value * setup.batch.world_size);
  }
  if (log.step_seconds) return log.step_seconds->value;
  if (log.run_samples_per_second) return sequences / log.run_samples_per_second->value;
  return std::nullopt;
}

void AddWhyFields(FieldSink& sink, WhyRequest& request) {
  NotingFields fields(sink, request.given);
  AddRunFields(fields, request.common);
}

namespace {

// The reason why the log's run is not predicted whatever is given; "": it is.
std::string WhyNotPredicted(const WhyRequest& request, const RunLog& log) {
  if (log.not_predicted && !request.given.contains(log.not_predicted->unless)) {
    return fmt::format("{}; {} predicts it as another program's run", log.not_predicted->why,
                       log.not_predicted->unless);
  }
  // Around its steps such a run holds what supervised training holds.
  const RunFailure* cause = log.Cause();
  const bool steps = cause == nullptr || PredictedPhase(cause->phase) == TorchPhase::kStep ||
                     PredictedPhase(cause->phase) == TorchPhase::kForwardBackward ||
                     cause->phase == RunPhase::kUnknown || cause->phase == RunPhase::kEvaluation;
  if (!log.task.empty() && steps) {
    return fmt::format("a step of {} is not predicted (line {})", log.task, log.task_line);
  }
  return "";
}

// Returns whether too much of a run's memory is unexplained for any change to suffice by
// prediction; if so, adds a finding.
bool TooMuchUnexplained(WhyAnswer& answer) {
  const double share = UnexplainedShare(*answer.prediction);
  if (share <= kMostUnexplained) return false;
  answer.findings.push_back(fmt::format(
      "{:.0f} % of what the run held and wanted is not explained by what is known of it, so no "
      "change is known to suffice.",
      100 * share));
  return true;
}

}  // namespace

WhyAnswer FindWhy(const WhyRequest& request) {
  WhyAnswer answer;
  answer.log = ReadRunLog(request.log);
  const RunLog& log = answer.log;
  const std::string name = log.source == "-" ? "stdin" : log.source;
  if (!log.HasAnything()) {
    ThrowUsage(
        "{}: {}; give the log of a run of DeepSpeed, transformers' Trainer, accelerate, torchrun, "
        "torchtitan, torchtune or PyTorch, with what it wrote to stderr (2>&1)",
        name,
        log.bytes == 0 ? "is empty"
        : log.has_nul
            ? "holds no text of a run: it is binary, or text in UTF-16"
            : fmt::format("nothing of a training run is recognised in its {} lines", log.lines));
  }
  MergedRequest merged = MergeLog(request, log);
  answer.used = merged.used;
  answer.conflicts = merged.conflicts;
  answer.missing = merged.missing;
  answer.assumed = merged.assumed;
  const RunFailure* cause = log.Cause();
  if (cause != nullptr && cause->kind == FailureKind::kGpuMemory) {
    if (!FindWholeModules(*cause, answer)) FindGpuShortage(*cause, answer);
  }
  for (const auto& [field, note] : log.unknown_values) {
    if (log.Fact(field) == nullptr && !request.given.contains(field)) answer.notes.push_back(note);
  }
  if (!log.gpus_doubt.empty() && !request.given.contains("⟦gpus⟧")) {
    answer.notes.push_back(log.gpus_doubt);
  }
  if (log.fsdp1) {
    answer.notes.emplace_back(
        "It ran FSDP's first version (FullyShardedDataParallel), which is predicted as its second, "
        "fully_shard.");
  }
  if (log.cache_flushes > 0) {
    answer.findings.push_back(
        fmt::format("The allocator emptied its cache while it ran, as the log tells {} time{} "
                    "(first: line {}): "
                    "memory was short, and each time the GPU waits.",
                    log.cache_flushes, log.cache_flushes == 1 ? "" : "s", log.cache_flush_line));
  }
  if (cause != nullptr && !cause->way_out.empty()) answer.findings.push_back(cause->way_out);
  if (!log.task.empty()) {
    answer.findings.push_back(TaskText(log.task, log.task_line));
  }
  // What did not die of memory is not explained by it.
  const bool other = cause != nullptr && !cause->of_memory();
  if (other && request.add.empty()) {
    answer.missing.clear();
    answer.assumed.clear();
    return answer;
  }
  if (const std::string why = WhyNotPredicted(request, log); !why.empty()) {
    answer.missing.clear();
    answer.assumed.clear();
    answer.why_no_prediction = why;
  } else if (answer.missing.empty()) {
    Predict(merged, answer);
  }
  if (!request.add.empty()) answer.added = AddRow(request, answer, merged);
  if (!answer.prediction) return answer;
  if (cause == nullptr) {
    CompareRun(answer);
    FindAlternatives(request, answer);
    FindFaster(merged, answer);
    return answer;
  }
  if (cause->kind == FailureKind::kGpuMemory) {
    CompareShortage(*cause, answer);
    FindAlternatives(request, answer);
  }
  const bool host = cause->of_host();
  FindAround(*cause, answer);
  if (host) FindHostShortage(*cause, answer);
  const bool steps = PredictedPhase(cause->phase).has_value() || cause->phase == RunPhase::kUnknown;
  if (cause->kind == FailureKind::kGpuMemory && steps && !TooMuchUnexplained(answer)) {
    FindChanges(merged, answer);
  }
  if (host && HostIsShort(*answer.prediction)) {
    if (merged.gpu_unknown) {
      answer.findings.emplace_back(
          "⟦hw⟧ (or ⟦gpu_memory⟧) gives the changes after which it fits a GPU and a host.");
    } else {
      FindChanges(merged, answer);
    }
  }
  return answer;
}

std::string WhyIncomplete(const WhyAnswer& answer) {
  if (answer.missing.empty()) return answer.why_no_prediction;
  std::vector<std::string> parts;
  for (const MissingField& missing : answer.missing) {
    parts.push_back(fmt::format("{}, {}{}", missing.field, missing.what,
                                missing.hint.empty() ? "" : fmt::format(" ({})", missing.hint)));
  }
  return fmt::format("{} does not say what a prediction takes; give {}",
                     answer.log.source == "-" ? "the log" : answer.log.source,
                     fmt::join(parts, "; "));
}

}  // namespace zeroplan
