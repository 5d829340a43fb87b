// The schema of plan files, from the lists that their reader and writer walk.
#include "core/model/model_fields.h"
#include "planner/plan/plan_fields.h"
#include "planner/runs/metric_fields.h"
#include "planner/schemas/schema_json.h"
#include "planner/schemas/schemas.h"

namespace zeroplan {

namespace {

SchemaJson Whole(int64_t min) { return {{"type", "integer"}, {"minimum", min}}; }
SchemaJson Text() { return {{"type", "string"}}; }
SchemaJson Amount() { return {{"type", "number"}, {"minimum", 0}}; }

SchemaJson ModelObject() {
  SchemaJson object = ClosedObject();
  const ModelSpec spec;
  ForEachField(spec, [&]<typename T>(const ModelField& field, const T&) {
    SchemaJson value;
    // GPT-2's plans are without a family.
    bool required = !field.optional;
    if constexpr (std::is_same_v<T, std::string>) {
      value = Text();
    } else if constexpr (std::is_same_v<T, int64_t>) {
      value = Whole(field.optional ? 0 : 1);
      value["maximum"] = field.max;
    } else if constexpr (std::is_same_v<T, float>) {
      value = Amount();
      value["maximum"] = field.max;
    } else if constexpr (std::is_same_v<T, bool>) {
      value = {{"type", "boolean"}};
    } else if constexpr (std::is_same_v<T, RotaryScaling>) {
      std::vector<std::string_view> names;
      for (int i = 0; i <= static_cast<int>(RotaryScaling::kYarn); ++i) {
        names.push_back(RotaryScalingName(static_cast<RotaryScaling>(i)));
      }
      value = OneOf(names);
    } else {
      value = Text();
      required = false;
    }
    value["description"] = field.words;
    AddKey(object, std::string(field.key), std::move(value), required);
  });
  return object;
}

// The schema of the sections `cluster` and `lower`.
class PlanFieldSchema {
 public:
  explicit PlanFieldSchema(SchemaJson& object) : object_(object) {}

  void operator()(const PlanField& field, const std::string&) {
    Put(field, field.nullable ? OrNull(Text()) : Text(), !field.nullable);
  }
  void operator()(const PlanField& field, int) { Put(field, Whole(field.min), true); }
  void operator()(const PlanField& field, uint64_t) { Put(field, Whole(field.min), true); }
  void operator()(const PlanField& field, const std::optional<uint64_t>&) {
    Put(field, OrNull(Whole(0)), false);
  }
  void operator()(const PlanField& field, double) {
    Put(field, {{"type", "number"}, {"minimum", field.min}}, !field.optional);
  }
  void operator()(const PlanField& field, bool) {
    Put(field, {{"type", "boolean"}}, !field.optional);
  }
  void operator()(const PlanField& field, Backend) { Put(field, OneOf({"cpu", "cuda"}), true); }

 private:
  void Put(const PlanField& field, SchemaJson value, bool required) {
    AddKey(object_, field.key, std::move(value), required);
  }
  SchemaJson& object_;
};

template <typename T>
SchemaJson FieldsOf() {
  SchemaJson object = ClosedObject();
  const T value{};
  ForEachField(value, PlanFieldSchema(object));
  return object;
}

SchemaJson BytesObject(const std::vector<std::string_view>& keys) {
  SchemaJson object = ClosedObject();
  for (const std::string_view key : keys) AddKey(object, std::string(key), Whole(0), true);
  return object;
}

SchemaJson PredictedObject() {
  std::vector<std::string_view> gpu, arenas;
  for (int c = 0; c < kMemoryClasses; ++c) {
    gpu.push_back(MemoryClassName(static_cast<MemoryClass>(c)));
  }
  gpu.insert(gpu.end(), {"runtime", "total"});
  for (int s = 0; s < kSpaces; ++s) arenas.push_back(SpaceName(static_cast<Space>(s)));
  SchemaJson object = ClosedObject();
  AddKey(object, "gpu_bytes", BytesObject(gpu), true);
  AddKey(object, "rank_arena_bytes", BytesObject(arenas), true);
  AddKey(object, "host_bytes", BytesObject({"pinned", "pageable", "total"}), true);
  AddKey(object, "nvme_bytes", Whole(0), true);
  for (const char* key : kPlanTraffic) AddKey(object, key, Whole(0), true);
  AddKey(object, "comm_bytes_by_axis", BytesObject({std::begin(kPlanAxes), std::end(kPlanAxes)}),
         false);
  SchemaJson seconds = ClosedObject();
  for (const char* key : kPlanStepSeconds) AddKey(seconds, key, OrNull(Amount()), false);
  AddKey(object, "step_seconds", std::move(seconds), true);
  for (const char* key : {"tokens_per_second", "mfu"}) {
    AddKey(object, key, OrNull(Amount()), false);
  }
  return object;
}

SchemaJson SearchObject() {
  SchemaJson object = ClosedObject();
  AddKey(object, "objective", Text(), true);
  for (const char* key : kPlanSearchCounts) AddKey(object, key, Whole(0), true);
  AddKey(object, "seconds", Amount(), true);
  return object;
}

SchemaJson InterruptionsObject() {
  SchemaJson object = ClosedObject();
  for (const std::string_view key : kInterruptionKeys) {
    const bool rate = key == kInterruptionKeys[0];
    SchemaJson value = key == "fits_notice"      ? SchemaJson{{"type", "boolean"}}
                       : key == "interval_steps" ? Whole(1)
                                                 : Amount();
    AddKey(object, std::string(key), rate ? value : OrNull(std::move(value)), rate);
  }
  return object;
}

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
      value = field.words.empty() ? SchemaJson{{"type", "string"}}
                                  : OneOf({field.words.begin(), field.words.end()});
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

std::string PlanSchema() {
  SchemaJson root = SchemaHead("plan", "Plan of zeroplan");
  root.update(ClosedObject());
  AddKey(root, "$schema", Text(), false);
  AddKey(root, "schema", {{"const", "zeroplan.plan/1"}}, true);
  AddKey(root, "zeroplan", Text(), true);
  AddKey(root, "build", {{"type", "object"}}, false);
  AddKey(root, "model", ModelObject(), true);
  AddKey(root, "seq_len", Whole(1), true);
  AddKey(root, "cluster", FieldsOf<Cluster>(), true);
  AddKey(root, "lower", FieldsOf<LowerOptions>(), true);
  SchemaJson config = SchemaJson::parse(ConfigSchema());
  for (const char* key : {"$schema", "$id"}) config.erase(key);
  AddKey(root, "config", std::move(config), true);
  AddKey(root, "fingerprint", {{"type", "string"}, {"pattern", "^[0-9a-fA-F]{16}$"}}, true);
  AddKey(root, "predicted", PredictedObject(), true);
  AddKey(root, "search", SearchObject(), true);
  AddKey(root, "advice", {{"type", "array"}, {"items", Text()}}, true);
  AddKey(root, "origin", FieldsOf<PlanOrigin>(), false);
  AddKey(root, "interruptions", InterruptionsObject(), false);
  for (const char* key : kPlanReportKeys) AddKey(root, key, SchemaJson::object(), false);
  return SchemaText(root);
}

std::string MetricsSchema() {
  SchemaJson schema = SchemaHead("metrics", "A line of zeroplan train ⟦metrics⟧");
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
