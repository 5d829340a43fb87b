#include "planner/runs/metric_fields.h"
#include "planner/schemas/schema_json.h"
#include "planner/schemas/schemas.h"

namespace zeroplan {
namespace {

SchemaJson ValueOf(const MetricField& field) {
  SchemaJson value;
  switch (field.type) {
    case MetricType::kBool:
      value = {{"type", "boolean"}};
      break;
    case MetricType::kWhole:
      value = {{"type", "integer"}, {"minimum", 0}};
      break;
    case MetricType::kNumber:
      value = {{"type", "number"}};
      break;
    case MetricType::kText:
      value = field.words.empty() ? SchemaJson{{"type", "string"}} : OneOf(field.words);
      break;
    case MetricType::kObject:
      value = {{"type", "object"}};
      break;
  }
  if (field.may_be_null) value = OrNull(std::move(value));
  value["description"] = field.meaning;
  return value;
}

// Adds the field below the objects that its name's dots stand for.
void AddField(SchemaJson& object, std::string_view name, const MetricField& field) {
  const size_t dot = name.find('.');
  const std::string key(name.substr(0, dot));
  if (dot == std::string_view::npos) return AddKey(object, key, ValueOf(field), true);
  if (!object["properties"].contains(key)) AddKey(object, key, ClosedObject(), true);
  AddField(object["properties"][key], name.substr(dot + 1), field);
}

}  // namespace

std::string MetricsSchema() {
  SchemaJson schema = SchemaHead("metrics", "A line of zeroplan train @@metrics");
  schema["type"] = "object";
  for (int e = 0; e < kMetricEvents; ++e) {
    const auto event = static_cast<MetricEvent>(e);
    SchemaJson object = ClosedObject();
    AddKey(object, "event", {{"const", MetricEventName(event)}}, true);
    for (const MetricField& field : MetricFields()) {
      if (field.event == event) AddField(object, field.name, field);
    }
    schema["oneOf"].push_back(std::move(object));
  }
  return SchemaText(schema);
}

}  // namespace zeroplan
