// train --metrics FILE.csv: a row a step, whole lines whatever ends the run, columns that stay.
#include <doctest/doctest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/run/train/metrics_file.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/run_metrics.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  if (!text.empty() && text.back() == at && at != '\n') parts.emplace_back();
  return parts;
}

TEST_CASE("train --metrics FILE.csv has what JSON lines have of steps") {
  const Workspace work;
  const std::string csv = work.path("m.csv"), jsonl = work.path("m.jsonl");
  const std::string options = "--validate-every 10 --save-every 10 --save ";
  REQUIRE(RunZeroplan(work.Train(options + work.path("a") + " --metrics " + csv)).exit_code == 0);
  REQUIRE(RunZeroplan(work.Train(options + work.path("b") + " --metrics " + jsonl)).exit_code == 0);
  const std::vector<std::string> lines = Split(ReadWhole(csv), '\n');
  REQUIRE(lines.size() == 1 + kTrainSteps);
  const std::vector<std::string> names = Split(lines[0], ',');
  size_t row = 0;
  for (const auto& line : ReadMetricsLines(jsonl)) {
    if (line.at("event") != "step") continue;
    const std::vector<std::string> cells = Split(lines.at(++row), ',');
    CAPTURE(lines[row]);
    REQUIRE(cells.size() == names.size());
    CHECK(line.size() == names.size() + 1);  // "event"
    for (size_t i = 0; i < names.size(); ++i) {
      CAPTURE(names[i]);
      const auto& value = line.at(names[i]);
      if (names[i].find("seconds") != std::string::npos || names[i] == "tokens_per_second") {
        CHECK(cells[i].empty() == value.is_null());  // of another run
      } else if (value.is_null()) {
        CHECK(cells[i].empty());
      } else if (value.is_number()) {
        CHECK(std::stod(cells[i]) == value.template get<double>());
      } else {
        CHECK(cells[i] == (value.is_boolean() ? value.dump() : value.template get<std::string>()));
      }
    }
  }
  CHECK(row == kTrainSteps);
  const RunResult check = RunZeroplan("hw check " + csv);
  CHECK(check.exit_code == 2);
  CHECK(Has(check.err, csv + ": CSV has steps alone"));
}

TEST_CASE("train --metrics FILE.csv goes on after a run that was cut off") {
  const Workspace work;
  const std::string csv = work.path("m.csv");
  const std::string options = "--save-every 5 --save " + work.path("out") + " --metrics " + csv;
  REQUIRE(RunZeroplan(work.Train(options, 10)).exit_code == 0);
  int steps = 10;
  // Wherever a kill cuts the last row.
  for (const bool early : {true, false}) {
    const std::string before = ReadWhole(csv);
    const size_t last = before.rfind('\n', before.size() - 2) + 1;
    std::ofstream(csv, std::ios::binary) << before.substr(0, early ? last + 1 : before.size() - 1);
    const RunResult again = RunZeroplan(work.Train(options + " --resume", steps += 2));
    CAPTURE(again.err);
    REQUIRE(again.exit_code == 0);
    CHECK(Has(again.err, wording::kHalfLineAtItsEnd));
    const std::string now = ReadWhole(csv);
    CHECK(now.starts_with(before.substr(0, last)));
    const std::vector<std::string> added = Split(now.substr(last), '\n');
    REQUIRE(added.size() == 2);
    CHECK(added[0].starts_with(std::to_string(steps - 1) + ","));
    CHECK(added[1].starts_with(std::to_string(steps) + ","));
    CHECK(now.back() == '\n');
  }
  // Half a header: it is written anew.
  std::ofstream(csv, std::ios::binary) << "step,lo";
  REQUIRE(RunZeroplan(work.Train(options + " --resume", 16)).exit_code == 0);
  CHECK(ReadWhole(csv).starts_with(CsvHeader(MetricEvent::kStep) + "\n"));
  // Another run has a file of its own; other columns are refused while nothing has happened yet.
  CHECK(RunZeroplan(work.Train("--metrics " + csv, 3)).exit_code == 2);
  const std::string foreign = "step,loss\n1,2\n";
  std::ofstream(csv, std::ios::binary) << foreign;
  const RunResult refused = RunZeroplan(work.Train(options + " --resume", 20));
  CHECK(refused.exit_code == 2);
  CHECK(Has(refused.err, "--metrics " + csv + ": its first line does not name the columns"));
  CHECK(ReadWhole(csv) == foreign);
}

TEST_CASE("a row of CSV: what is not known is empty, and infinities are") {
  MetricLine line(MetricEvent::kValidation);
  line.Set("step", 7).Set("loss", 0.1).Set("perplexity", std::numeric_limits<double>::infinity());
  CHECK(CsvHeader(MetricEvent::kValidation) == "step,loss,perplexity");
  CHECK(line.Csv() == "7,0.1,");
}

}  // namespace
}  // namespace zeroplan
