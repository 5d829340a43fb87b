// What 'zeroplan train' writes of a run, event by event: the names, types and meanings. The one
// list of them: JSONL and TensorBoard's files are written through it, and the schema for editors is
// made of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

inline constexpr std::string_view kMetricsSchema = "zeroplan.metrics/1";

enum class MetricEvent : uint8_t { kStart, kStep, kValidation, kSaved, kEnd };
inline constexpr int kMetricEvents = 5;
// "start", "step", "validation", "saved", "end": a line's "event".
std::string_view MetricEventName(MetricEvent event);

enum class MetricType : uint8_t {
  kBool,
  kWhole,   // a whole number from 0 on
  kNumber,  // null where it is not finite
  kText,
  kObject,  // JSON
};

struct MetricField {
  std::string name;  // "loss"; dots are levels: "planned_bytes.gpu.params"
  MetricType type;
  bool may_be_null;  // what is not known
  std::string_view meaning;
  // Its name among TensorBoard's scalars, "train/loss"; empty: it is not one of them.
  std::string_view tag = {};
  // A text that is one of these; empty: any.
  std::vector<std::string_view> words = {};
  MetricEvent event = MetricEvent::kStart;
};

// In the order in which a line has them. Each event's line has all of its fields, none twice.
const std::vector<MetricField>& MetricFields();

}  // namespace zeroplan
