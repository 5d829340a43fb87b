// The names, types and meanings of the events that 'zeroplan train' writes. This is the one list of
// them: JSONL and TensorBoard's files are written through it, and the schema for editors is made
// from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/settings/settings.h"

namespace zeroplan {

inline constexpr std::string_view kMetricsSchema = "zeroplan.metrics/1";

enum class MetricEvent : uint8_t { kStart, kStep, kValidation, kSaved, kEnd };
inline constexpr int kMetricEvents = 5;
// "start", "step", "validation", "saved", "end": a line's "event".
std::string_view MetricEventName(MetricEvent event);

enum class MetricType : uint8_t {
  kBool,
  kWhole,   // a whole number from 0 on
  kNumber,  // null if it is not finite
  kText,
  kObject,  // JSON
};

struct MetricField {
  std::string name;  // "loss"; dots are levels: "planned_bytes.gpu.params"
  MetricType type;
  bool may_be_null;  // null: unknown
  std::string_view meaning;
  // Its name among TensorBoard's scalars, "train/loss"; empty: none.
  std::string_view tag = {};
  // A text that is one of these; empty: any.
  std::vector<std::string> words = {};
  MetricEvent event = MetricEvent::kStart;
};

// Settings that the event "start" repeats in "plan", because it did so before it had "choice". New
// settings are in "choice" alone.
inline constexpr const SettingRow* kMetricSettings[] = {&setting::stage,
                                                        &setting::offload_optimizer,
                                                        &setting::offload_ratio,
                                                        &setting::offload_param,
                                                        &setting::checkpointing,
                                                        &setting::checkpoint_every,
                                                        &setting::checkpoint_layers,
                                                        &setting::checkpointing_above,
                                                        &setting::offload_activations,
                                                        &setting::offload_activation_layers,
                                                        &setting::micro_batch,
                                                        &setting::grad_accum,
                                                        &setting::gpus,
                                                        &setting::sequence_ranks,
                                                        &setting::seq_len,
                                                        &setting::dtype,
                                                        &setting::grad_accum_dtype,
                                                        &setting::communication_dtype,
                                                        &setting::master_weights,
                                                        &setting::optimizer_states,
                                                        &setting::matmul_dtype,
                                                        &setting::fp8_recipe};

// Fields in the order of a line. Each event's line has all of its fields, none twice.
const std::vector<MetricField>& MetricFields();

}  // namespace zeroplan
