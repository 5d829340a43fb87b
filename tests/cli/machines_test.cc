// plan of several machines: what it prints holds when it is typed back.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

TEST_CASE("machines: the answer, its time and its price hold when they are typed back") {
  const std::string asked = " --model gpt2-large --seq-len 1024 --tokens 200M";
  const std::string line = "plan --explain --hw 4090,l40s,p4d-24xlarge --gpus 1,8" + asked;
  const RunResult text = RunZeroplan(line + " --objective cost");
  INFO(text.out, text.err);
  REQUIRE(text.exit_code == 0);
  const std::string page = Unwrapped(text.out);
  const size_t begin = page.find("; --hw ") + 2;
  const std::string typed = page.substr(begin, page.find(" plans it", begin) - begin);

  const RunResult run = RunZeroplan(line + " --objective cost --format json");
  const Json all = Json::parse(run.out);
  CHECK(all.at("schema") == "zeroplan.machines/1");
  REQUIRE(all.at("machines").size() == 6);
  const Json& best = all.at("machines").front();
  CHECK(best.at("unbeaten") == true);
  const double hour = best.at("gpu_hour_price").at("amount");
  const RunResult single = RunZeroplan("plan --explain " + typed + asked + " --gpu-hour-price " +
                                       Json(hour).dump() + " --quick --format json");
  INFO(single.err);
  REQUIRE(single.exit_code == 0);
  const Json training = Json::parse(single.out).at("run");
  CHECK(training.at("seconds").get<double>() == doctest::Approx(best.at("seconds").get<double>()));
  CHECK(training.at("price").get<double>() == doctest::Approx(best.at("price").get<double>()));
  // One GPU of a machine that is rented by the node costs all eight.
  for (const Json& machine : all.at("machines")) {
    if (machine.at("hw") != "p4d-24xlarge") continue;
    CHECK(machine.at("rented_gpus") == 8);
    CHECK(machine.at("gpu_hour_price").at("rented_by") == "node");
  }
  CHECK(Has(page, wording::kRentedByTheNodeAll));
}

TEST_CASE("machines: an interrupted run takes what a plan of the machine expects") {
  const std::string asked = " --model gpt2-large --seq-len 1024 --tokens 20B --interruptions 2/day";
  const RunResult run = RunZeroplan("plan --hw l40s,p4d-24xlarge --gpus 8 --format json" + asked);
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  for (const Json& machine : Json::parse(run.out).at("machines")) {
    const std::string hw = machine.at("hw");
    CAPTURE(hw);
    const RunResult single =
        RunZeroplan("plan --hw " + hw + " --gpus 8 --quick --format json" + asked);
    REQUIRE(single.exit_code == 0);
    const Json expected = Json::parse(single.out).at("interruptions").at("expected_seconds");
    CHECK(machine.at("steps_alone") == expected.is_null());
    if (!expected.is_null()) {
      CHECK(machine.at("seconds").get<double>() == doctest::Approx(expected.get<double>()));
    }
    // On spot machines, where they are rented so.
    const Json& price = machine.at("gpu_hour_price");
    if (!machine.at("spot_gpu_hour_price").is_null()) {
      CHECK(price == machine.at("spot_gpu_hour_price"));
    }
  }
}

TEST_CASE("machines: nothing within the limits ends with 3 and says what is closest") {
  const RunResult late = RunZeroplan(
      "plan --explain --model gpt2-xl --hw t4,l4 --gpus 1 --tokens 10B --deadline 1h --budget 2");
  CHECK(late.exit_code == 3);
  CHECK(Has(late.err, wording::kNothingIsWithinTheLimits));
  CHECK(Has(late.err, "the cheapest, "));
  CHECK(Has(late.out, "h late"));
  CHECK(Has(Unwrapped(late.out), wording::kWiderTerminalAndJsonHave));
  // In hours, as the table has it.
  const std::string takes = late.err.substr(late.err.find(" takes ") + 7);
  CHECK(Has(late.out, takes.substr(0, takes.find(' '))));
  CHECK(takes.substr(takes.find(' '), 3) == " h;");
  // Where nothing fits the table's place says what is short.
  const RunResult small = RunZeroplan("plan --explain --model llama3.1-70b --hw t4,l4 --gpus 1");
  CHECK(small.exit_code == 3);
  CHECK(Has(Unwrapped(small.out), wording::kNotHereWithGpu));
  CHECK(Has(small.err, wording::kNothingFitsAnyOfThese));
}

TEST_CASE("machines: one machine is compared over its GPUs; what writes one plan is refused") {
  const TempDir folder;
  const std::string report = folder.path("machines.html");
  const RunResult run = RunZeroplan(
      "plan --explain --model gpt2 --hw dgx-a100-40gb --objective energy --report " + report);
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(Has(run.out, "on 4 machines"));
  CHECK(Has(Unwrapped(run.out), wording::kLeastEnergyDgxGbWith));
  const std::string page = ReadWhole(report);
  CHECK(Has(page, wording::kPriceAgainstTime));
  CHECK(Has(page, "DGX A100 40 GB (8 GPUs)"));
  CHECK(Has(page, " min"));  // not in thousands of seconds

  for (const std::string option : {"--out c.json", "--plan-out p.json"}) {
    CAPTURE(option);
    const RunResult refused = RunZeroplan("plan --explain --model gpt2 --hw t4,l4 " + option);
    CHECK(refused.exit_code == 2);
    CHECK(Has(refused.err, option.substr(0, option.find(' ')) + ": goes with one plan"));
  }
  CHECK(Has(RunZeroplan("plan --explain --model gpt2 --hw t4,l4 --objective headroom").err,
            "--objective: headroom is not compared over machines"));
  CHECK(Has(RunZeroplan("plan --explain --model gpt2 --hw t4,,l4").err,
            "--hw: t4,,l4 has an empty name"));
  CHECK(Has(RunZeroplan("plan --explain --model gpt2 --hw t4,t4").err, "--hw: t4,t4 has t4 twice"));
  CHECK(
      Has(RunZeroplan("plan --explain --model gpt2 --gpus 1,2,0").err, "--gpus: 0 is not allowed"));
  CHECK(Has(RunZeroplan("plan --explain --model gpt2 --hw t4 --deadline 5 --tokens 1B").err,
            "--deadline: 5 is not allowed; use a time above 0 with its unit"));
  CHECK(Has(RunZeroplan("plan --explain --model gpt2 --hw any --network 25Gb").err,
            "--hw: any takes"));
}

TEST_CASE("machines: the report's sentence has the best row's machine, time and price") {
  const TempDir folder;
  const std::string report = folder.path("machines.html");
  const RunResult run = RunZeroplan(
      "plan --model gpt2-large --seq-len 1024 --tokens 20B --hw l40s,p4d-24xlarge --gpus 8 "
      "--deadline 30d --objective cost --format json --report " +
      report);
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const Json best = Json::parse(run.out).at("machines").front();
  const std::string html = ReadWhole(report);
  std::smatch parts;
  REQUIRE(std::regex_search(
      html, parts,
      std::regex("<p class=\"answer\">gpt2-large on 20.0B tokens: ([^,]*), ([0-9.]+) h, ([0-9.,]+) "
                 "USD; deadline met\\.</p>")));
  CHECK(parts[1] ==
        (best.at("hw") == "l40s" ? "8 x L40S 48 GB" : "Amazon EC2 p4d.24xlarge (8 GPUs)"));
  CHECK(std::stod(parts[2]) ==
        doctest::Approx(best.at("seconds").get<double>() / 3600).epsilon(0.01));
  std::string price = parts[3];
  std::erase(price, ',');
  CHECK(std::stod(price) == doctest::Approx(best.at("price").get<double>()).epsilon(0.01));
  CHECK(Has(html, "--hw " + best.at("hw").get<std::string>() + " --gpus 8"));
}

}  // namespace
}  // namespace zeroplan
