#include "planner/runs/metric_fields.h"

#include <array>

#include "core/program/program.h"
#include "core/settings/settings.h"

namespace zeroplan {
namespace {

using enum MetricEvent;
using enum MetricType;

constexpr std::array<std::string_view, kMetricEvents> kEventNames = {"start", "step", "validation",
                                                                     "saved", "end"};

MetricType TypeOf(RecordType record) {
  switch (record) {
    case RecordType::kBool:
      return kBool;
    case RecordType::kWhole:
      return kWhole;
    case RecordType::kNumber:
      return kNumber;
    case RecordType::kWord:
    case RecordType::kNone:
      break;
  }
  return kText;
}

std::vector<MetricField> MakeFields() {
  std::vector<MetricField> fields;
  const auto add = [&](MetricEvent event, std::vector<MetricField> rows) {
    for (MetricField& row : rows) {
      row.event = event;
      fields.push_back(std::move(row));
    }
  };
  const auto bytes_of = [&](MetricEvent event, const std::string& prefix, std::string_view name,
                            std::string_view meaning) {
    add(event, {{prefix + std::string(name), kWhole, false, meaning}});
  };

  const auto of_setting = [&](const char* prefix, const SettingRow& row) {
    add(kStart, {{prefix + std::string(row.name),
                  TypeOf(row.record),
                  row.may_be_null,
                  row.about,
                  {},
                  row.words != nullptr ? row.words() : std::vector<std::string>()}});
  };
  add(kStart,
      {{"schema", kText, false, "What form these lines have", {}, {std::string(kMetricsSchema)}},
       {"plan.model", kText, false, "Name of the model"},
       {"plan.params", kWhole, false, "Parameters, with the padded vocabulary"}});
  for (const SettingRow* row : kMetricSettings) {
    if (row == &setting::seq_len) {
      add(kStart, {{"plan.gpus_per_node", kWhole, false, "Ranks of one host"}});
    }
    of_setting("plan.", *row);
  }
  add(kStart,
      {{"plan.backend", kText, false, "What the program is lowered for", {}, {"cpu", "cuda"}}});
  for (const SettingRow* row : kSettingRows) {
    if (row->record != RecordType::kNone) of_setting("choice.", *row);
  }
  for (int c = 0; c < kMemoryClasses; ++c) {
    bytes_of(kStart, "planned_bytes.gpu.", MemoryClassName(static_cast<MemoryClass>(c)),
             "Planned bytes of this class of one rank");
  }
  add(kStart,
      {{"planned_bytes.gpu.runtime", kWhole, true, "Bytes outside the arenas; null on the CPU"},
       {"planned_bytes.gpu.total", kWhole, false, "Runtime and arena; on the CPU the arena"},
       {"planned_bytes.host.pinned", kWhole, false, "Of one rank"},
       {"planned_bytes.host.pageable", kWhole, false, "Of one rank"},
       {"planned_bytes.host.total", kWhole, false, "Of one rank"},
       {"planned_bytes.nvme", kWhole, false, "One rank's swap file"},
       {"predicted.hardware", kText, true, "Profile; null on the CPU"},
       {"predicted.step_seconds", kNumber, true, "Its time of a step; null on the CPU"},
       {"program", kObject, false, "All that the program was lowered from"}});

  add(kStep,
      {{"step", kWhole, false, "1 for the first; skipped steps count"},
       {"loss", kNumber, true, "Mean over the targets that count, before the update", "train/loss"},
       {"grad_norm", kNumber, true, "Global, unscaled, before clipping", "train/grad_norm"},
       {"lr", kNumber, true, "The rate this step used", "train/lr"},
       {"loss_scale", kNumber, true, "Of the next step; 1 without fp16", "train/loss_scale"},
       {"skipped", kBool, false, "Whether nothing changed", "train/skipped"},
       {"skip_reason",
        kText,
        true,
        "Why it was skipped; null: it was not",
        {},
        {"gradients", "loss", "loss_spike", "gradient_spike", "nothing_counts"}},
       {"tokens", kWhole, false, "Of this step, all ranks"},
       {"step_seconds", kNumber, false, "Wall clock", "speed/step_seconds"},
       {"tokens_per_second", kNumber, false, "Of all ranks", "speed/tokens_per_second"},
       {"mfu", kNumber, true, "Useful FLOPs over the dense peak; null on the CPU", "speed/mfu"},
       {"exposed_comm_seconds", kNumber, true,
        "Rank 0's compute waited so long for communication; null on the CPU",
        "speed/exposed_comm_seconds"},
       {"exposed_offload_seconds", kNumber, true, "The same for offload",
        "speed/exposed_offload_seconds"},
       {"device_used_bytes", kWhole, true,
        "Highest seen so far on rank 0's GPU, of all programs on it; null on the CPU",
        "memory/device_used_bytes"},
       {"slowest_rank", kWhole, true, "Of the last steps; null where it was not looked at"},
       {"slowest_rank_seconds", kNumber, true, "What it took for a step by itself",
        "speed/slowest_rank_seconds"},
       {"slowest_rank_share", kNumber, true, "That over the median of the others",
        "speed/slowest_rank_share"},
       {"router_balance_loss", kNumber, true,
        "Load-balancing loss before its coefficient; null without experts", "experts/balance_loss"},
       {"router_z_loss", kNumber, true, "Mean square of the routers' logsumexp", "experts/z_loss"},
       {"expert_most", kNumber, true,
        "Tokens of the fullest expert over the mean of its layer's experts", "experts/most"},
       {"experts_without_tokens", kWhole, true, "Experts of all layers that got no token",
        "experts/without_tokens"}});
  add(kValidation, {{"step", kWhole, false, "After which step"},
                    {"loss", kNumber, true, "Of the validation part", "validation/loss"},
                    {"perplexity", kNumber, true, "exp(loss); null past the range of a double",
                     "validation/perplexity"}});
  add(kSaved,
      {{"step", kWhole, false, "What was saved"},
       {"folder", kText, false, "Name of its folder"},
       {"beside", kBool, false, "Written beside steps, from a copy"},
       {"stall_seconds", kNumber, false, "What the steps stood still for it", "save/stall_seconds"},
       {"waited_seconds", kNumber, false, "Of that, for its end"},
       {"write_seconds", kNumber, false, "To the commit", "save/write_seconds"},
       {"interval_steps", kWhole, true,
        "With 'auto' as the interval: steps to the next save, chosen from the four that follow",
        "save/interval_steps"},
       {"interruptions_per_hour", kNumber, true, "That the run was said to have"},
       {"interval_step_seconds", kNumber, true, "Median of the last steps"},
       {"interval_save_seconds", kNumber, true, "Median of what steps stood still for a save"},
       {"interval_write_seconds", kNumber, true,
        "Median from then to the commit; 0 where steps waited for all"}});
  add(kEnd, {{"steps", kWhole, false, "In all, those before a resume included"},
             {"skipped_steps", kWhole, false, "Of them"},
             {"saves", kWhole, false, "Checkpoints of this process"},
             {"saves_waited_for", kWhole, false, "Due while the one before was being written"}});
  for (const char* prefix : {"high_water_bytes.", "planned_arena_bytes."}) {
    for (int s = 0; s < kSpaces; ++s) {
      bytes_of(kEnd, prefix, SpaceName(static_cast<Space>(s)), "Of one rank's arena");
    }
  }
  add(kEnd,
      {{"device_used_bytes", kWhole, true,
        "Highest seen on rank 0's GPU, of all programs on it; null on the CPU"},
       {"step_seconds_median", kNumber, true, "Of this process's steps; null where none ran"}});
  return fields;
}

}  // namespace

std::string_view MetricEventName(MetricEvent event) {
  return kEventNames[static_cast<size_t>(event)];
}

const std::vector<MetricField>& MetricFields() {
  static const std::vector<MetricField> fields = MakeFields();
  return fields;
}

}  // namespace zeroplan
