// The names of metrics: one list, its writer, and the page that explains them.
#include "planner/runs/metric_fields.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "cli/run/train/metrics_file.h"
#include "core/base/error.h"
#include "tests/cli/run_binary.h"
#include "tests/has.h"

namespace zeroplan {
namespace {

TEST_CASE("metric names are there once, and docs/metrics.md has each of them") {
  const std::string page = ReadWhole(SourcePath("docs/metrics.md"));
  std::set<std::string> names, tags;
  for (const MetricField& field : MetricFields()) {
    CAPTURE(field.name);
    CHECK(names.insert(fmt::format("{} {}", MetricEventName(field.event), field.name)).second);
    // Or as the classes and arenas of a field.
    const auto named = [&](const std::string& name) {
      return page.find("`" + name + "`") != std::string::npos;
    };
    const bool explained = named(field.name) || named(field.name.substr(0, field.name.rfind('.')));
    CHECK(explained);
    CHECK_FALSE(field.meaning.empty());
    if (field.tag.empty()) continue;
    CHECK(tags.insert(std::string(field.tag)).second);
    CHECK(Has(page, fmt::format("`{}`", field.tag)));
    const bool is_number = field.type != MetricType::kText && field.type != MetricType::kObject;
    CHECK(is_number);
  }
}

TEST_CASE("a line of metrics has all fields of its event, and none that its event has not") {
  MetricLine line(MetricEvent::kValidation);
  line.Set("step", 3).Set("loss", std::numeric_limits<double>::quiet_NaN());
  CHECK_THROWS_AS(line.Json(), CheckFailure);  // perplexity is missing
  line.Set("perplexity", 12.5);
  CHECK(line.Json() == R"({"event":"validation","step":3,"loss":null,"perplexity":12.5})");
  // TensorBoard marks what is not finite, and does not know of what is not there.
  const auto scalars = line.Scalars();
  REQUIRE(scalars.size() == 2);
  CHECK(scalars[0].first == "validation/loss");
  CHECK(std::isnan(scalars[0].second));
  CHECK(scalars[1] == std::pair<std::string_view, double>("validation/perplexity", 12.5));

  CHECK_THROWS_AS(line.Set("lr", 1.0), CheckFailure);
  CHECK_THROWS_AS(line.Set("step", 1.0), CheckFailure);
  CHECK_THROWS_AS(line.Set("step", -1), CheckFailure);
  CHECK_THROWS_AS(line.Set("step", std::optional<int>()), CheckFailure);
  CHECK_THROWS_AS(MetricLine(MetricEvent::kStep).Set("skip_reason", "bad luck"), CheckFailure);
  CHECK_NOTHROW(MetricLine(MetricEvent::kStep).Set("skip_reason", std::optional<std::string>()));
}

}  // namespace
}  // namespace zeroplan
