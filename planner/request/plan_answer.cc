#include "planner/request/plan_answer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/json_source.h"
#include "core/base/units.h"
#include "core/config/deepspeed_writer.h"
#include "core/model/lora.h"
#include "core/program/step_order.h"
#include "planner/advice/smallest_change.h"
#include "planner/estimate/choices.h"
#include "planner/report/report_text.h"
#include "planner/request/resolve.h"
#include "planner/search/search_space.h"

namespace zeroplan {

namespace {

using Json = nlohmann::ordered_json;

std::string Joined(const std::vector<std::string>& parts) {
  return fmt::format("{}", fmt::join(parts, ", "));
}

// `setup` as the config's writer writes it. Values that the writer leaves to "auto" are no edits.
Json Written(TrainSetup setup, int64_t layers) {
  for (uint64_t* elements :
       {&setup.zero.reduce_bucket_elements, &setup.zero.prefetch_bucket_elements,
        &setup.zero.max_live_parameters}) {
    if (*elements == kAuto) *elements = 1;
  }
  const auto name_folder = [](auto& offload) {
    if (offload.nvme_path.empty()) offload.nvme_path = kSwapFolder;
  };
  name_folder(setup.zero.offload_optimizer);
  name_folder(setup.zero.offload_param);
  return Json::parse(WriteConfig(setup, layers));
}

// The keys to edit in the config, with their values.
std::vector<std::string> Edits(const ResolvedPlan& request, const Candidate& found) {
  const int64_t layers = request.inputs().model.layers;
  const TrainSetup& base = request.inputs().base;
  const Json now = Written(base, layers);
  const Json then = Written(SetupOf(found, base), layers);
  std::vector<std::string> edits;
  for (const char* pointer :
       {"/bf16", "/fp16", "/zero_optimization/stage", "/zero_optimization/mics_shard_size",
        "/zero_optimization/zero_hpz_partition_size", "/zero_optimization/offload_optimizer",
        "/zero_optimization/offload_param", "/sequence_parallel_size", "/activation_checkpointing",
        "/_zeroplan"}) {
    const Json::json_pointer at(pointer);
    const Json before = now.contains(at) ? now[at] : Json();
    const Json after = then.contains(at) ? then[at] : Json();
    if (before == after) continue;
    std::string key = pointer + 1;
    std::replace(key.begin(), key.end(), '/', '.');
    edits.push_back(after.is_null() ? fmt::format("no {}", key)
                                    : fmt::format("{} {}", key, after.dump()));
  }
  const ConfigDocument& config = request.asked().common.config;
  const auto set = [&](const char* key, int64_t before, int64_t after) {
    if (config.Says(key) && before != after) {
      edits.push_back(fmt::format("{} {}", key, after));
    }
  };
  set("train_micro_batch_size_per_gpu", base.batch.micro_batch, found.micro_batch);
  set("gradient_accumulation_steps", base.batch.grad_accum, found.grad_accum);
  set("train_batch_size", base.batch.global_batch(),
      found.micro_batch * found.grad_accum * found.data_ranks());
  return edits;
}

// Fields that change although a config is given, because the config leaves them open.
std::vector<std::string> BesideConfig(const ResolvedPlan& request, const Candidate& found) {
  const AskedSettings& batch = request.asked().common.settings;
  std::vector<std::string> changed;
  const auto set = [&](const char* option, const std::optional<int64_t>& given, int64_t after) {
    if (given && *given != after) changed.push_back(fmt::format("{} {}", option, after));
  };
  if (request.inputs().space.gpus.back() != found.gpus) {
    changed.push_back(fmt::format("⟦gpus⟧ {}", found.gpus));
  }
  set("⟦micro_batch⟧", batch.micro_batch, found.micro_batch);
  set("⟦grad_accum⟧", batch.grad_accum, found.grad_accum);
  // The config then contains the allowed setting, and ⟦allow⟧ is not accepted with such a config.
  const Candidate said = CandidateOf(request.inputs().base);
  if (request.asked().allow && (said.states != found.states || said.products != found.products)) {
    changed.push_back(fmt::format("without ⟦allow⟧ {}", request.asked().allow.text));
  }
  return changed;
}

// Given fields that specify a part of a choice that `found` does not contain.
std::vector<std::string> LeftOut(const AskedSettings& choice, const Candidate& found) {
  std::vector<std::string> names;
  // A ratio of 1, or every 1 layer, needs no option.
  if (choice.offload_ratio && (found.optimizer.device != OffloadDevice::kCpu ||
                               (found.optimizer.ratio >= 1 && *choice.offload_ratio < 1))) {
    names.push_back("⟦offload_ratio⟧");
  }
  if (choice.checkpoint_every && (found.recompute.kind != RecomputeKind::kFull ||
                                  (found.recompute.every <= 1 && *choice.checkpoint_every > 1))) {
    names.push_back("⟦checkpoint_every⟧");
  }
  if (choice.checkpoint_layers && found.recompute.layers == 0) {
    names.push_back("⟦checkpoint_layers⟧");
  }
  if (choice.checkpointing_above && found.recompute.layers == 0) {
    names.push_back("⟦checkpointing_above⟧");
  }
  if (choice.offload_activation_layers && found.recompute.offload.layers == 0) {
    names.push_back("⟦offload_activation_layers⟧");
  }
  if (choice.across_groups && found.grouping.ranks == 0) names.push_back("⟦across_groups⟧");
  return names;
}

// `change` in the form in which the user can request it: the fields to set, and the given fields to
// leave out because they belong to another choice. `change` fits, but `request` does not. If there
// is a config, the text names its keys and their values, because the file decides those.
std::string Proposal(const ResolvedPlan& request, const Change& change) {
  const Candidate& found = change.found.candidate;
  if (!request.asked().common.config.given()) {
    const std::vector<std::string> left_out = LeftOut(request.asked().common.settings, found);
    return left_out.empty() ? change.options
                            : fmt::format("{} without {}", change.options, Joined(left_out));
  }
  const std::vector<std::string> edits = Edits(request, found);
  const std::vector<std::string> beside = BesideConfig(request, found);
  std::string text;
  if (!edits.empty())
    text = fmt::format("in {}: {}", request.asked().common.config.name(), Joined(edits));
  if (!beside.empty()) {
    text += fmt::format("{}{}", text.empty() ? "" : "; and ", fmt::join(beside, " "));
  }
  return text;
}

std::string ChangeText(const ResolvedPlan& request, const Change& change) {
  std::string text = fmt::format("{} ({}; {} a GPU, {:.0f} tokens/s)", Proposal(request, change),
                                 request.inputs().runtime->Label(change.estimate.setup),
                                 FormatBytes(change.estimate.footprint.totals().gpu_bytes),
                                 change.found.tokens_per_second);
  if (change.estimate.footprint.nvme_bytes > 0) {
    text += fmt::format(". That takes {} of a node's disk, by the hardware profile's figures",
                        FormatBytes(change.estimate.footprint.nvme_bytes));
  }
  return text;
}

// Adds to a smallest change that takes a disk the smallest without one, and more memory of a host
// whose memory is a guess.
std::string OtherChanges(ResolvedPlan& request, const std::string& smallest) {
  std::string text;
  if (smallest.find("nvme") == std::string::npos) return text;
  if (const std::string other = SmallestChangeText(request, Disks::kNo); !other.empty()) {
    text += "\n  or " + other;
  }
  const Cluster& cluster = request.inputs().clusters.back().cluster;
  if (GuessesHost(request.asked().common, request.hardware(), cluster) &&
      text.find("⟦host_memory⟧") == std::string::npos) {
    if (const std::optional<Change> more = MoreHostMemory(*MakeSearch(request.inputs()))) {
      text += "\n  or " + ChangeText(request, *more);
    }
  }
  return text;
}

[[noreturn]] void ThrowNothingFits(ResolvedPlan& request, const SearchResult& result) {
  const Runtime& runtime = *request.inputs().runtime;
  std::vector<const StageBest*> stages;
  for (const StageBest& stage : result.stages) {
    if (stage.can_run()) stages.push_back(&stage);
  }
  if (request.asked().brief && stages.size() > 1) {
    stages = {
        *std::min_element(stages.begin(), stages.end(), [](const StageBest* a, const StageBest* b) {
          return a->estimate.footprint.gpu_total() < b->estimate.footprint.gpu_total();
        })};
  }
  std::string closest;
  for (const StageBest* stage : stages) {
    const std::string why =
        stage->estimate.fits
            ? fmt::format("takes {} a GPU, and what DeepSpeed takes beyond that does not fit",
                          FormatBytes(stage->estimate.footprint.gpu_total()))
            : stage->estimate.why_not;
    closest += fmt::format("\n  {}{}, micro-batch {}: {}", request.asked().brief ? "closest: " : "",
                           runtime.Label(stage->estimate.setup),
                           stage->estimate.setup.batch.micro_batch, why);
  }
  const std::string change = SmallestChangeText(request);
  std::string fix =
      "no change was found that fits, more GPUs as far as the hardware profile goes included; "
      "try a smaller model or another ⟦hw⟧";
  if (result.gave_up) {
    const std::string where =
        !request.asked().common.config.given()
            ? "pin some choices (⟦stage⟧, ⟦checkpointing⟧, "
              "⟦offload_optimizer⟧)"
            : fmt::format("set batch and buckets in {}", request.asked().common.config.name());
    fix = fmt::format("the search gave up after {} programs; {} to look at the others",
                      result.stats.lowered, where);
  }
  if (!change.empty()) {
    fix = fmt::format("smallest change that fits: {}{}", change, OtherChanges(request, change));
  }
  throw Error(ExitCode::kNothingFits,
              fmt::format("nothing fits{}. {}{}",
                          runtime.facts().trains_here ? "" : fmt::format(" {}", runtime.name()),
                          fix, closest));
}

// The disk space of a checkpoint, and the time of a save if the profile has one. `proposes`: the
// text suggests asynchronous saves, which the request does not set.
std::string CheckpointText(const SaveCost& save, const Plan& plan, const Cluster& cluster,
                           const NodeProfile& node, bool proposes) {
  const bool adapters = HasAdapters(plan.model);
  std::string text =
      fmt::format("Checkpoints: {} each, {:.3g} bytes a {}parameter{}; the {} at the end {} more.",
                  FormatBytes(save.bytes), save.bytes_per_param,
                  adapters || !plan.model.frozen.empty() ? "trained " : "",
                  plan.model.frozen.empty() ? "" : ", 4 a frozen one",
                  adapters ? "adapter" : "weights", FormatBytes(save.weights_bytes));
  if (!save.write_seconds) return text;
  const std::string where = cluster.nodes() == 1 ? "to the node's disk"
                            : save.one_node      ? "to the disk of one node"
                                                 : "a node to its own disk";
  const bool swapped = plan.setup.zero.offload_optimizer.device == OffloadDevice::kNvme;
  const std::string limit =
      save.disk_bound ? fmt::format("at {}/s (host.nvme_write, {}){}",
                                    FormatBytes(static_cast<uint64_t>(node.nvme_write->value)),
                                    FigureSourceName(node.nvme_write->source),
                                    swapped ? ", read from swap files first" : "")
                      : "from GPUs over PCIe, which is slower than the disk";
  const std::string copy = FormatSeconds(save.copy_seconds);
  return text +
         fmt::format(" Saving one takes {} at least, by prediction: {} {} {}; steps wait {}.",
                     FormatSeconds(*save.write_seconds), FormatBytes(save.node_bytes), where, limit,
                     plan.lower.async_save
                         ? fmt::format("for the copy to host memory alone, {} at least", copy)
                     : proposes ? fmt::format("so long, with ⟦async_save⟧ on for the copy to host "
                                              "memory alone, {} at least",
                                              copy)
                                : "so long");
}

// The request without its config: the same batch with free parts, and the same precision. `words`:
// the fields that set them.
PlanRequest WithoutConfig(const ResolvedPlan& request, const BatchSpec& batch,
                          std::vector<std::string>& words) {
  PlanRequest asked = request.asked();
  asked.common.config = {};
  AskedSettings& fields = asked.common.settings;
  fields.micro_batch = fields.grad_accum = fields.global_batch = fields.global_batch_tokens = {};
  const auto say = [&](const char* field, auto& given, auto value, std::string_view text) {
    given.emplace(value);
    given.text = text;
    words.push_back(fmt::format("{} {}", field, text));
  };
  const int64_t sequences = batch.global_batch();
  say("⟦global_batch⟧", fields.global_batch, sequences, std::to_string(sequences));
  const PrecisionConfig& precision = request.inputs().base.precision;
  const Dtype dtype = precision.dtype, sums = precision.grad_accum_dtype;
  if (dtype != DefaultDtype(request.hardware())) {
    say("⟦dtype⟧", fields.dtype, dtype, DtypeName(dtype));
  }
  if (sums != dtype) say("⟦grad_accum_dtype⟧", fields.grad_accum_dtype, sums, DtypeName(sums));
  const StatesKind states = StatesOf(precision);
  if (states.masters != MasterWeights::kFp32) {
    say("⟦master_weights⟧", fields.master_weights, states.masters,
        MasterWeightsName(states.masters));
  }
  if (states.moments != Dtype::kF32) {
    say("⟦optimizer_states⟧", fields.optimizer_states, states.moments, MomentsName(states.moments));
  }
  if (precision.fp8.enabled) {
    say("⟦matmul_dtype⟧", fields.matmul_dtype, Dtype::kE4M3, "fp8");
    say("⟦fp8_recipe⟧", fields.fp8_recipe, precision.fp8.recipe,
        Fp8RecipeName(precision.fp8.recipe));
  }
  return asked;
}

}  // namespace

std::string SettleAsyncSave(AsyncSave asked, const SearchCluster& at, Plan& plan) {
  if (asked == AsyncSave::kOff) return "";
  LowerOptions lower = plan.lower;
  lower.async_save = true;
  const Program program = Lower(plan.model, plan.setup, lower);
  const std::string copy =
      FormatBytes(SaveCopyBytes(program) * static_cast<uint64_t>(at.cluster.ranks_per_node()));
  if (asked == AsyncSave::kIfItFits) {
    const ChoiceEstimate with = EstimateProgram(program, at.cluster, at.costs);
    if (!with.fits) {
      return fmt::format(
          "Saves: steps wait for them, as a copy of {} does not fit (⟦async_save⟧ auto): {}.", copy,
          with.why_not);
    }
    plan.lower = lower;
    plan.choice = with;
  }
  return fmt::format(
      "Saves: written beside the steps, from a copy of {} of host memory on each host, of {} in "
      "all (⟦async_save⟧ {}).",
      copy, FormatBytes(plan.choice.footprint.host.total()),
      asked == AsyncSave::kIfItFits ? "auto" : "on");
}

std::string SmallestChangeText(ResolvedPlan& request, Disks disks) {
  SearchSpace full = request.full();
  if (disks == Disks::kNo) LeaveOutDisks(full);
  const std::optional<Change> change =
      SmallestChange(request.inputs(), full,
                     [&](int gpus, SearchInputs& inputs) { request.SetMoreGpus(gpus, inputs); });
  return change ? ChangeText(request, *change) : "";
}

Plan FindChoice(ResolvedPlan& request, ChoiceSearch& searcher) {
  const SearchResult result = searcher.Run();
  if (!result.best) ThrowNothingFits(request, result);
  return MakePlan(searcher, result);
}

PlanOrigin OriginOf(const Request& request, const HardwareProfile& hardware) {
  namespace fs = std::filesystem;
  const auto absolute = [](const std::string& path) {
    std::error_code ignored;
    return fs::absolute(path, ignored).lexically_normal().string();
  };
  std::error_code ignored;
  PlanOrigin origin;
  const std::string folder = FolderOfModel(request.model);
  if (!folder.empty()) origin.model_folder = absolute(folder);
  if (fs::is_regular_file(hardware.source, ignored)) origin.hw_file = absolute(hardware.source);
  if (request.config.given()) {
    const std::string& name = request.config.name();
    origin.config = name == "-" ? name : absolute(name);
  }
  return origin;
}

std::string ConfigLoss(const ResolvedPlan& request, const BatchSpec& batch,
                       double tokens_per_second) {
  constexpr double kWorthSaying = 1.05;  // ratio of tokens
  constexpr double kEffort = 0.25;
  std::vector<std::string> words;
  const PlanRequest asked = WithoutConfig(request, batch, words);
  std::optional<ResolvedPlan> plain;
  Assumptions unused;
  try {
    plain.emplace(asked, request, unused);
  } catch (const Error&) {  // plan without the config refuses the config's other keys
    return "";
  }
  SearchInputs inputs = plain->inputs();
  // The config's numerics stay, with everything that the options leave open.
  inputs.base.precision = request.inputs().base.precision;
  inputs.base.optimizer = request.inputs().base.optimizer;
  inputs.recipe = request.inputs().recipe;
  inputs.recipe.offload_activations = plain->inputs().recipe.offload_activations;
  // Disks are for models that fit nowhere else.
  LeaveOutDisks(inputs.space);
  inputs.progress = {};
  inputs.effort = kEffort;
  const std::unique_ptr<ChoiceSearch> searcher = MakeSearch(inputs);
  Question question;
  question.instruction_budget =
      static_cast<uint64_t>(kEffort * static_cast<double>(kInstructionBudget));
  const Answer answer = searcher->Best(question);
  if (!answer.found || answer.found->tokens_per_second < kWorthSaying * tokens_per_second) {
    return "";
  }
  const TrainSetup best = SetupOf(answer.found->candidate, inputs.base);
  const AskedSettings& given = request.asked().common.settings;
  return fmt::format(
      "What the config costs: its choice reaches {} tokens/s by prediction; the best for the same "
      "GPUs and "
      "batch ({}, {}) reaches {}, {:.2f} times as many. 'zeroplan plan' with {} in place of "
      "⟦config⟧{}{} finds one as fast.",
      FormatRate(tokens_per_second), inputs.runtime->Label(best), BatchText(best.batch),
      FormatRate(answer.found->tokens_per_second),
      answer.found->tokens_per_second / tokens_per_second, fmt::join(words, " "),
      given.micro_batch ? ", ⟦micro_batch⟧" : "", given.grad_accum ? ", ⟦grad_accum⟧" : "");
}

PlanAnswer FindAnswer(ResolvedPlan& request, ChoiceSearch& searcher,
                      const AnswerListener& listener) {
  for (bool again = false;; again = true) {
    SearchResult result = searcher.Run();
    if (!result.best) ThrowNothingFits(request, result);
    PlanAnswer answer = {MakePlan(searcher, result), {}, ""};
    std::optional<KnownBatches> batches;
    StageBest& best = result.stages[*result.best];
    const Found found = FoundOf(best, *answer.plan.runtime);
    answer.saves = SettleAsyncSave(AsyncSaveOf(request.asked().common),
                                   searcher.ClusterOf(found.candidate), answer.plan);
    if (!answer.saves.empty()) best.estimate = answer.plan.choice;
    std::vector<AdviceLine> first = FirstLines(request, searcher, answer.plan, found, batches);
    if (listener.chosen) listener.chosen(answer.plan, result, first, again);
    Advice advice = Advise(searcher, result, request.hardware(), listener.advice,
                           request.asked().quick, batches);
    if (advice.outdated) continue;
    advice.lines.insert(advice.lines.begin(), first.begin(), first.end());
    const auto add = [&](AdviceKind kind, std::string text) {
      if (text.empty()) return;
      advice.lines.push_back({kind, std::move(text), {}});
      if (listener.advice) listener.advice(advice.lines.back());
    };
    add(AdviceKind::kStates, LighterStatesText(request, searcher, answer.plan));
    add(AdviceKind::kProducts, FasterProductsText(request, searcher, answer.plan));
    add(AdviceKind::kSequences, FasterSequencesText(request, searcher, answer.plan));
    for (const AdviceLine& line : advice.lines) answer.plan.advice.push_back(line.text);
    answer.report.gap = result.gap;
    answer.report.stages = std::move(result.stages);
    answer.report.advice = std::move(advice.lines);
    answer.report.goal =
        ResolveGoal(request.asked().common.goal, answer.plan.setup.batch, request.hardware().gpu,
                    answer.plan.runtime->facts().fixed_rows);
    if (!answer.plan.runtime->facts().trains_here)
      answer.report.config = RuntimeConfig(answer.plan);
    return answer;
  }
}

void RefuseAllowForConfig(const PlanRequest& request) {
  if (!request.allow) return;
  ThrowUsage(
      "⟦allow⟧: {} is searched for zeroplan's own executor alone; use ⟦plan_out⟧ for its plan "
      "instead of ⟦out⟧, or leave ⟦allow⟧ out",
      request.allow.text);
}

std::string OwnConfigInstead(PlanRequest request) {
  request.common.runtime.runtime.emplace(&OwnExecutor());
  request.for_config = true;
  Assumptions unused;
  try {
    const ResolvedPlan resolved(request, unused);
  } catch (const Error&) {
    return "";
  }
  return "; or use ⟦runtime⟧ zeroplan ⟦out⟧ for a DeepSpeed config by zeroplan's own choice";
}

std::string RuntimeConfig(const Plan& plan) {
  return NameRuntime(plan.runtime->ConfigJson(plan.setup, plan.model.layers),
                     plan.runtime->version(), RecipeWords(plan.recipe));
}

void FinishAnswer(const ResolvedPlan& request, const ChoiceSearch& searcher,
                  Assumptions& assumptions, PlanAnswer& answer) {
  Plan& plan = answer.plan;
  const SearchCluster& at = searcher.ClusterOf(CandidateOf(plan.setup));
  const bool programs = plan.runtime->has_programs();
  plan.origin = OriginOf(request.asked().common, request.hardware());
  if (const auto& speed = plan.choice.time.tokens_per_second;
      speed && request.asked().common.config.given() && !request.asked().quick) {
    if (std::string loss = ConfigLoss(request, plan.setup.batch, *speed); !loss.empty()) {
      assumptions.notes.push_back(std::move(loss));
    }
  }
  if (programs) {
    NoteKernels(plan.model, plan.setup, plan.lower, request.hardware(), plan.setup.deterministic,
                assumptions);
  }
  NoteGuesses(request.hardware(), at.cluster, std::span(&plan.setup, 1), plan.recipe, assumptions);
  const RunGoal& goal = answer.report.goal;
  const bool interrupted = goal.interruptions && programs;
  if (programs) {
    AssumeAsyncSave(request.asked().common, assumptions);
    answer.report.checkpoint = SaveCostOf(plan.model, plan.setup, at.cluster, request.hardware());
    assumptions.notes.push_back(CheckpointText(*answer.report.checkpoint, plan, at.cluster,
                                               request.hardware().node, answer.saves.empty()));
  }
  if (interrupted) {
    plan.choice.interrupted = InterruptedCostOf(goal, *answer.report.checkpoint, plan.setup.batch,
                                                *plan.choice.time.total_seconds,
                                                plan.lower.async_save, request.hardware());
    assumptions.notes.push_back(InterruptedText(goal, *plan.choice.interrupted));
  }
  if (programs) {
    AssumeSums(request.asked().common, std::span(&plan.setup, 1), assumptions);
    NoteIdleSums(std::span(&plan.setup, 1), assumptions);
  }
  for (std::string& note : plan.runtime->Notes(plan.choice, plan.recipe)) {
    assumptions.notes.push_back(std::move(note));
  }
  if (std::string space = plan.runtime->SpaceText(); !space.empty()) {
    assumptions.notes.push_back(std::move(space));
  }
  if (programs && request.asked().for_config && plan.setup.batch.sequence_ranks > 1) {
    assumptions.notes.push_back(
        "⟦out⟧: DeepSpeed has sequences over GPUs by the model's code alone "
        "(UlyssesSPAttentionHF); ⟦runtime⟧ deepspeed predicts its memory.");
  }
  if (programs) NoteStates(plan.setup, assumptions);
  if (programs) NoteFp8(plan.model, plan.setup, assumptions);
  if (!answer.saves.empty()) assumptions.notes.push_back(answer.saves);
  answer.report.assumed = assumptions.assumed;
  answer.report.notes = assumptions.notes;
}

std::string SetSwapFolder(TrainSetup& setup) {
  bool set = false;
  auto fill = [&](auto& offload) {
    if (offload.device != OffloadDevice::kNvme || !offload.nvme_path.empty()) return;
    offload.nvme_path = kSwapFolder;
    set = true;
  };
  fill(setup.zero.offload_optimizer);
  fill(setup.zero.offload_param);
  if (!set) return "";
  return fmt::format("The plan swaps to {}: edit nvme_path, or give train ⟦nvme_path⟧ DIR",
                     kSwapFolder);
}

}  // namespace zeroplan
