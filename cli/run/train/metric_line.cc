#include "cli/run/train/metric_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "planner/report/csv.h"

namespace zeroplan {
namespace {

using OrderedJson = nlohmann::ordered_json;

// What a value of a field has to be.
template <typename T>
bool IsOf(MetricType type, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return type == MetricType::kBool;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return type == MetricType::kWhole && value >= 0;
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    return type == MetricType::kWhole;
  } else if constexpr (std::is_same_v<T, double>) {
    return type == MetricType::kNumber;
  } else {
    return type == MetricType::kText || type == MetricType::kObject;
  }
}

// The object that `name` lies in, "plan" of "plan.model"; made where it is not there yet.
OrderedJson& At(OrderedJson& line, std::string_view name) {
  OrderedJson* at = &line;
  for (size_t dot; (dot = name.find('.')) != std::string_view::npos; name.remove_prefix(dot + 1)) {
    at = &(*at)[std::string(name.substr(0, dot))];
  }
  return (*at)[std::string(name)];
}

}  // namespace

MetricLine::MetricLine(MetricEvent event) : event_(event) {
  for (const MetricField& field : MetricFields()) {
    if (field.event == event) slots_.push_back({&field, {}, false});
  }
}

MetricLine& MetricLine::Take(std::string_view name, Value value) {
  const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                 [&](const Slot& s) { return s.field->name == name; });
  ZEROPLAN_CHECK(slot != slots_.end(), "a {} event has no {}", MetricEventName(event_), name);
  const MetricField& field = *slot->field;
  const bool fits = std::visit(
      [&]<typename T>(const T& v) {
        if constexpr (std::is_same_v<T, std::monostate>) {
          return field.may_be_null;
        } else if constexpr (std::is_same_v<T, std::string>) {
          return IsOf(field.type, v) &&
                 (field.words.empty() ||
                  std::find(field.words.begin(), field.words.end(), v) != field.words.end());
        } else {
          return IsOf(field.type, v);
        }
      },
      value);
  ZEROPLAN_CHECK(fits, "a {} event's {} is not what its field says", MetricEventName(event_), name);
  slot->value = std::move(value);
  slot->set = true;
  return *this;
}

std::string MetricLine::Json() const {
  OrderedJson line = {{"event", MetricEventName(event_)}};
  for (const Slot& slot : slots_) {
    At(line, slot.field->name) = std::visit(
        [&]<typename T>(const T& value) -> OrderedJson {
          if constexpr (std::is_same_v<T, std::monostate>) {
            return nullptr;
          } else if constexpr (std::is_same_v<T, double>) {
            // JSON has no infinities: what is no number is null.
            return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr);
          } else if constexpr (std::is_same_v<T, std::string>) {
            return slot.field->type == MetricType::kObject ? OrderedJson::parse(value)
                                                           : OrderedJson(value);
          } else {
            return value;
          }
        },
        ValueOf(slot));
  }
  return line.dump();
}

const MetricLine::Value& MetricLine::ValueOf(const Slot& slot) const {
  ZEROPLAN_CHECK(slot.set, "a {} event's {} is missing", MetricEventName(event_), slot.field->name);
  return slot.value;
}

std::string MetricLine::Csv() const {
  std::vector<std::string> cells;
  for (const Slot& slot : slots_) {
    cells.push_back(std::visit(
        []<typename T>(const T& value) -> std::string {
          if constexpr (std::is_same_v<T, std::monostate>) {
            return "";
          } else if constexpr (std::is_same_v<T, double>) {
            return std::isfinite(value) ? fmt::format("{}", value) : "";
          } else if constexpr (std::is_same_v<T, std::string>) {
            return CsvCell(value);
          } else {
            return fmt::format("{}", value);
          }
        },
        ValueOf(slot)));
  }
  return fmt::format("{}", fmt::join(cells, ","));
}

std::string CsvHeader(MetricEvent event) {
  std::vector<std::string> names;
  for (const MetricField& field : MetricFields()) {
    if (field.event == event) names.push_back(CsvCell(field.name));
  }
  return fmt::format("{}", fmt::join(names, ","));
}

std::vector<std::pair<std::string_view, double>> MetricLine::Scalars() const {
  std::vector<std::pair<std::string_view, double>> scalars;
  for (const Slot& slot : slots_) {
    if (slot.field->tag.empty()) continue;
    std::visit(
        [&]<typename T>(const T& value) {
          if constexpr (std::is_arithmetic_v<T>) {
            scalars.emplace_back(slot.field->tag, static_cast<double>(value));
          }
        },
        slot.value);
  }
  return scalars;
}

}  // namespace zeroplan
