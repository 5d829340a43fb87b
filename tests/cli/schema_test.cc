// zeroplan config schema: what the schemas say, beside what readers and writers know.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/config/reader_state.h"
#include "planner/runs/metric_fields.h"
#include "planner/schemas/schemas.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

// The object among the forms of a section's value.
const Json& Section(const Json& value) { return value["anyOf"][0]; }

TEST_CASE("schemas say which draft they are, and close the objects that readers close") {
  for (const std::string& text : {ConfigSchema(), ProfileSchema(), PlanSchema()}) {
    const Json schema = Json::parse(text);
    CHECK(schema["$schema"] == "https://json-schema.org/draft/2020-12/schema");
    CHECK(schema["additionalProperties"] == false);
    CHECK(schema["properties"].contains("$schema"));
    CHECK(text.size() < 200'000);
  }
  CHECK(RunZeroplan("config schema plan").out == NameFields(PlanSchema()));
  const RunResult wrong = RunZeroplan("config schema tables");
  CHECK(wrong.exit_code == 2);
  CHECK(Has(wrong.err, wording::kKindTablesIsNotAllowed));
}

TEST_CASE("the schema of configs has every key that the reader asks for, with type and range") {
  const Json schema = Json::parse(ConfigSchema());
  for (const ConfigSection& section : DescribeConfig("{}")) {
    const Json* object = &schema;
    for (size_t begin = 0; begin < section.path.size();) {
      const size_t end = std::min(section.path.find('.', begin), section.path.size());
      const Json& key = object->at("properties").at(section.path.substr(begin, end - begin));
      begin = end + 1;
      if (!key.contains("anyOf")) break;  // what hangs on the scheduler's type
      object = &Section(key);
      if (begin > section.path.size()) {
        for (const JsonKey& known : section.keys) {
          CAPTURE(section.path);
          CAPTURE(known.name);
          CHECK((*object)["properties"].contains(known.name));
        }
      }
    }
  }
  const Json& zero = Section(schema["properties"]["zero_optimization"]);
  const Json& stage = zero["properties"]["stage"]["anyOf"][0]["anyOf"][0];
  CHECK(stage["type"] == "integer");
  CHECK(stage["minimum"] == 0);
  CHECK(stage["maximum"] == 3);
  CHECK(schema["properties"]["zero_optimization"]["anyOf"].back()["type"] == "boolean");
  CHECK(Has(schema["properties"]["steps_per_print"]["description"], "No effect: "));
  CHECK(Has(schema["properties"]["amp"]["description"], "Not supported: "));
  // Each scheduler its own parameters.
  const Json& scheduler = Section(schema["properties"]["scheduler"]);
  REQUIRE(scheduler["allOf"].size() == 5);
  CHECK(scheduler["required"] == Json({"type"}));
  const auto params = [&](size_t i) {
    return Section(scheduler["allOf"][i]["then"]["properties"]["params"])["properties"];
  };
  CHECK(params(0).contains("warmup_max_lr"));
  CHECK_FALSE(params(0).contains("cycle_max_lr"));
  CHECK(params(3).contains("cycle_max_lr"));
}

TEST_CASE("words of a dtype are those that the reader takes") {
  for (const ConfigSection& section : DescribeConfig("{}")) {
    for (const JsonKey& key : section.keys) {
      if (!key.name.ends_with("_dtype") || key.words.empty()) continue;
      CAPTURE(key.name);
      for (const std::string& word : key.words) CHECK_NOTHROW(ParseDtype(word, key.name));
    }
  }
}

// Every key of `value` is in the schema's object.
void CheckKeys(const Json& value, const Json& object, const std::string& path) {
  for (const auto& [key, member] : value.items()) {
    CAPTURE(path + key);
    REQUIRE(object["properties"].contains(key));
    const Json& known = object["properties"][key];
    if (member.is_object() && known.contains("properties")) CheckKeys(member, known, path + key);
  }
  if (!object.contains("required")) return;
  for (const std::string key : object["required"]) {
    CAPTURE(path + key);
    CHECK(value.contains(key));
  }
}

TEST_CASE("the schema of plans has the keys that a plan is written with") {
  const Workspace work;
  const Json schema = Json::parse(PlanSchema());
  for (const char* more : {"", " --format json"}) {
    const RunResult run =
        RunZeroplan("plan --model llama3.2-1b --gpus 2 --seq-len 256 --hw dgx-h100 --plan-out " +
                    work.path("plan.json") + more);
    REQUIRE(run.exit_code == 0);
    CheckKeys(Json::parse(ReadWhole(work.path("plan.json"))), schema, "");
    if (*more != '\0') CheckKeys(Json::parse(run.out), schema, "");
  }
}

TEST_CASE("the schema of metrics has each event's fields, all required") {
  const Json schema = Json::parse(MetricsSchema());
  REQUIRE(schema["oneOf"].size() == kMetricEvents);
  for (const MetricField& field : MetricFields()) {
    const Json* object = &schema["oneOf"][static_cast<size_t>(field.event)];
    std::string name = field.name;
    for (size_t dot; (dot = name.find('.')) != std::string::npos; name = name.substr(dot + 1)) {
      object = &object->at("properties").at(name.substr(0, dot));
    }
    CAPTURE(field.name);
    CHECK((*object)["properties"].contains(name));
    CHECK(Has((*object)["required"].dump(), "\"" + name + "\""));
  }
}

TEST_CASE("an editor's $schema is no unknown key") {
  const Workspace work;
  std::ofstream(work.path("ds.json"))
      << R"({"$schema": "./config.schema.json", "train_micro_batch_size_per_gpu": 1})";
  CHECK(RunZeroplan("config check --strict " + work.path("ds.json")).exit_code == 0);
  std::string profile = RunZeroplan("hw show dgx-h100 --format json").out;
  profile.insert(1, R"("$schema": "./profile.schema.json",)");
  std::ofstream(work.path("hw.json")) << profile;
  CHECK(RunZeroplan("hw show " + work.path("hw.json")).exit_code == 0);
}

}  // namespace
}  // namespace zeroplan
