// Training data that the library reads: the program's answers and messages.
#include <doctest/doctest.h>
#include <zeroplan/zeroplan.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tests/cli/chats.h"
#include "tests/has.h"
#include "tests/scoped_env.h"

namespace zeroplan {
namespace {

using OrderedJson = nlohmann::ordered_json;

template <typename T>
OrderedJson ValueOrNull(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

OrderedJson JsonOf(const std::optional<v1::EpochSequences>& of) {
  if (!of) return nullptr;
  return {{"sequences", of->sequences}, {"padding", of->padding}};
}

OrderedJson JsonOf(const std::optional<v1::SequenceCuts>& of) {
  if (!of) return nullptr;
  return {{"seq_len", of->seq_len},
          {"cut_documents", of->cut_documents},
          {"cut_tokens", of->cut_tokens}};
}

OrderedJson JsonOf(const v1::Data& data) {
  const v1::DocumentTokens& of = data.document_tokens;
  return {{"documents", data.documents},
          {"tokens", data.tokens},
          {"counted_tokens", data.counted_tokens},
          {"document_tokens",
           {{"least", of.least},
            {"median", of.median},
            {"mean", of.mean},
            {"p95", of.p95},
            {"p99", of.p99},
            {"longest", of.longest}}},
          {"seq_len", data.seq_len},
          {"packing", data.packing},
          {"trained_documents", ValueOrNull(data.trained_documents)},
          {"held_back", data.held_back},
          {"longer_documents", data.longer_documents},
          {"left_out_tokens", data.left_out_tokens},
          {"uncounted_documents", data.uncounted_documents},
          {"single_token_documents", data.single_token_documents},
          {"epoch", JsonOf(std::optional(data.epoch))},
          {"packed", JsonOf(data.packed)},
          {"one_a_sequence", JsonOf(data.one_a_sequence)},
          {"cuts", JsonOf(data.cuts)},
          {"proposal", JsonOf(data.proposal)},
          {"sequences_per_step", data.sequences_per_step},
          {"epochs", data.epochs},
          {"steps", data.steps},
          {"micro_batch_tokens",
           {{"planned", data.micro_batch_tokens.planned},
            {"largest", data.micro_batch_tokens.largest},
            {"mean", data.micro_batch_tokens.mean}}}};
}

v1::Options Asked(const Chats& chats) {
  return {{"model", chats.model}, {"hw", "dgx-h100"},   {"gpus", 1},
          {"stage", 0},           {"micro-batch", 2},   {"grad-accum", 3},
          {"seq-len", 64},        {"data", chats.data}, {"epochs", 2}};
}

std::string Words(const v1::Options& options) {
  std::string words;
  for (const v1::Option& option : options) words += " --" + option.name + ' ' + option.value;
  return words;
}

TEST_CASE("library: data is read as the program reads it, field by field") {
  const Chats chats;
  const ScopedEnv cache("ZEROPLAN_CACHE_DIR", chats.path("library_cache"));
  for (const std::string packing : {"", "off", "stream"}) {
    CAPTURE(packing);
    v1::Options asked = Asked(chats);
    if (!packing.empty()) asked.emplace_back("packing", packing);
    const RunResult printed = chats.Run("estimate --format json" + Words(asked));
    REQUIRE_MESSAGE(printed.exit_code == 0, printed.err);
    const OrderedJson source = OrderedJson::parse(printed.out);
    const v1::Estimate estimate = v1::MakeEstimate(asked);
    CHECK(OrderedJson::parse(estimate.json) == source);
    REQUIRE(estimate.data);
    CHECK(JsonOf(*estimate.data) == source["data"]);

    asked.emplace_back("quick", true);
    asked.emplace_back("gpu-hour-price", 2.5);
    v1::Report report;
    const v1::Plan plan = v1::MakePlan(asked, report);
    const OrderedJson own = OrderedJson::parse(plan.json);
    REQUIRE(plan.data);
    CHECK(JsonOf(*plan.data) == own["data"]);
    CHECK(own["data"] == source["data"]);
    REQUIRE(plan.training);
    CHECK(plan.training->steps == plan.data->steps);
    CHECK(plan.training->price.has_value());
    CHECK(Has(report.Page(), "id=\"data\""));
  }
  // With a reader of the library's own there is one cache, which the program finds.
  CHECK(std::filesystem::exists(chats.path("library_cache/tokens")));
  // Without data there is none.
  CHECK(!v1::MakeEstimate({{"model", "gpt2"}, {"hw", "dgx-h100"}}).data);
}

TEST_CASE("library: several files of data, with commas in their names") {
  const Chats chats;
  const ScopedEnv cache("ZEROPLAN_CACHE_DIR", chats.path("cache"));
  const std::string other = chats.path("b, c.jsonl");
  std::filesystem::copy_file(chats.data, other);
  v1::Options asked = Asked(chats);
  asked.emplace_back("data", other);
  const v1::Estimate estimate = v1::MakeEstimate(asked);
  REQUIRE(estimate.data);
  CHECK(estimate.data->documents == 180);
  asked.emplace_back("epochs", 3);  // but of data each is given once
  CHECK_THROWS_AS(v1::MakeEstimate(asked), v1::Error);
}

TEST_CASE("library: machines by an epoch of data") {
  const Chats chats;
  const ScopedEnv cache("ZEROPLAN_CACHE_DIR", chats.path("cache"));
  v1::Options asked = Asked(chats);
  asked[1].value = "dgx-h100,rtx4090";
  const v1::MachineComparison machines = v1::CompareMachines(asked);
  CHECK(!machines.tokens);
  REQUIRE(machines.machines.size() == 2);
  for (size_t i = 0; i < machines.machines.size(); ++i) {
    const v1::MachinePlan& machine = machines.machines[i];
    CHECK(machine.seconds > 0);
    REQUIRE(machine.data);
    CHECK(machine.data->packing == "documents");
    CHECK(JsonOf(*machine.data) == OrderedJson::parse(machines.json)["machines"][i]["data"]);
  }
}

TEST_CASE("library: what of data cannot be read is the program's error") {
  const Chats chats;
  const ScopedEnv cache("ZEROPLAN_CACHE_DIR", chats.path("cache"));
  const v1::Options missing = {{"model", chats.model}, {"hw", "dgx-h100"}, {"data", "none.jsonl"}},
                    no_tokenizer = {{"model", "gpt2"}, {"hw", "dgx-h100"}, {"data", chats.data}},
                    no_data = {{"model", "gpt2"}, {"hw", "dgx-h100"}, {"epochs", 2}};
  for (const v1::Options& asked : {missing, no_tokenizer, no_data}) {
    const RunResult run = chats.Run("estimate" + Words(asked));
    CHECK(run.exit_code == 2);
    try {
      v1::MakeEstimate(asked);
      FAIL_CHECK("no error");
    } catch (const v1::Error& error) {
      CHECK(error.exit_code() == 2);
      CHECK(run.err.ends_with("zeroplan: " + std::string(error.what()) + '\n'));
    }
    CHECK_THROWS_AS(v1::MakePlan(asked), v1::Error);
    CHECK_THROWS_AS(v1::CompareMachines(asked), v1::Error);
  }
}

}  // namespace
}  // namespace zeroplan
