#include "planner/report/choice_json.h"

#include <cmath>

#include "core/settings/setup_facts.h"
#include "planner/estimate/choices.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

Json GpuBytesJson(const Footprint& footprint) {
  Json json;
  for (const NamedBytes& part : GpuClasses(footprint)) json[std::string(part.name)] = part.bytes;
  json["total"] = footprint.gpu_total();
  return json;
}

Json HostBytesJson(const Footprint& footprint) {
  const HostBytes& host = footprint.host;
  return {{"pinned", host.pinned}, {"pageable", host.pageable}, {"total", host.total()}};
}

Json StepSecondsJson(const TimeEstimate& time) {
  return {{"compute", Nullable(time.compute_seconds)},
          {"exposed_comm", Nullable(time.exposed_comm_seconds)},
          {"exposed_offload", Nullable(time.exposed_offload_seconds)},
          {"optimizer", Nullable(time.optimizer_seconds)},
          {"total", Nullable(time.total_seconds)}};
}

Json StepFiguresJson(const ChoiceEstimate& choice) {
  const std::optional<StepTraffic>& traffic = choice.traffic;
  Json json = {{"nvme_bytes", choice.footprint.nvme_bytes},
               {"comm_bytes_per_step", traffic ? Json(traffic->collective_bytes) : Json()}};
  if (traffic && Hybrid(choice.setup)) {
    json["comm_bytes_by_axis"] = {{"within", traffic->within_groups()},
                                  {"across", traffic->across_groups()},
                                  {"all", traffic->over_all()}};
  }
  json.update(Json{{"pcie_bytes_per_step", Nullable(choice.pcie_bytes())},
                   {"step_seconds", StepSecondsJson(choice.time)},
                   {"tokens_per_second", Nullable(choice.time.tokens_per_second)},
                   {"mfu", Nullable(choice.time.mfu)}});
  return json;
}

Json ValueJson(const SettingValue& value) {
  return std::visit(
      []<typename T>(const T& of) {
        if constexpr (std::same_as<T, std::monostate>) {
          return Json(nullptr);
        } else {
          return Json(of);
        }
      },
      value);
}

void AddRecord(std::span<const SettingRow* const> rows, const TrainSetup& setup,
               const TorchRecipe* recipe, Json& json) {
  for (const SettingRow* row : rows) {
    if (row->record == RecordType::kNone) continue;
    json[std::string(row->name)] = ValueJson(RecordValue(*row, setup, recipe));
  }
}

Json ChoiceJson(const TrainSetup& setup, const TorchRecipe* recipe) {
  Json json = Json::object();
  AddRecord(kSettingRows, setup, recipe, json);
  return json;
}

Json TorchPhasesJson(const TorchFootprint& torch) {
  Json phases;
  for (size_t p = 0; p < kTorchPhases; ++p) {
    const auto phase = static_cast<TorchPhase>(p);
    const TorchPeak& peak = torch.peak(phase);
    Json& json = phases[std::string(TorchPhaseName(phase))];
    json = {{"allocated", peak.allocated_bytes}, {"reserved", peak.reserved_bytes}};
    for (size_t i = 0; i < kTorchClasses; ++i) {
      json["classes"][std::string(TorchClassName(static_cast<TorchClass>(i)))] =
          peak.class_bytes[i];
    }
  }
  return phases;
}

Json PhasesAroundJson(const TorchFootprint& torch) {
  if (torch.around.empty()) return nullptr;
  const auto bytes_json = [](const AroundBytes& bytes) {
    return Json{{"gpu_bytes", bytes.gpu},
                {"rank_0_host_bytes", bytes.rank_0_host},
                {"other_rank_host_bytes", bytes.other_host}};
  };
  Json phases;
  for (const AroundPeak& peak : torch.around) {
    Json json = bytes_json(peak.bytes);
    json.update({{"why", peak.why}, {"setting", TextOrNull(peak.setting)}, {"instead", nullptr}});
    if (!peak.instead.empty()) {
      json["instead"] = {{"setting", peak.instead}};
      json["instead"].update(bytes_json(peak.instead_bytes));
    }
    json["why_not"] = TextOrNull(peak.why_not);
    phases[std::string(AroundPhaseName(peak.phase))] = std::move(json);
  }
  return phases;
}

Json TorchStepJson(const TimeEstimate& time) {
  if (!time.total_seconds || !time.host_update_seconds) return nullptr;
  return {{"compute", *time.compute_seconds},
          {"exposed_communication", *time.exposed_comm_seconds},
          {"transfers", *time.exposed_offload_seconds - *time.host_update_seconds},
          {"host_update", *time.host_update_seconds},
          {"host_overhead", *time.host_overhead_seconds}};
}

Json CompiledJson(TorchCompile compile) {
  return {{"layers", compile.layers}, {"loss", compile.loss}};
}

Json RecipeJson(const TorchRecipe& recipe) {
  Json json = Json::object();
  for (const auto& [name, value] : RecipeWords(recipe)) json[name] = value;
  return json;
}

Json RuntimeChoiceJson(const ChoiceEstimate& choice, const TorchRecipe* recipe) {
  Json json = ChoiceJson(choice.setup, recipe);
  json.update({{"settings",
                {{"reduce_bucket", ElementsJson(choice.settings.reduce_bucket_elements)},
                 {"overlap_comm", choice.settings.overlap}}},
               {"gpu_bytes", GpuBytesJson(choice.footprint)},
               {"host_bytes", choice.footprint.host.total()},
               {"step_seconds", nullptr},
               {"tokens_per_second", choice.time.tokens_per_second.value_or(0)},
               {"fits", choice.fits},
               {"room", MemoryRoomName(choice.room)},
               {"segments_given_back", 0},
               {"why_not", choice.fits ? Json(nullptr) : Json(choice.why_not)}});
  if (choice.time.total_seconds) {
    json["step_seconds"] = {{"total", *choice.time.total_seconds}};
    if (const Json parts = TorchStepJson(choice.time); !parts.is_null()) {
      json["step_seconds"].update(parts);
    }
  }
  if (const std::optional<TorchFootprint>& torch = choice.footprint.torch) {
    json["gpu_bytes"].update({{"init_allocated", torch->peak(TorchPhase::kInit).allocated_bytes},
                              {"step_allocated", torch->StepAllocatedBytes()},
                              {"reserved", torch->ReservedBytes()},
                              {"context", torch->context_bytes}});
    json["segments_given_back"] = torch->segments_given_back;
    json["phases_around"] = PhasesAroundJson(*torch);
  }
  return json;
}

nlohmann::ordered_json ElementsJson(uint64_t elements) {
  return elements == kAuto ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(elements);
}

nlohmann::ordered_json RunJson(const RunGoal& goal, const ChoiceEstimate& choice) {
  if (!goal.tokens || !choice.time.total_seconds) return nullptr;
  const RunCost cost = CostOf(goal, choice.setup.batch, *choice.time.total_seconds);
  return {{"tokens", *goal.tokens},        {"steps", cost.steps},
          {"seconds", cost.seconds},       {"gpu_hours", cost.gpu_hours},
          {"price", Nullable(cost.price)}, {"gpu_kwh", Nullable(cost.gpu_kwh)}};
}

nlohmann::ordered_json InterruptionsJson(const InterruptedCost& cost) {
  const auto known = [&](auto value) { return cost.known ? Json(value) : Json(nullptr); };
  // JSON has no infinities.
  const auto finite = [](const std::optional<double>& value) {
    return value && std::isfinite(*value) ? Json(*value) : Json(nullptr);
  };
  return {{"rate_per_hour", cost.rate * 3600},
          {"interval_steps", known(cost.interval_steps)},
          {"interval_seconds", known(cost.interval_seconds)},
          {"save_seconds", known(cost.save_seconds)},
          {"whole_save_seconds", known(cost.whole_save_seconds)},
          {"restart_seconds", known(cost.restart_seconds)},
          {"lost_share", known(cost.lost_share)},
          {"expected_seconds", finite(cost.expected_seconds)},
          {"expected_gpu_hours", finite(cost.expected_gpu_hours)},
          {"expected_price", finite(cost.expected_price)},
          {"notice_needs_seconds", known(cost.notice_needs_seconds)},
          {"fits_notice", Nullable(cost.fits_notice)}};
}

nlohmann::ordered_json DataJson(const RunGoal& goal, const BatchSpec& batch) {
  const DataFacts& facts = *goal.data;
  const DocumentLengths& lengths = facts.lengths;
  const bool stream = facts.packing == Packing::kStream;
  const MicroBatchTokens micro_batch = MicroBatchOf(facts, batch.micro_batch);
  const auto rows = [&](const std::optional<EpochRows>& epoch) -> Json {
    if (!epoch) return nullptr;
    return {{"sequences", epoch->sequences}, {"padding", epoch->PaddingShare(facts.seq_len)}};
  };
  const auto cuts = [&](const SeqLenProposal& of) -> Json {
    return {{"seq_len", of.seq_len},
            {"cut_documents", of.cut_documents},
            {"cut_tokens", of.cut_tokens}};
  };
  return {{"documents", lengths.documents()},
          {"tokens", lengths.tokens()},
          {"counted_tokens", facts.counted.value_or(lengths.tokens())},
          {"document_tokens",
           {{"least", lengths.AtShare(0)},
            {"median", lengths.AtShare(0.5)},
            {"mean", lengths.mean()},
            {"p95", lengths.AtShare(0.95)},
            {"p99", lengths.AtShare(0.99)},
            {"longest", lengths.AtShare(1)}}},
          {"seq_len", facts.seq_len},
          {"packing", PackingName(facts.packing)},
          {"trained_documents", stream ? Json(nullptr) : Json(facts.trained_documents)},
          {"held_back", facts.held_back},
          {"longer_documents", facts.longer},
          {"left_out_tokens", facts.left_out},
          {"uncounted_documents", facts.unheard},
          {"single_token_documents", facts.single},
          {"epoch", {{"sequences", facts.epoch.sequences}, {"padding", micro_batch.padding}}},
          {"packed", rows(facts.packed)},
          {"one_a_sequence", rows(facts.padded)},
          {"cuts", stream ? Json(nullptr) : cuts(CutsOf(lengths, facts.fixed_rows, facts.seq_len))},
          {"proposal", stream ? Json(nullptr) : cuts(ProposeSeqLen(lengths, facts.fixed_rows))},
          {"sequences_per_step", batch.global_batch()},
          {"epochs", goal.epochs},
          {"steps", CostOf(goal, batch, 0).steps},
          {"micro_batch_tokens",
           {{"planned", micro_batch.planned},
            {"largest", micro_batch.largest},
            {"mean", micro_batch.mean}}}};
}

}  // namespace zeroplan
