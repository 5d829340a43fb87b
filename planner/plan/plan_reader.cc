#include <fmt/format.h>

#include <charconv>
#include <iterator>
#include <type_traits>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/strings.h"
#include "core/base/version.h"
#include "core/config/deepspeed_reader.h"
#include "core/families/load_model.h"
#include "core/model/model_fields.h"
#include "core/program/fingerprint.h"
#include "cost_models/memory_walk.h"
#include "planner/plan/plan_fields.h"
#include "planner/plan/plan_file.h"

namespace zeroplan {
namespace {

constexpr double kMost = 1e300;

// Reads the members of a plan. All are required, because zeroplan writes them.
class PlanSection {
 public:
  PlanSection(const JsonNode* node, const std::string& path, const std::string& source)
      : section_(node, path, source) {
    if (node == nullptr) ThrowUsage("{}: {}: is missing; plan again", source, path);
  }

  JsonSection& json() { return section_; }
  const JsonNode* Node(std::string_view key) { return section_.Raw(key); }
  int64_t Int(std::string_view key, int64_t min = 0, int64_t max = kMaxInt) {
    return Required(key, section_.Int(key, min, max));
  }
  uint64_t Bytes(std::string_view key) { return static_cast<uint64_t>(Int(key)); }
  std::optional<uint64_t> BytesOrNull(std::string_view key) {
    const std::optional<int64_t> value = section_.Int(key);
    return value ? std::optional<uint64_t>(static_cast<uint64_t>(*value)) : std::nullopt;
  }
  double Number(std::string_view key, double min, double max) {
    return Required(key, section_.Number(key, min, max));
  }
  std::optional<double> NumberOrNull(std::string_view key) {
    return section_.Number(key, 0, kMost, "a number of at least 0, or null");
  }
  bool Bool(std::string_view key) { return Required(key, section_.Bool(key)); }
  std::string String(std::string_view key) { return Required(key, section_.String(key)); }
  std::optional<std::string> StringOrNull(std::string_view key) { return section_.String(key); }

  // Refuses keys that no reader requested.
  void Finish() const {
    for (const std::string& key : section_.Unknown()) {
      const std::string nearest = NearestName(key, section_.known());
      section_.Fail(key, "is not a key of zeroplan.plan/1{}",
                    nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
    }
  }

 private:
  template <typename T>
  T Required(std::string_view key, std::optional<T> value) {
    if (!value) section_.Fail(key, "is missing; plan again");
    return *value;
  }

  JsonSection section_;
};

ModelSpec ReadModel(PlanSection section, const std::string& source) {
  ModelSpec model;
  ForEachField(model, [&]<typename T>(const ModelField& field, T& value) {
    if (field.optional && section.json().Raw(field.key) == nullptr) return;
    if constexpr (std::is_same_v<T, std::string>) {
      value = section.String(field.key);
    } else if constexpr (std::is_same_v<T, int64_t>) {
      value = section.Int(field.key, field.optional ? 0 : 1);
    } else if constexpr (std::is_same_v<T, float>) {
      value = static_cast<float>(section.Number(field.key, 0, field.max));
    } else if constexpr (std::is_same_v<T, bool>) {
      value = section.Bool(field.key);
    } else if constexpr (std::is_same_v<T, RotaryScaling>) {
      const std::optional<RotaryScaling> found = RotaryScalingNamed(section.String(field.key));
      if (!found) section.json().FailValue(field.key, "linear, llama3 or yarn");
      value = *found;
    } else {
      const std::string name = section.StringOrNull(field.key).value_or("");
      value = FamilyFromFile(name, fmt::format("{}: model.{}", source, field.key));
    }
  });
  section.Finish();
  ValidateModelSpec(model, source);
  return model;
}

// One field of the section `cluster` or `lower`.
class FieldReader {
 public:
  explicit FieldReader(PlanSection& section) : section_(section) {}

  void operator()(const PlanField& field, std::string& value) {
    value =
        field.nullable ? section_.StringOrNull(field.key).value_or("") : section_.String(field.key);
  }
  void operator()(const PlanField& field, int& value) {
    value = static_cast<int>(section_.Int(field.key, field.min, kMaxPlannedGpus));
  }
  void operator()(const PlanField& field, uint64_t& value) {
    value = static_cast<uint64_t>(section_.Int(field.key, field.min));
  }
  void operator()(const PlanField& field, std::optional<uint64_t>& value) {
    if (field.optional && section_.json().Raw(field.key) == nullptr) return;
    value = section_.BytesOrNull(field.key);
  }
  void operator()(const PlanField& field, double& value) {
    if (field.optional && section_.json().Raw(field.key) == nullptr) return;
    value = section_.Number(field.key, static_cast<double>(field.min), kMost);
  }
  void operator()(const PlanField& field, bool& value) {
    if (field.optional && section_.json().Raw(field.key) == nullptr) return;
    value = section_.Bool(field.key);
  }
  void operator()(const PlanField& field, Backend& value) {
    const std::string name = section_.String(field.key);
    if (name != "cpu" && name != "cuda") section_.json().FailValue(field.key, "cpu or cuda");
    value = name == "cpu" ? Backend::kCpu : Backend::kCuda;
  }

 private:
  PlanSection& section_;
};

template <typename T>
T ReadFields(PlanSection section) {
  T value;
  ForEachField(value, FieldReader(section));
  section.Finish();
  return value;
}

void ReadPredicted(PlanSection section, const std::string& source, PlanFile& plan) {
  auto inner = [&](const char* key) {
    return PlanSection(section.Node(key), fmt::format("predicted.{}", key), source);
  };
  PlanSection gpu = inner("gpu_bytes");
  Footprint& footprint = plan.footprint;
  for (size_t c = 0; c < kMemoryClasses; ++c) {
    footprint.gpu_class_bytes[c] = gpu.Bytes(MemoryClassName(static_cast<MemoryClass>(c)));
  }
  footprint.runtime_bytes = gpu.Bytes("runtime");
  gpu.Bytes("total");
  gpu.Finish();
  PlanSection arenas = inner("rank_arena_bytes");
  for (size_t s = 0; s < kSpaces; ++s) {
    plan.arena_bytes[s] = arenas.Bytes(SpaceName(static_cast<Space>(s)));
  }
  arenas.Finish();
  PlanSection host = inner("host_bytes");
  footprint.host = {host.Bytes("pinned"), host.Bytes("pageable")};
  host.Bytes("total");
  host.Finish();
  footprint.nvme_bytes = section.Bytes("nvme_bytes");
  for (const char* key : kPlanTraffic) section.Bytes(key);
  if (section.Node("comm_bytes_by_axis") != nullptr) {  // set for several shard groups
    PlanSection axes = inner("comm_bytes_by_axis");
    for (const char* key : kPlanAxes) axes.Bytes(key);
    axes.Finish();
  }
  PlanSection seconds = inner("step_seconds");
  StepTime step;
  double* const parts[] = {&step.compute_seconds, &step.exposed_comm_seconds,
                           &step.exposed_offload_seconds, &step.optimizer_seconds,
                           &step.total_seconds};
  static_assert(std::size(parts) == std::size(kPlanStepSeconds));
  bool whole = true;
  for (size_t i = 0; i < std::size(parts); ++i) {
    const std::optional<double> part = seconds.NumberOrNull(kPlanStepSeconds[i]);
    whole = whole && part.has_value();
    *parts[i] = part.value_or(0);
  }
  if (whole) plan.step = step;
  plan.step_seconds = seconds.NumberOrNull("total");
  seconds.Finish();
  section.NumberOrNull("tokens_per_second");
  section.NumberOrNull("mfu");
  section.Finish();
}

void ReadSearch(PlanSection section) {
  section.String("objective");
  for (const char* key : kPlanSearchCounts) section.Int(key);
  section.Number("seconds", 0, kMost);
  section.Finish();
}

uint64_t ReadFingerprint(PlanSection& root) {
  const std::string text = root.String("fingerprint");
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, 16);
  if (text.size() != 16 || error != std::errc() || stop != end) {
    root.json().FailValue("fingerprint", "the 16 hexadecimal digits that zeroplan wrote");
  }
  return value;
}

std::vector<std::string> ReadAdvice(PlanSection& root) {
  const JsonNode* node = root.Node("advice");
  if (node == nullptr || !node->is_array()) {
    root.json().FailValue("advice", "a list of strings");
  }
  std::vector<std::string> advice;
  for (const JsonNode& line : node->elements) {
    if (!line.is_string()) root.json().FailValue("advice", "a list of strings");
    advice.push_back(line.scalar.text());
  }
  return advice;
}

TrainSetup ReadSetup(PlanSection& root, int gpus, int64_t seq_len, int64_t layers,
                     const std::string& source) {
  const JsonNode* config = root.Node("config");
  if (config == nullptr) root.json().Fail("config", "is missing; plan again");
  if (!config->is_object()) root.json().FailValue("config", "the DeepSpeed config, {...}");
  ReadContext context;
  context.world_size = gpus;
  context.seq_len = seq_len;
  context.layers = layers;
  TrainSetup setup = ReadDeepSpeedConfig(*config, source, context).setup;
  ValidateSetup(setup, source);
  return setup;
}

}  // namespace

PlanFile ReadPlan(std::string_view text, std::string_view source) {
  const JsonNode node = ParseJsonText(text, source);
  PlanFile plan;
  plan.source = source;
  PlanSection root(&node, "", plan.source);
  if (root.String("schema") != "zeroplan.plan/1") {
    root.json().FailValue("schema", "zeroplan.plan/1, as 'zeroplan plan --plan-out' writes it");
  }
  const std::string version = root.String("zeroplan");
  if (version != kVersion) {
    root.json().Fail("zeroplan",
                     "made by zeroplan {}, this is {}, which may lower it to another program; plan "
                     "again",
                     version, kVersion);
  }
  if (node.Find("runtime") != nullptr) {
    root.json().Fail("runtime",
                     "a choice for another program, which zeroplan's own executor does not train; "
                     "plan without a runtime");
  }
  auto section = [&](const char* key) { return PlanSection(root.Node(key), key, plan.source); };
  plan.model = ReadModel(section("model"), plan.source);
  const int64_t seq_len = root.Int("seq_len", 1, plan.model.LongestSequence());
  plan.cluster = ReadFields<Cluster>(section("cluster"));
  plan.lower = ReadFields<LowerOptions>(section("lower"));
  plan.setup = ReadSetup(root, plan.cluster.gpus, seq_len, plan.model.layers, plan.source);
  plan.fingerprint = ReadFingerprint(root);
  ReadPredicted(section("predicted"), plan.source, plan);
  ReadSearch(section("search"));
  plan.advice = ReadAdvice(root);
  if (root.Node("origin") != nullptr) plan.origin = ReadFields<PlanOrigin>(section("origin"));
  if (root.Node("interruptions") != nullptr) {
    PlanSection interrupted = section("interruptions");
    for (const char* key : kInterruptionKeys) interrupted.Node(key);
    plan.interruption_rate = interrupted.Number(kInterruptionKeys[0], 1e-300, 3600) / 3600;
    interrupted.Finish();
  }
  root.Node("build");  // for people
  // Other programs read the keys that WritePlanReport adds.
  for (const char* key : kPlanReportKeys) root.Node(key);
  root.Node("$schema");  // for editors
  root.Finish();
  return plan;
}

ProgramRecord ReadProgramRecord(std::string_view text, const std::string& key, int line,
                                const std::string& source) {
  ZEROPLAN_CHECK(line >= 1);
  // Error messages then name the line.
  const std::string at_line = std::string(static_cast<size_t>(line - 1), '\n') + std::string(text);
  const JsonNode node = ParseJsonText(at_line, source);
  PlanSection root(&node, key, source);
  auto section = [&](const char* name) {
    return PlanSection(root.Node(name), fmt::format("{}.{}", key, name), source);
  };
  ProgramRecord record;
  record.version = root.String("zeroplan");
  record.model = ReadModel(section("model"), source);
  const int64_t seq_len = root.Int("seq_len", 1, record.model.LongestSequence());
  const auto gpus = static_cast<int>(root.Int("gpus", 1, kMaxPlannedGpus));
  record.lower = ReadFields<LowerOptions>(section("lower"));
  record.setup = ReadSetup(root, gpus, seq_len, record.model.layers, source);
  record.fingerprint = ReadFingerprint(root);
  root.Finish();
  return record;
}

Program CheckedProgram(const PlanFile& plan) {
  Program program = Lower(plan.model, plan.setup, plan.lower);
  const uint64_t fingerprint = Fingerprint(program);
  if (fingerprint != plan.fingerprint) {
    ThrowUsage(
        "{}: the program lowered from this plan differs: its fingerprint is {}, the plan says {}; "
        "the file was changed after planning: undo that, or plan again",
        plan.source, FormatFingerprint(fingerprint), FormatFingerprint(plan.fingerprint));
  }
  const MemoryReport memory = WalkMemory(program);
  if (FootprintOf(memory, plan.cluster) != plan.footprint ||
      memory.arena_bytes != plan.arena_bytes) {
    ThrowUsage(
        "{}: predicted: the bytes are not those of the plan's program; the file was changed after "
        "planning: undo that, or plan again",
        plan.source);
  }
  return program;
}

}  // namespace zeroplan
