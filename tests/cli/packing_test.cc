// --packing as a user gives it: what train makes of conversations, what plans count, what is
// refused.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/run/train/train_data.h"
#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/run_metrics.h"
#include "tests/wordings/cli.h"
#include "text/files/token_file.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

// Documents of bytes, of which with `conversations` every other eight do not count.
std::string WriteDocuments(const Workspace& work, const std::string& name, bool conversations,
                           int shortest = 4) {
  TokenFileWriter writer(work.path(name));
  for (int d = 0; d < 1200; ++d) {
    std::vector<int32_t> tokens;
    std::vector<uint8_t> counted;
    for (int i = 0; i < shortest + d % 41; ++i) {
      tokens.push_back((i * 5 + d) % 256);
      counted.push_back(!conversations || i / 8 % 2 == 1 || i == 3);
    }
    writer.Append(tokens, counted);
    writer.EndDocument();
  }
  writer.Finish();
  return work.path(name);
}

std::string TrainOn(const Workspace& work, const std::string& data, const std::string& more) {
  return "train --model " + work.path("config.json") + " --data " + data +
         " --threads 1 --steps 4 --micro-batch 2 --lr 3e-3 --backend cpu " + more;
}

TEST_CASE("train --packing: conversations are packed by default, texts are a stream") {
  const Workspace work;
  const std::string chats = WriteDocuments(work, "chats.bin", true);
  const std::string texts = WriteDocuments(work, "texts.bin", false);
  const auto run = [&](const std::string& data, const std::string& more) {
    const std::string metrics = work.path("m.jsonl");
    std::filesystem::remove(metrics);
    const RunResult result = RunZeroplan(TrainOn(work, data, more + " --metrics " + metrics));
    CAPTURE(result.err);
    CHECK(result.exit_code == 0);
    for (const Json& line : ReadMetricsLines(metrics)) {
      if (line["event"] != "end") continue;
      CHECK(line["high_water_bytes"] == line["planned_arena_bytes"]);
    }
    return result.err;
  };
  const std::string packed = run(chats, "--gpus 2 --stage 3");
  CHECK(Has(packed, wording::kPackingDocumentsAsTheData));
  CHECK(Has(packed, "packed (--packing documents), "));
  CHECK(Has(packed, " % padding"));
  CHECK(Has(packed, wording::kTokensAreLeftOut));
  CHECK(Has(run(chats, "--packing off"), "one a sequence (--packing off), "));
  CHECK(Lacks(run(chats, "--packing stream"), "--packing"));
  CHECK(Lacks(run(texts, ""), "acking"));
  CHECK(Has(run(texts, "--packing documents"), "cut into pieces that do not see each other"));
}

TEST_CASE("train --packing: what the backend or the plan cannot have is refused before any work") {
  const Workspace work;
  const std::string chats = WriteDocuments(work, "chats.bin", true);
  const auto refuse = [&](const std::string& arguments, const std::string& what) {
    const RunResult result = RunZeroplan(arguments);
    CAPTURE(result.err);
    CHECK(result.exit_code == 2);
    CHECK(Has(result.err, what));
  };
  refuse(TrainOn(work, chats, "--packing pages"), "--packing");
  const auto plan = [&](const std::string& name, const std::string& more) {
    const std::string file = work.path(name);
    const RunResult result =
        RunZeroplan("plan --model " + work.path("config.json") +
                    " --gpus 1 --gpu-memory 8GB --stage 0 --offload-optimizer none --micro-batch 2 "
                    "--checkpointing none --grad-accum 1 --plan-out " +
                    file + " " + more);
    CAPTURE(result.err);
    REQUIRE(result.exit_code == 0);
    return " --plan " + file;
  };
  const std::string plain = plan("plain.json", ""),
                    packed = plan("packed.json", "--packing documents");
  const std::string common = "train --data " + chats + " --threads 1 --steps 3 --backend cpu";
  refuse(common + plain + " --packing documents", "was planned without --packing documents");
  refuse(common + packed + " --packing off", "was planned with --packing documents");
  const RunResult ran = RunZeroplan(common + packed);
  CAPTURE(ran.err);
  CHECK(ran.exit_code == 0);
  CHECK(Has(ran.err, "packed (--packing documents), "));
  const RunResult padded = RunZeroplan(common + plain);
  CHECK(padded.exit_code == 0);
  CHECK(Has(padded.err, wording::kWasPlannedWithoutDocuments));
  CHECK(Has(padded.err, "one a sequence (--packing off), "));
}

// Tokens see their own documents alone, so that the default length costs hardly more than a short
// one, on cuDNN's kernels and on own ones.
TEST_CASE("train on a GPU packs or pads conversations as an epoch is fastest") {
  const Workspace work;
  const std::vector<std::string> brief = {WriteDocuments(work, "brief.bin", true)};
  const std::vector<std::string> full = {WriteDocuments(work, "full.bin", true, 2000)};
  TrainCommand asked;
  const auto settle = [&](const std::vector<std::string>& data, const char* profile,
                          bool deterministic = false) {
    TrainCommand command = asked;
    command.common.model.model = "llama3.2-1b";
    command.common.settings.deterministic = deterministic;
    command.run.data = data;
    REQUIRE(DataDecides(command));
    TrainWork train;
    train.model = LoadModel("llama3.2-1b");
    train.hardware = LoadProfile(profile);
    Assumptions assumptions;
    SettleLayout(command, train, Backend::kCuda, data, assumptions);
    CHECK(assumptions.notes.size() == (asked.common.settings.packing ? 0 : 1));
    CHECK(!DataDecides(command));
    SettlePacking(command, data, train);
    CHECK(train.lower.document_borders == (command.common.settings.packing == Packing::kDocuments));
    return std::pair(*command.common.settings.packing, *command.common.settings.seq_len);
  };
  const auto check = [&](const std::vector<std::string>& data, const char* profile,
                         bool deterministic, Packing packing, int64_t seq_len) {
    CAPTURE(profile);
    CAPTURE(deterministic);
    const auto [settled, length] = settle(data, profile, deterministic);
    CHECK(PackingName(settled) == PackingName(packing));
    CHECK(length == seq_len);
  };
  for (const char* profile : {"dgx-h100", "rtx4090"}) {
    for (const bool deterministic : {false, true}) {
      check(brief, profile, deterministic, Packing::kDocuments, 4096);
      check(full, profile, deterministic, Packing::kDocuments, 4096);
    }
  }
  // The longest have 44 tokens, and no sequence is shorter than these need.
  asked.common.settings.packing.emplace(Packing::kOff);
  check(brief, "rtx4090", false, Packing::kOff, 128);
  asked = {};
  Set(asked.common.settings.seq_len, int64_t{512});
  check(brief, "rtx4090", false, Packing::kDocuments, 512);
  asked = {};
  asked.common.settings.packing.emplace(Packing::kStream);
  TrainCommand streamed = asked;
  Assumptions assumptions;
  SettleLayout(streamed, {}, Backend::kCuda, brief, assumptions);
  CHECK(!streamed.common.settings.seq_len);
}

TEST_CASE("estimate --packing counts where documents start: 4 bytes a position") {
  const auto bytes = [](const std::string& more) {
    const RunResult result = RunZeroplan(
        "estimate --model gpt2 --gpus 1 --stage 0 --micro-batch 8 --seq-len 1024 "
        "--offload-optimizer "
        "none --dtype fp32 --format json " +
        more);
    REQUIRE(result.exit_code == 0);
    return Json::parse(result.out)["choices"][0]["host_bytes"]["pinned"].get<int64_t>();
  };
  CHECK(bytes("--packing documents") - bytes("") == 4 * 8 * 1024);
  CHECK(bytes("--packing off") == bytes("--packing stream"));
  const RunResult other =
      RunZeroplan("estimate --model gpt2 --gpus 1 --runtime fsdp2 --packing documents");
  CHECK(other.exit_code == 2);
}

}  // namespace
}  // namespace zeroplan
