// The values of one event of a run, by the names of planner/runs/metric_fields.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "planner/runs/metric_fields.h"

namespace zeroplan {

class MetricLine {
 public:
  explicit MetricLine(MetricEvent event);

  // REQUIRES: the event has a field `name`, and `value` is of its type.
  MetricLine& Set(std::string_view name, bool value) { return Take(name, value); }
  MetricLine& Set(std::string_view name, int value) { return Set(name, int64_t{value}); }
  MetricLine& Set(std::string_view name, int64_t value) { return Take(name, value); }
  MetricLine& Set(std::string_view name, uint64_t value) { return Take(name, value); }
  MetricLine& Set(std::string_view name, double value) { return Take(name, value); }
  // For kObject the value is JSON.
  MetricLine& Set(std::string_view name, std::string value) { return Take(name, std::move(value)); }
  MetricLine& Set(std::string_view name, std::string_view value) {
    return Take(name, std::string(value));
  }
  MetricLine& Set(std::string_view name, const char* value) {
    return Take(name, std::string(value));
  }
  // Nothing: not known.
  template <typename T>
  MetricLine& Set(std::string_view name, const std::optional<T>& value) {
    return value ? Set(name, *value) : Take(name, Value());
  }

  // One JSON object without a line break. REQUIRES: every field of the event was set.
  std::string Json() const;

  // The values of one row of CSV, in the order of CsvHeader(event()); what is null in JSON is
  // empty. REQUIRES: every field of the event was set.
  std::string Csv() const;
  MetricEvent event() const { return event_; }

  // What TensorBoard shows of it: tag and number, infinities and NaN among them. What is not known
  // is left out.
  std::vector<std::pair<std::string_view, double>> Scalars() const;

 private:
  using Value = std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string>;
  struct Slot {
    const MetricField* field;
    Value value;
    bool set = false;
  };
  MetricLine& Take(std::string_view name, Value value);
  // REQUIRES: it was set.
  const Value& ValueOf(const Slot& slot) const;

  MetricEvent event_;
  std::vector<Slot> slots_;
};

// The names of an event's fields, but for the event's own: "step,loss,...".
std::string CsvHeader(MetricEvent event);

}  // namespace zeroplan
