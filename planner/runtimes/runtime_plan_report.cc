#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/units.h"
#include "core/config/reader_state.h"
#include "planner/estimate/choices.h"
#include "planner/footprint.h"
#include "planner/report/report_text.h"
#include "planner/runtimes/runtime_plan.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

std::string Elements(uint64_t elements) {
  std::string text = fmt::format("{:.3g}", static_cast<double>(elements));
  const size_t at = text.find("e+0");
  return at == std::string::npos ? text : text.replace(at, 3, "e");
}

std::string RateText(double tokens_per_second) {
  return FormatCount(static_cast<uint64_t>(tokens_per_second)) + " tokens/s";
}

std::string BatchText(const BatchSpec& batch) {
  std::string text = fmt::format("micro-batch {}", batch.micro_batch);
  if (batch.grad_accum > 1) text += fmt::format(" x {} micro-steps", batch.grad_accum);
  return text;
}

std::string GpusText(int gpus) { return fmt::format("{} GPU{}", gpus, gpus == 1 ? "" : "s"); }

std::string Fsdp2Label(const TrainSetup& setup) {
  std::string label =
      setup.zero.stage == 3 ? "resharded after forward" : "not resharded after forward";
  if (setup.zero.offload_param.device != OffloadDevice::kNone) {
    label += ", parameters and optimizer on the CPU";
  }
  if (setup.recompute.kind == RecomputeKind::kFull) label += ", full recompute";
  if (setup.recompute.kind == RecomputeKind::kSelective)
    label += ", selective recompute (torchtitan's)";
  return label;
}

// Keys that are not DeepSpeed's default, or that it has no default for.
std::string KeysText(const ZeroConfig& zero) {
  if (zero.stage == 0) return "";
  const ZeroConfig plain = ReaderZeroDefaults(zero.stage);
  std::string text;
  if (zero.reduce_bucket_elements != plain.reduce_bucket_elements) {
    text += fmt::format(", reduce_bucket_size {}", Elements(zero.reduce_bucket_elements));
  }
  if (!zero.overlap_comm) text += ", no overlap_comm";
  return text;
}

std::string KindText(OtherRuntime runtime, const TrainSetup& setup) {
  return runtime == OtherRuntime::kFsdp2 ? Fsdp2Label(setup) : SetupLabel(setup);
}

std::string StageName(OtherRuntime runtime, int stage) {
  if (runtime == OtherRuntime::kDeepSpeed) return fmt::format("Stage {}", stage);
  return stage == 3 ? "Resharded after forward" : "Not resharded after forward";
}

std::string Headline(const RuntimePlan& plan) {
  const TrainSetup& setup = plan.best().choice.setup;
  const Cluster& cluster = plan.cluster;
  return fmt::format(
      "{} under {}: {} parameters, sequence {}, {}, {}; {} x {}{}, {} a GPU", plan.model.name,
      plan.best().choice.footprint.runtime, FormatCount(plan.model.ParamCount()),
      setup.batch.seq_len, PrecisionText(setup), CompiledText(plan.compile), cluster.gpus,
      cluster.gpu_name, cluster.nodes() == 1 ? "" : fmt::format(", {} nodes", cluster.nodes()),
      FormatBytes(cluster.gpu_capacity_bytes));
}

std::string Chosen(const RuntimePlan& plan) {
  const RuntimeJudged& best = plan.best();
  const int gpus = plan.cluster.gpus;
  return fmt::format(
      "Chosen for {}: {}, on {}: by its own predicted time and memory the best of {} choices. {} a "
      "step, {} ({} a GPU).",
      OtherRuntimeName(plan.runtime), RuntimeChoiceText(plan.runtime, best.choice.setup),
      GpusText(gpus), plan.search.stats.candidates, FormatSeconds(best.choice.time->step_seconds),
      RateText(best.tokens_per_second), RateText(best.tokens_per_second / gpus));
}

std::string EmptiesCacheText(uint64_t segments) {
  if (segments == 0) {
    return " It fits because the allocator gives cached memory back once, before its steps are all "
           "alike.";
  }
  return fmt::format(
      " It fits because the allocator gives cached memory back while it runs: {} segment{} a step, "
      "whose time is not in the prediction.",
      segments, segments == 1 ? "" : "s");
}

// What is known to be less certain than the margins say.
std::string Doubt(const RuntimePlan& plan) {
  const TrainSetup& setup = plan.best().choice.setup;
  if (setup.recompute.kind == RecomputeKind::kSelective) {
    return "Of selective recompute memory alone was compared with runs (two that torchtitan "
           "published), its time with none.";
  }
  if (plan.runtime != OtherRuntime::kDeepSpeed || setup.zero.stage < 3 ||
      setup.recompute == kNoRecompute) {
    return "";
  }
  return fmt::format(
      "Stage 3 with recompute is the least certain: it waits for the host's Python, whose speed is "
      "not known. {} such runs without offload took {:.2f} to {:.2f} times their predicted time. "
      "Try "
      "it before you rely on it.",
      kDeepSpeedMargins.recompute_runs, kDeepSpeedMargins.recompute_fastest,
      kDeepSpeedMargins.recompute_slowest);
}

std::string MemoryText(const RuntimePlan& plan) {
  const RuntimeJudged& best = plan.best();
  const RuntimeFootprint& footprint = best.choice.footprint;
  const uint64_t host =
      footprint.HostBytes() * static_cast<uint64_t>(plan.cluster.ranks_per_node());
  const uint64_t outside = plan.cluster.gpu_reserve_bytes + footprint.context_bytes;
  std::string text = fmt::format(
      "Memory of a GPU: {} allocated in initialisation, {} in steps; {} reserved of {} that the "
      "allocator may take; {} with what lies outside it, of {}. Host: {}.",
      FormatBytes(footprint.peaks[0].allocated_bytes), FormatBytes(footprint.StepAllocatedBytes()),
      FormatBytes(footprint.ReservedBytes()),
      FormatBytes(plan.cluster.gpu_capacity_bytes -
                  std::min(plan.cluster.gpu_capacity_bytes, outside)),
      FormatBytes(footprint.DeviceBytes()), FormatBytes(plan.cluster.gpu_capacity_bytes),
      FormatBytes(host));
  switch (best.room) {
    case MemoryRoom::kAmple:
      return text + " It fits with the memory's margin of error on top.";
    case MemoryRoom::kTight:
      return text +
             " It fits as predicted, but not with the margin of error on top: should it take more, "
             "the allocator gives cached memory back, which costs time.";
    case MemoryRoom::kEmptiesCache:
      return text + EmptiesCacheText(best.choice.segments_given_back);
    case MemoryRoom::kAtRisk:
    case MemoryRoom::kNone:
      return text +
             " At risk: with the margin of error on top its tensors would not fit; nothing else "
             "was found that does.";
  }
  return text;
}

// Parts of a step, as they are said.
struct Part {
  const char* share;  // "A step is 80 % compute, ..."
  const char* more;   // "... slower: <more>"
  double RuntimeTime::*seconds;
};
constexpr Part kParts[] = {
    {"compute", "its kernels take longer", &RuntimeTime::compute},
    {"waiting for collectives", "it waits longer for collectives",
     &RuntimeTime::exposed_communication},
    {"waiting for copies to and from the host", "it waits for copies to and from the host",
     &RuntimeTime::transfers},
    {"the optimizer on the host", "its optimizer runs on the host", &RuntimeTime::host_update},
    {"waiting for the Python thread", "it waits longer for the Python thread",
     &RuntimeTime::host_overhead}};

std::string SharesText(const RuntimeTime& time) {
  std::vector<std::string> shares;
  for (const Part& part : kParts) {
    const double percent = 100 * time.*part.seconds / time.step_seconds;
    shares.push_back(fmt::format("{:.{}f} % {}", percent, percent < 9.95 ? 2 : 1, part.share));
  }
  return fmt::format("A step is {}.", fmt::join(shares, ", "));
}

// What most of the difference between two choices is, each a token.
std::string LossReason(const RuntimeJudged& lost, const RuntimeJudged& best) {
  const RuntimeTime &slow = *lost.choice.time, &fast = *best.choice.time;
  // Seconds of both for as many tokens as the best has in a step.
  const double scale =
      best.tokens_per_second / lost.tokens_per_second * fast.step_seconds / slow.step_seconds;
  const Part* most = nullptr;
  double difference = 0;
  for (const Part& part : kParts) {
    const double more = scale * (slow.*part.seconds) - fast.*part.seconds;
    if (more > difference) {
      difference = more;
      most = &part;
    }
  }
  if (most == nullptr) return "";
  const bool recomputes = lost.choice.setup.recompute.kind != RecomputeKind::kNone &&
                          best.choice.setup.recompute.kind == RecomputeKind::kNone;
  const bool kernels = most->seconds == &RuntimeTime::compute;
  const char* again = lost.choice.setup.recompute.kind == RecomputeKind::kSelective
                          ? "it recomputes every second product"
                          : "it recomputes whole layers";
  return fmt::format(": {} (+{:.{}f} % of a step)", kernels && recomputes ? again : most->more,
                     100 * difference / fast.step_seconds,
                     difference < 0.0995 * fast.step_seconds ? 1 : 0);
}

std::string StageLine(const RuntimePlan& plan, const RuntimeStageBest& stage) {
  if (!stage.best) {
    return fmt::format("{} does not fit. Closest: {}: {}.", StageName(plan.runtime, stage.stage),
                       RuntimeChoiceText(plan.runtime, stage.closest->choice.setup),
                       stage.closest->choice.why_not);
  }
  const RuntimeJudged& best = *stage.best;
  const double lost = 1 - best.tokens_per_second / plan.best().tokens_per_second;
  std::string text = RuntimeChoiceText(plan.runtime, best.choice.setup);
  text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
  text += ": ";
  if (lost >= 0.0005) {
    text += fmt::format("{:.2g} % slower, {}{}", 100 * lost, RateText(best.tokens_per_second),
                        LossReason(best, plan.best()));
  } else if (lost > -0.0005) {
    text += fmt::format("as fast, {}", RateText(best.tokens_per_second));
  } else {
    text += fmt::format("{:.2g} % faster as predicted, {}", -100 * lost,
                        RateText(best.tokens_per_second));
  }
  if (best.room != MemoryRoom::kAmple && best.room != plan.best().room) {
    text += best.room == MemoryRoom::kTight
                ? ", but its memory does not fit with the margin of error on top"
            : best.room == MemoryRoom::kEmptiesCache
                ? ", but it empties the allocator's cache while it runs, which costs time"
                : ", but its tensors do not fit with the margin of error on top";
  } else if (std::abs(lost) <= kRuntimeTieMargin) {
    text += " (a tie: the simpler is taken)";
  } else if (lost < 0) {
    const auto trust = [](const RuntimeJudged& of) {
      return RuntimeMerit(of) / of.tokens_per_second;
    };
    text +=
        fmt::format(", but its time is known less well: to be taken it has to be {:.2g} % faster",
                    100 * (trust(plan.best()) / trust(best) - 1));
  }
  return text + '.';
}

std::string ExecutorText(const RuntimePlan& plan) {
  if (!plan.executor) return "zeroplan's own executor: nothing fits it of what was asked for.";
  const ExecutorBest& executor = *plan.executor;
  const double factor = executor.tokens_per_second / plan.best().tokens_per_second;
  return fmt::format(
      "zeroplan's own executor would reach {} with its own best plan ({}, {}{}), by its own "
      "prediction: {:.2f} times as many.",
      RateText(executor.tokens_per_second), SetupLabel(executor.setup),
      BatchText(executor.setup.batch),
      executor.gap > 0 ? fmt::format("; not proven: within {:.2g} %", 100 * executor.gap) : "",
      factor);
}

std::string StatsText(const RuntimePlan& plan) {
  const RuntimeSearchStats& stats = plan.search.stats;
  return fmt::format(
      "Searched {} choices in {}: {}. {} steps were played; {} choices cut because smaller ones of "
      "their kind do not fit, {} because they cannot be faster than what fits, {} because a larger "
      "reduce bucket has room.",
      stats.candidates, FormatSeconds(plan.seconds), plan.space, stats.played, stats.cut_by_memory,
      stats.cut_by_time, stats.had_room);
}

Json SetupJson(const TrainSetup& setup) {
  const ZeroConfig& zero = setup.zero;
  return {{"stage", zero.stage},
          {"offload_optimizer", OffloadDeviceName(zero.offload_optimizer.device)},
          {"offload_ratio", zero.offload_optimizer.ratio},
          {"offload_param", OffloadDeviceName(zero.offload_param.device)},
          {"checkpointing", RecomputeName(setup.recompute)},
          {"micro_batch", setup.batch.micro_batch},
          {"grad_accum", setup.batch.grad_accum},
          {"global_batch", setup.batch.global_batch()},
          {"gpus", setup.batch.world_size},
          {"dtype", DtypeName(setup.precision.dtype)}};
}

Json JudgedJson(const RuntimePlan& plan, const RuntimeJudged& judged) {
  const RuntimeChoice& choice = judged.choice;
  const RuntimeFootprint& footprint = choice.footprint;
  Json json = SetupJson(choice.setup);
  if (plan.runtime == OtherRuntime::kDeepSpeed) {
    json["settings"] = {{"reduce_bucket", choice.setup.zero.reduce_bucket_elements},
                        {"overlap_comm", choice.setup.zero.overlap_comm}};
  }
  json["gpu_bytes"] = {{"init_allocated", footprint.peaks[0].allocated_bytes},
                       {"step_allocated", footprint.StepAllocatedBytes()},
                       {"reserved", footprint.ReservedBytes()},
                       {"context", footprint.context_bytes},
                       {"total", footprint.DeviceBytes()}};
  json["host_bytes"] = footprint.HostBytes() * static_cast<uint64_t>(plan.cluster.ranks_per_node());
  json["step_seconds"] = nullptr;
  if (const std::optional<RuntimeTime>& time = choice.time) {
    json["step_seconds"] = {{"total", time->step_seconds},
                            {"compute", time->compute},
                            {"exposed_communication", time->exposed_communication},
                            {"transfers", time->transfers},
                            {"host_update", time->host_update},
                            {"host_overhead", time->host_overhead}};
  }
  json["tokens_per_second"] = judged.tokens_per_second;
  json["fits"] = judged.fits();
  json["room"] = MemoryRoomName(judged.room);
  json["segments_given_back"] = choice.segments_given_back;
  json["why_not"] = choice.fits() ? Json(nullptr) : Json(choice.why_not);
  return json;
}

// "1, 2, 4": each once.
template <typename T, typename Of>
std::string EachOnce(const std::vector<TrainSetup>& setups, Of of, std::string_view separator) {
  std::set<T> values;
  for (const TrainSetup& setup : setups) values.insert(of(setup));
  return fmt::format("{}", fmt::join(values, separator));
}

}  // namespace

std::string RuntimeSpaceText(OtherRuntime runtime, const std::vector<TrainSetup>& setups) {
  const auto words = [&](auto of, std::string_view separator) {
    return EachOnce<std::string>(setups, of, separator);
  };
  std::string text;
  if (runtime == OtherRuntime::kFsdp2) {
    text = words([](const TrainSetup& s) { return s.zero.stage == 3 ? "resharded" : "not"; }, "/");
    text = text == "not"         ? "not resharded after forward"
           : text == "resharded" ? "resharded after forward"
                                 : "resharded after forward or not";
    text +=
        "; parameters and optimizer on " +
        words(
            [](const TrainSetup& s) {
              return s.zero.offload_param.device == OffloadDevice::kNone ? "the GPU" : "the CPU";
            },
            " or ");
  } else {
    const auto device = [](OffloadDevice on) { return on == OffloadDevice::kNone ? "GPU" : "CPU"; };
    text =
        "stages " + EachOnce<int>(setups, [](const TrainSetup& s) { return s.zero.stage; }, ", ");
    text +=
        "; optimizer on " +
        words([&](const TrainSetup& s) { return device(s.zero.offload_optimizer.device); }, " or ");
    const bool in_part = std::any_of(setups.begin(), setups.end(), [](const TrainSetup& s) {
      return s.zero.offload_optimizer.ratio < 1;
    });
    if (in_part) {
      std::set<double> ratios;
      for (const TrainSetup& s : setups) {
        if (s.zero.offload_optimizer.ratio < 1) ratios.insert(s.zero.offload_optimizer.ratio);
      }
      text += fmt::format(" (at stage 3 shares of {} too)", fmt::join(ratios, ", "));
    }
    text += ", parameters on " +
            words([&](const TrainSetup& s) { return device(s.zero.offload_param.device); }, " or ");
    std::set<uint64_t, std::greater<>> buckets;
    for (const TrainSetup& s : setups) buckets.insert(s.zero.reduce_bucket_elements);
    std::vector<std::string> sizes;
    for (const uint64_t elements : buckets) sizes.push_back(Elements(elements));
    text += fmt::format("; reduce_bucket_size {}", fmt::join(sizes, ", "));
    if (sizes.size() > 1) text += " (a smaller one where memory is short)";
    const bool no_overlap = std::any_of(setups.begin(), setups.end(), [](const TrainSetup& s) {
      return s.zero.stage > 0 && !s.zero.overlap_comm;
    });
    const bool overlap = std::any_of(setups.begin(), setups.end(), [](const TrainSetup& s) {
      return s.zero.stage > 0 && s.zero.overlap_comm;
    });
    if (overlap && no_overlap) {
      text += ", with and without overlap_comm";
    } else if (overlap) {
      text += ", with overlap_comm";
    } else if (no_overlap) {
      text += ", without overlap_comm";
    }
    text += ", other keys as they are by default or in --config";
  }
  text += "; recompute " + words(
                               [](const TrainSetup& s) {
                                 return s.recompute.kind == RecomputeKind::kNone ? "none"
                                        : s.recompute.kind == RecomputeKind::kFull
                                            ? "of every layer"
                                            : "of every second product";
                               },
                               " or ");
  text += "; micro-batches " +
          EachOnce<int64_t>(setups, [](const TrainSetup& s) { return s.batch.micro_batch; }, ", ");
  return text;
}

std::string RuntimeChoiceText(OtherRuntime runtime, const TrainSetup& setup) {
  return KindText(runtime, setup) + ", " + BatchText(setup.batch) +
         (runtime == OtherRuntime::kDeepSpeed ? KeysText(setup.zero) : "");
}

std::string RuntimeMisfitText(const RuntimeSearchInputs& inputs,
                              const RuntimeSearchResult& search) {
  std::string text;
  for (const RuntimeStageBest& stage : search.stages) {
    if (!stage.closest) continue;
    text +=
        fmt::format("\n  {}: {}", RuntimeChoiceText(inputs.runtime, stage.closest->choice.setup),
                    stage.closest->choice.why_not);
  }
  return text;
}

std::string RuntimePlanText(const RuntimePlan& plan) {
  std::string text = Wrap(Headline(plan), 2) + '\n';
  const auto add = [&text](const std::string& paragraph) { text += Wrap(paragraph, 2); };
  add(Chosen(plan));
  add(MemoryText(plan));
  add(SharesText(*plan.best().choice.time));
  add(fmt::format("Margin of error. {}", RuntimeMarginText(plan.runtime)));
  if (const std::string doubt = Doubt(plan); !doubt.empty()) add(doubt);
  for (size_t i = 0; i < plan.search.stages.size(); ++i) {
    if (i != *plan.search.best) add(StageLine(plan, plan.search.stages[i]));
  }
  if (plan.asked_executor) add(ExecutorText(plan));
  if (plan.goal.tokens) {
    add(RunCostText(plan.goal, plan.best().choice.setup.batch,
                    plan.best().choice.time->step_seconds));
  }
  text += '\n';
  add(StatsText(plan));
  if (!plan.assumed.empty()) add(fmt::format("Assumed: {}", fmt::join(plan.assumed, ", ")));
  for (const std::string& note : plan.notes) add(note);
  return text;
}

std::string RuntimePlanJson(const RuntimePlan& plan, const std::string& config) {
  const RuntimeSearchStats& stats = plan.search.stats;
  Json json = {{"schema", "zeroplan.runtime-plan/1"},
               {"runtime", plan.best().choice.footprint.runtime},
               {"compiled", {{"layers", plan.compile.layers}, {"loss", plan.compile.loss}}},
               {"model", {{"name", plan.model.name}, {"params", plan.model.ParamCount()}}},
               {"cluster",
                {{"hw", plan.cluster.hardware},
                 {"gpus", plan.cluster.gpus},
                 {"gpus_per_node", plan.cluster.gpus_per_node},
                 {"gpu_capacity_bytes", plan.cluster.gpu_capacity_bytes},
                 {"gpu_reserve_bytes", plan.cluster.gpu_reserve_bytes}}},
               {"choice", JudgedJson(plan, plan.best())},
               {"config", Json::parse(config)}};
  const RuntimeMargins& margins = MarginsOf(plan.runtime);
  json["margins"] = {{"runs", margins.runs},
                     {"step_seconds_median", margins.time_median},
                     {"step_seconds", margins.time_worst},
                     {"chosen_runs", margins.chosen_runs},
                     {"chosen_step_seconds_median", margins.chosen_median},
                     {"chosen_step_seconds", margins.chosen_worst},
                     {"allocated", margins.allocated},
                     {"reserved", margins.reserved},
                     {"device", margins.device},
                     {"host", margins.host}};
  if (margins.recompute_runs > 0) {
    json["margins"]["stage_3_recompute_step_seconds"] = margins.recompute_worst;
  }
  json["stages"] = Json::array();
  for (const RuntimeStageBest& stage : plan.search.stages) {
    const std::optional<RuntimeJudged>& shown = stage.best ? stage.best : stage.closest;
    json["stages"].push_back({{"stage", stage.stage},
                              {"fits", stage.best.has_value()},
                              {"choice", shown ? JudgedJson(plan, *shown) : Json(nullptr)}});
  }
  json["executor"] = nullptr;
  if (plan.executor) {
    json["executor"] = SetupJson(plan.executor->setup);
    json["executor"]["step_seconds"] = plan.executor->step_seconds;
    json["executor"]["tokens_per_second"] = plan.executor->tokens_per_second;
    json["executor"]["gap"] = plan.executor->gap;
  }
  json["space"] = plan.space;
  json["search"] = {{"candidates", stats.candidates},       {"played", stats.played},
                    {"cut_by_memory", stats.cut_by_memory}, {"cut_by_time", stats.cut_by_time},
                    {"had_room", stats.had_room},           {"seconds", plan.seconds}};
  if (plan.goal.tokens) {
    const BatchSpec& batch = plan.best().choice.setup.batch;
    const RunCost cost = CostOf(plan.goal, batch, plan.best().choice.time->step_seconds);
    json["run"] = {{"tokens", *plan.goal.tokens},
                   {"steps", cost.steps},
                   {"seconds", cost.seconds},
                   {"gpu_hours", cost.gpu_hours},
                   {"price", cost.price ? Json(*cost.price) : Json(nullptr)}};
  }
  json["assumed"] = plan.assumed;
  json["notes"] = plan.notes;
  return json.dump(2) + '\n';
}

}  // namespace zeroplan
