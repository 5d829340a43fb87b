// The public header beside the program: the same answers, the same messages. Linked with
// libzeroplan alone, as a user's program is.
#include <doctest/doctest.h>
#include <zeroplan/zeroplan.h>

#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

// The command line that asks the same.
std::string WordsOf(const v1::Options& options) {
  std::string words;
  for (const v1::Option& option : options) {
    words += " --" + option.name;
    if (option.value != "true") words += " '" + option.value + "'";
  }
  return words;
}

// What the program says to the same question; its times of searching are of another run.
Json Printed(const std::string& command, const v1::Options& options) {
  const RunResult run = RunZeroplan(command + WordsOf(options) + " --format json");
  REQUIRE_MESSAGE(run.exit_code == 0, run.err);
  return Json::parse(run.out);
}

Json WithoutClock(Json plan) {
  plan.at("search").erase("seconds");
  return plan;
}

Json JsonOf(const v1::GpuBytes& bytes) {
  return {{"params", bytes.params},       {"grads", bytes.grads},
          {"optimizer", bytes.optimizer}, {"activations", bytes.activations},
          {"buffers", bytes.buffers},     {"runtime", bytes.runtime},
          {"total", bytes.total}};
}

Json JsonOf(const v1::HostBytes& bytes) {
  return {{"pinned", bytes.pinned}, {"pageable", bytes.pageable}, {"total", bytes.total}};
}

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json JsonOf(const v1::StepSeconds& seconds) {
  return {{"compute", OrNull(seconds.compute)},
          {"exposed_comm", OrNull(seconds.exposed_comm)},
          {"exposed_offload", OrNull(seconds.exposed_offload)},
          {"optimizer", OrNull(seconds.optimizer)},
          {"total", OrNull(seconds.total)}};
}

template <typename T>
Json MemberJson(const T& value) {
  return value;
}
template <typename T>
Json MemberJson(const std::optional<T>& value) {
  return OrNull(value);
}

Json JsonOf(const v1::Choice& choice) {
  Json json;
#define RECORD(id, ...) json[#id] = MemberJson(choice.id);
#define SETTING(id, Type, parse, ...) RECORD(id, )
#define OPTION(...)
#include "core/settings/setting_rows.inc"
#undef SETTING
#undef OPTION
#undef RECORD
  return json;
}

Json JsonOf(const v1::EstimatedChoice& choice) {
  Json json;
  const Json chosen = JsonOf(choice.choice);
  for (const char* key : {"stage", "offload_optimizer", "offload_ratio", "offload_param",
                          "pin_memory", "checkpointing", "checkpoint_every", "checkpoint_layers",
                          "checkpointing_above", "offload_activations", "offload_activation_layers",
                          "micro_batch", "grad_accum", "sequence_ranks", "gpus"}) {
    json[key] = chosen.at(key);
  }
  json["dtype"] = choice.choice.dtype;
  json["grad_accum_dtype"] = choice.choice.grad_accum_dtype;
  json["communication_dtype"] = choice.choice.communication_dtype;
  json["master_weights"] = choice.choice.master_weights;
  json["optimizer_states"] = choice.choice.optimizer_states;
  for (const char* key : {"matmul_dtype", "fp8_recipe", "fp8_least_side"}) {
    json[key] = chosen.at(key);
  }
  json["settings"] = {{"reduce_bucket", OrNull(choice.reduce_bucket)},
                      {"prefetch_bucket", OrNull(choice.prefetch_bucket)},
                      {"persistence_threshold", choice.persistence_threshold},
                      {"reuse_distance", choice.reuse_distance},
                      {"overlap", choice.overlap},
                      {"shard_group", choice.choice.shard_group},
                      {"across_groups", OrNull(choice.choice.across_groups)}};
  json["gpu_bytes"] = JsonOf(choice.gpu_bytes);
  json["gpu_bytes"]["capacity"] = choice.gpu_capacity;
  json["gpu_bytes"]["reserve"] = choice.gpu_reserve;
  json["host_bytes"] = JsonOf(choice.host_bytes);
  json["host_bytes"]["capacity"] = OrNull(choice.host_capacity);
  json["host_bytes"]["reserve"] = choice.host_reserve;
  json["nvme_bytes"] = choice.nvme_bytes;
  json["comm_bytes_per_step"] = choice.comm_bytes_per_step;
  json["pcie_bytes_per_step"] = choice.pcie_bytes_per_step;
  json["step_seconds"] = JsonOf(choice.step_seconds);
  json["tokens_per_second"] = OrNull(choice.tokens_per_second);
  json["mfu"] = OrNull(choice.mfu);
  json["training"] = nullptr;
  if (const auto& training = choice.training) {
    json["training"] = {{"tokens", training->tokens},       {"steps", training->steps},
                        {"seconds", training->seconds},     {"gpu_hours", training->gpu_hours},
                        {"price", OrNull(training->price)}, {"gpu_kwh", OrNull(training->gpu_kwh)}};
  }
  json["fits"] = choice.fits;
  json["why_not"] = choice.fits ? Json(nullptr) : Json(choice.why_not);
  json["choice"] = chosen;
  return json;
}

Json JsonOf(const v1::StageAnswer& stage) {
  Json json = {{"stage", stage.stage},
               {"fits", stage.fits},
               {"choice", JsonOf(stage.choice)},
               {"gpu_bytes", JsonOf(stage.gpu_bytes)},
               {"host_bytes", JsonOf(stage.host_bytes)}};
  if (!stage.fits) {
    json["why_not"] = stage.why_not;
    return json;
  }
  json["proven"] = stage.proven;
  json["step_seconds"] = JsonOf(stage.step_seconds);
  json["tokens_per_second"] = OrNull(stage.tokens_per_second);
  json["lost_seconds"] = JsonOf(stage.lost_seconds);
  return json;
}

Json JsonOf(const v1::Claim& claim) {
  Json change = Json::object();
  if (claim.gpu_memory_bytes) change["gpu_memory_bytes"] = *claim.gpu_memory_bytes;
  if (claim.global_batch) change["global_batch"] = *claim.global_batch;
  if (claim.gpus) change["gpus"] = *claim.gpus;
  if (claim.bandwidth_scale) change["bandwidth_scale"] = *claim.bandwidth_scale;
  if (!claim.stages.empty()) change["stages"] = claim.stages;
  Json answer = nullptr;
  if (claim.answer) {
    answer = JsonOf(*claim.answer);
    answer["tokens_per_second"] = OrNull(claim.tokens_per_second);
  }
  Json holds = nullptr;
  const auto number = [](double value) {
    return value == std::floor(value) ? Json(static_cast<int64_t>(value)) : Json(value);
  };
  if (claim.holds_from) {
    holds = {number(*claim.holds_from), number(*claim.holds_to)};
  }
  Json others = Json::array();
  for (const v1::Choice& other : claim.or_else) others.push_back(JsonOf(other));
  return {{"kind", claim.kind}, {"change", change}, {"answer", answer},
          {"or_else", others},  {"holds", holds},   {"gap", claim.gap}};
}

const v1::Options kAsked = {{"model", "gpt2-xl"},
                            {"gpus", 4},
                            {"hw", "dgx-a100-40gb"},
                            {"gpu-memory", "24GB"},
                            {"seq-len", 512},
                            {"offload-ratio", 0.5},
                            {"offload-optimizer", "none,cpu"}};

TEST_CASE("library: an estimate is the program's, field by field") {
  v1::Options asked = kAsked;
  asked.emplace_back("tokens", "1B");
  asked.emplace_back("gpu-hour-price", 2.5);
  const v1::Estimate estimate = v1::MakeEstimate(asked);
  const Json printed = Printed("estimate", asked);
  CHECK(Json::parse(estimate.json) == printed);
  CHECK(estimate.model.name == printed.at("model").at("name"));
  CHECK(estimate.model.params == printed.at("model").at("params"));
  CHECK(estimate.model.layers == printed.at("model").at("layers"));
  CHECK(estimate.model.hidden == printed.at("model").at("hidden"));
  CHECK(estimate.model.heads == printed.at("model").at("heads"));
  CHECK(estimate.model.vocab == printed.at("model").at("vocab"));
  CHECK(estimate.model.seq_len == 512);
  CHECK(estimate.cluster.hw == printed.at("cluster").at("hw"));
  CHECK(estimate.cluster.gpus == 4);
  CHECK(estimate.cluster.gpus_per_node == printed.at("cluster").at("gpus_per_node"));
  REQUIRE(estimate.choices.size() == printed.at("choices").size());
  REQUIRE(estimate.choices.size() > 4);
  size_t fit = 0;
  for (size_t i = 0; i < estimate.choices.size(); ++i) {
    CHECK(JsonOf(estimate.choices[i]) == printed.at("choices")[i]);
    fit += estimate.choices[i].fits ? 1 : 0;
  }
  // Both kinds are looked at.
  CHECK(fit > 0);
  CHECK(fit < estimate.choices.size());
  CHECK(!estimate.assumed.empty());
  CHECK(!estimate.notes.empty());
}

TEST_CASE("library: a plan is the program's, field by field") {
  const v1::Options asked = {
      {"model", "gpt2-xl"}, {"gpus", 4}, {"hw", "dgx-a100-40gb"}, {"gpu-memory", "16GB"}};
  uint64_t programs = 0;
  const v1::Plan plan = v1::MakePlan(asked, [&](uint64_t lowered) { programs = lowered; });
  CHECK(programs > 0);
  const Json printed = Printed("plan", asked);
  CHECK(WithoutClock(Json::parse(plan.json)) == WithoutClock(printed));
  const Json& predicted = printed.at("predicted");
  CHECK(JsonOf(plan.gpu_bytes) == predicted.at("gpu_bytes"));
  CHECK(JsonOf(plan.host_bytes) == predicted.at("host_bytes"));
  CHECK(plan.nvme_bytes == predicted.at("nvme_bytes"));
  CHECK(plan.comm_bytes_per_step == predicted.at("comm_bytes_per_step"));
  CHECK(plan.pcie_bytes_per_step == predicted.at("pcie_bytes_per_step"));
  CHECK(JsonOf(plan.step_seconds) == predicted.at("step_seconds"));
  CHECK(OrNull(plan.tokens_per_second) == predicted.at("tokens_per_second"));
  CHECK(OrNull(plan.mfu) == predicted.at("mfu"));
  CHECK(plan.gap == printed.at("gap"));
  Json stages = Json::array(), claims = Json::array();
  for (const v1::StageAnswer& stage : plan.stages) stages.push_back(JsonOf(stage));
  for (const v1::Claim& claim : plan.claims) claims.push_back(JsonOf(claim));
  CHECK(stages == printed.at("stages"));
  CHECK(claims == printed.at("claims"));
  CHECK(std::count_if(plan.claims.begin(), plan.claims.end(), [](const v1::Claim& claim) {
          return claim.gpu_memory_bytes.has_value();
        }) > 0);
  // One of the stages is the choice.
  CHECK(std::count(stages.begin(), stages.end(), nullptr) == 0);
  CHECK(std::count_if(stages.begin(), stages.end(), [&](const Json& stage) {
          return stage.at("choice") == JsonOf(plan.choice);
        }) == 1);
  CHECK(Json(plan.advice) == printed.at("advice"));
  CHECK(Json(plan.assumed) == printed.at("assumed"));
  CHECK(Json(plan.notes) == printed.at("notes"));
  CHECK(plan.search.objective == "throughput");
  CHECK(plan.search.candidates == printed.at("search").at("candidates"));
  CHECK(plan.search.judged == printed.at("search").at("judged"));
  CHECK(Json::parse(plan.deepspeed_config) == printed.at("config"));
  CHECK(plan.largest.empty());
  CHECK_FALSE(plan.training);
}

TEST_CASE("library: the JSON of a plan is a plan file") {
  const v1::Plan plan = v1::MakePlan(
      {{"model", "gpt2"}, {"gpus", 2}, {"hw", "dgx-a100-40gb"}, {"quick", true}, {"stage", 2}});
  CHECK(plan.choice.stage == 2);
  for (const v1::Claim& claim : plan.claims) CHECK_FALSE(claim.gpu_memory_bytes);
  const TempDir folder;
  const std::string file = folder.path("plan.json");
  std::ofstream(file) << plan.json;
  const RunResult explained = RunZeroplan("explain " + file);
  CHECK_MESSAGE(explained.exit_code == 0, explained.err);
}

TEST_CASE("library: a run that is interrupted") {
  v1::Options asked = {{"model", "gpt2"}, {"hw", "dgx-a100-40gb"}, {"quick", true},
                       {"tokens", "1B"},  {"gpu-hour-price", 2},   {"interruptions", "1/6h"},
                       {"notice", "30s"}, {"restart-time", "5min"}};
  const v1::Plan plan = v1::MakePlan(asked);
  REQUIRE(plan.interruptions);
  const Json told = Json::parse(plan.json).at("interruptions");
  CHECK(plan.interruptions->rate_per_hour == told.at("rate_per_hour"));
  CHECK(*plan.interruptions->interval_steps == told.at("interval_steps"));
  CHECK(*plan.interruptions->save_seconds == told.at("save_seconds"));
  CHECK(*plan.interruptions->lost_share == told.at("lost_share"));
  CHECK(*plan.interruptions->expected_price == told.at("expected_price"));
  CHECK(*plan.interruptions->fits_notice == told.at("fits_notice"));
  asked.pop_back();
  asked.pop_back();
  asked.erase(asked.begin() + 2);  // quick is plan's
  const v1::Estimate estimate = v1::MakeEstimate(asked);
  for (const v1::EstimatedChoice& choice : estimate.choices) {
    REQUIRE(choice.interruptions);
    CHECK(*choice.interruptions->expected_seconds > choice.training->seconds);
    CHECK_FALSE(choice.interruptions->fits_notice);
  }
  CHECK_FALSE(v1::MakeEstimate({{"model", "gpt2"}}).choices.front().interruptions);
}

TEST_CASE("library: what was asked for beside the choice") {
  const v1::Plan plan = v1::MakePlan({{"model", "gpt2"},
                                      {"gpus", 1},
                                      {"hw", "dgx-a100-40gb"},
                                      {"quick", true},
                                      {"largest", "seq-len"},
                                      {"tokens", "1B"},
                                      {"gpu-hour-price", 2}});
  CHECK(plan.largest.find("--seq-len 1024") != std::string::npos);
  REQUIRE(plan.training);
  CHECK(plan.training->tokens == 1'000'000'000);
  const double step = *plan.step_seconds.total;
  CHECK(plan.training->seconds ==
        doctest::Approx(step * static_cast<double>(plan.training->steps)));
  CHECK(*plan.training->price == doctest::Approx(plan.training->gpu_hours * 2));
}

// The page that the program writes to the same question.
std::string Reported(const std::string& command, const v1::Options& options) {
  const std::string file = (std::filesystem::temp_directory_path() /
                            ("library_page_" + std::to_string(getpid()) + ".html"))
                               .string();
  const RunResult run = RunZeroplan(command + WordsOf(options) + " --report " + file);
  std::ifstream stream(file, std::ios::binary);
  std::string page{std::istreambuf_iterator<char>(stream), {}};
  std::filesystem::remove(file);
  REQUIRE_MESSAGE(run.exit_code == 0, run.err);
  return page;
}

// Takes out what the page says of how it was made, and returns that.
std::string TakeCommand(std::string& page) {
  const std::string begin = "<pre id=\"command\">";
  const size_t from = page.find(begin) + begin.size(), to = page.find("</pre>", from);
  REQUIRE(to != std::string::npos);
  const std::string command = page.substr(from, to - from);
  page.erase(from, to - from);
  return command;
}

TEST_CASE("library: a report is the program's page") {
  const v1::Options asked = {{"model", "gpt2-xl"},
                             {"gpus", 4},
                             {"hw", "dgx-a100-40gb"},
                             {"stage", "1,2"},
                             {"gpu-memory", "16GB"}};
  for (const bool plans : {false, true}) {
    CAPTURE(plans);
    v1::Report report;
    if (plans) {
      v1::MakePlan(asked, report);
    } else {
      v1::MakeEstimate(asked, report);
    }
    REQUIRE(report);
    const std::string command = plans ? "plan" : "estimate";
    std::string page = report.Page(), other = Reported(command, asked);
    const std::string made_by = TakeCommand(page);
    CHECK(TakeCommand(other).starts_with(made_by));  // it has --report besides
    CHECK(made_by == "zeroplan " + command +
                         " --model gpt2-xl --gpus 4 --hw dgx-a100-40gb --stage 1,2 --gpu-memory "
                         "16GB");
    CHECK(page == other);
    std::string told = report.Page("a <program> of mine");
    CHECK(TakeCommand(told) == "a &lt;program&gt; of mine");
    CHECK(told == page);
    // Copies draw the same, from several threads too.
    std::vector<std::future<std::string>> others;
    for (int i = 0; i < 4; ++i) {
      others.push_back(std::async(std::launch::async, [copy = report] { return copy.Page("x"); }));
    }
    for (std::future<std::string>& drawn : others) {
      std::string text = drawn.get();
      TakeCommand(text);
      CHECK(text == page);
    }
    const std::string pictures = report.Pictures();
    size_t sections = 0;
    for (size_t at = 0; (at = page.find("<section id=", at)) != std::string::npos; ++at) {
      ++sections;
      const std::string begin = page.substr(at, page.find('>', at) - at);
      CHECK(pictures.find(begin) != std::string::npos);
    }
    CHECK(sections >= 4);
  }
}

TEST_CASE("library: a report of nothing, and of what could not be answered") {
  v1::Report report;
  CHECK_FALSE(report);
  CHECK_THROWS_AS(report.Page(), v1::Error);
  CHECK_THROWS_AS(report.Pictures(), v1::Error);
  const v1::Options small = {{"model", "gpt2"}, {"hw", "dgx-a100-40gb"}, {"stage", 0}};
  v1::MakeEstimate(small, report);
  const std::string page = report.Page();
  CHECK_THROWS_AS(v1::MakePlan({{"model", "gpt2-xxl"}}, report), v1::Error);
  CHECK(report.Page() == page);
}

TEST_CASE("library: messages and exit codes are the program's") {
  struct Wrong {
    const char* command;
    v1::Options options;
  };
  const std::vector<Wrong> wrongs = {
      {"plan", {}},
      {"plan", {{"model", "gpt2-xxl"}}},
      {"estimate", {{"model", "gpt2"}, {"gpus", 0}}},
      {"estimate", {{"model", "gpt2"}, {"gpus", -1}}},
      {"estimate", {{"model", "gpt2"}, {"gpuss", 4}}},
      {"plan", {{"model", "gpt2"}, {"gpu-memory", "80"}}},
      {"plan", {{"model", "gpt2"}, {"hw", "dgx-a100-41gb"}}},
      {"plan", {{"model", "gpt2"}, {"hw", "dgx-a100-40gb"}, {"stage", "4"}}},
      {"plan", {{"model", "gpt2"}, {"hw", "dgx-a100-40gb"}, {"config", "no_such.json"}}},
      {"plan", {{"model", "gpt2"}, {"hw", "dgx-a100-40gb"}, {"gpu-hour-price", 1}}},
      {"plan", {{"model", "gpt2"}, {"hw", "dgx-a100-40gb"}, {"epochs", 2}}},
      {"plan", {{"model", ""}}},
      {"plan", {{"model", "gpt2\x1b[31m"}}},
      {"plan", {{"params", "175B"}, {"gpus", 1}, {"hw", "dgx-a100-40gb"}, {"stage", 0}}},
  };
  for (const Wrong& wrong : wrongs) {
    const bool plans = std::string(wrong.command) == "plan";
    // A screen has the closest stage alone.
    const RunResult run =
        RunZeroplan(wrong.command + WordsOf(wrong.options) + (plans ? " --explain" : ""));
    CAPTURE(run.err);
    try {
      if (plans) {
        v1::MakePlan(wrong.options);
      } else {
        v1::MakeEstimate(wrong.options);
      }
      FAIL("nothing was thrown");
    } catch (const v1::Error& error) {
      CHECK("zeroplan: " + std::string(error.what()) + '\n' == run.err);
      CHECK(error.exit_code() == run.exit_code);
    }
  }
}

TEST_CASE("library: a NUL is refused, and cuts no message off") {
  for (const v1::Option& option : {v1::Option("model", std::string("gpt2\0-xl", 8)),
                                   v1::Option(std::string("mo\0del", 6), "gpt2")}) {
    try {
      v1::MakePlan({option, {"gpus", 2}});
      FAIL("no error");
    } catch (const v1::Error& error) {
      CHECK(error.exit_code() == 2);
      CHECK(Has(error.what(), "NUL character in it, which no option takes; leave it out"));
    }
  }
}

TEST_CASE("library: options that write, and options without a name, are refused") {
  const auto what = [](const v1::Options& options) -> std::string {
    try {
      v1::MakePlan(options);
    } catch (const v1::Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(what({{"model", "gpt2"}, {"plan-out", "plan.json"}}).find("--plan-out") !=
        std::string::npos);
  CHECK(what({{"model", "gpt2"}, {"help", true}}).find("--help") != std::string::npos);
  CHECK(what({{"", "gpt2"}}).find("no name") != std::string::npos);
  CHECK(what({{"--", "gpt2"}}).find("no name") != std::string::npos);
  CHECK(what({{"model", "gpt2"}, {"runtime", "deepspeeed"}}).find("deepspeed") !=
        std::string::npos);
}

TEST_CASE("library: other runtimes than zeroplan's own") {
  for (const char* runtime : {"deepspeed", "fsdp2"}) {
    CAPTURE(runtime);
    const v1::Estimate estimate =
        v1::MakeEstimate({{"model", "gpt2"}, {"gpus", 2}, {"stage", 3}, {"runtime", runtime}});
    REQUIRE(!estimate.choices.empty());
    CHECK(estimate.choices.front().fits);
    CHECK(estimate.choices.front().step_seconds.total.value_or(0) > 0);
    const v1::Plan plan = v1::MakePlan({{"model", "gpt2"},
                                        {"gpus", 2},
                                        {"global-batch", 16},
                                        {"quick", true},
                                        {"runtime", runtime}});
    CHECK(plan.tokens_per_second.value_or(0) > 0);
    CHECK(plan.advice.size() > 3);
    CHECK(plan.json.find("\"runtime\": \"") != std::string::npos);
  }
}

TEST_CASE("library: dashes in front of a name, and flags") {
  const v1::Estimate one = v1::MakeEstimate(
      {{"--model", "gpt2"}, {"--hw", "dgx-a100-40gb"}, {"stage", 0}, {"deterministic", false}});
  REQUIRE(one.choices.size() == 1);
  const v1::Estimate other = v1::MakeEstimate(
      {{"--model", "gpt2"}, {"--hw", "dgx-a100-40gb"}, {"stage", 0}, {"deterministic", true}});
  CHECK(*one.choices[0].step_seconds.total < *other.choices[0].step_seconds.total);
}

TEST_CASE("library: options are listed as the help has them") {
  for (const auto& [command, options] :
       {std::pair("plan", v1::PlanOptions()), std::pair("estimate", v1::EstimateOptions())}) {
    const std::string help = RunZeroplan(std::string(command) + " --help").out;
    REQUIRE(options.size() > 30);
    for (const v1::OptionHelp& option : options) {
      CAPTURE(option.name);
      CHECK(help.find(option.name + (option.type.empty() ? "" : " " + option.type)) !=
            std::string::npos);
      CHECK(help.find(option.help.substr(0, 20)) != std::string::npos);
    }
  }
}

TEST_CASE("library: several threads ask at once") {
  const v1::Options asked = {
      {"model", "gpt2"}, {"gpus", 2}, {"hw", "dgx-a100-40gb"}, {"quick", true}, {"stage", "1,2"}};
  const auto plan = [&] { return WithoutClock(Json::parse(v1::MakePlan(asked).json)); };
  const Json alone = plan();
  std::vector<std::future<Json>> others;
  for (int i = 0; i < 4; ++i) others.push_back(std::async(std::launch::async, plan));
  for (std::future<Json>& other : others) CHECK(other.get() == alone);
}

TEST_CASE("library: what progress throws ends the search") {
  struct Enough {};
  int told = 0;
  const auto stop = [&](uint64_t) {
    ++told;
    throw Enough();
  };
  CHECK_THROWS_AS(v1::MakePlan({{"model", "gpt2"}, {"gpus", 2}, {"hw", "dgx-a100-40gb"}}, stop),
                  Enough);
  CHECK(told == 1);
}

TEST_CASE("why: the program's text and JSON; what is missing is no error") {
  const TempDir folder;
  const std::string log = folder.path("train.log");
  std::ofstream(log)
      << "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.00 "
         "GiB total capacity; 21.00 GiB already allocated; 1.00 GiB free; 21.50 GiB "
         "reserved in total by PyTorch)\n";
  const v1::Options options = {
      {"model", "gpt2"}, {"runtime", "ddp"}, {"gpus", 1}, {"micro-batch", 4}, {"seq-len", 512}};
  const v1::RunExplained explained = v1::ExplainRun(log, options);
  CHECK(explained.incomplete.empty());
  CHECK(Json::parse(explained.json) == Printed("why " + log, options));
  CHECK(explained.text == RunZeroplan("why --explain " + log + WordsOf(options)).out);
  const v1::RunExplained open = v1::ExplainRun(log);
  CHECK(Has(open.incomplete, "give --model, the model; --runtime, what trained it"));
  CHECK(Json::parse(open.json)["prediction"].is_null());
  CHECK_THROWS_AS(v1::ExplainRun(folder.path("none.log")), v1::Error);
  CHECK(v1::ExplainRunOptions().size() > 20);
}

TEST_CASE("library: machines are those that the program compares") {
  const v1::Options options = {{"model", "gpt2"}, {"hw", "t4,l40s"}, {"gpus", "1,8"}};
  v1::Report report;
  const v1::MachineComparison all = v1::CompareMachines(options, report);
  const Json printed = Printed("plan", options);
  CHECK(Json::parse(all.json) == printed);
  REQUIRE(all.machines.size() == 4);
  for (size_t i = 0; i < all.machines.size(); ++i) {
    const v1::MachinePlan& machine = all.machines[i];
    const Json& row = printed.at("machines")[i];
    CAPTURE(row.dump());
    CHECK(row.at("hw") == machine.hw);
    CHECK(row.at("gpus") == machine.gpus);
    CHECK(row.at("seconds") == OrNull(machine.seconds));
    CHECK(row.at("price") == OrNull(machine.price));
    CHECK(row.at("unbeaten") == machine.unbeaten);
    REQUIRE(machine.choice);
    CHECK(row.at("choice").at("stage") == machine.choice->stage);
  }
  CHECK(Has(report.Page(), "The run on each machine"));
  try {
    (void)v1::MakePlan(options);
    FAIL("several machines have no one plan");
  } catch (const v1::Error& error) {
    CHECK(error.exit_code() == 2);
    CHECK(Has(error.what(), "name one machine"));
  }
}

}  // namespace
}  // namespace zeroplan
