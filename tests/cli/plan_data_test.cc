// plan and estimate --data: what they count is what train then does; what it refuses; the probe of
// --for.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/chats.h"
#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/run_metrics.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

// The paragraph "Data: ..." as one line.
std::string DataLine(const std::string& text) {
  const std::string lines = Unwrapped(text);
  const size_t begin = lines.find("Data: ");
  return begin == std::string::npos ? "" : lines.substr(begin, lines.find('\n', begin) - begin);
}

TEST_CASE("plan --data: what is said before a run is what train then does") {
  const Chats chats;
  for (const std::string packing : {"", " --packing off", " --packing stream"}) {
    CAPTURE(packing);
    const std::string asked = "--epochs 2 --data " + chats.data + packing;
    const RunResult planned = chats.Run(chats.Plan(asked)),
                    as_json = chats.Run(chats.Plan(asked + " --format json"));
    CAPTURE(planned.err);
    REQUIRE(planned.exit_code == 0);
    REQUIRE(as_json.exit_code == 0);
    const Json all = Json::parse(as_json.out), plan = all["data"];
    const std::string metrics = chats.path("m.jsonl");
    std::filesystem::remove(metrics);
    const RunResult run = chats.Run(
        "train --model " + chats.model + " --backend cpu --threads 1 --stage 0 --micro-batch 2 " +
        "--grad-accum 3 --seq-len 64 --lr 1e-4 --fresh-weights --metrics " + metrics + ' ' + asked);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    // The same facts, word by word.
    const std::string whole = DataLine(planned.out);
    const std::string line = whole.substr(0, whole.find(" Without padding"));
    CHECK(Has(line, "Data: 90 documents of "));
    CHECK(Has(run.err, line));
    int64_t steps = 0;
    for (const Json& event : ReadMetricsLines(metrics)) {
      if (event["event"] != "step") continue;
      ++steps;
      CHECK(event["tokens"] == plan["sequences_per_step"].get<int64_t>() * 64);
    }
    CHECK(plan["steps"] == steps);
    CHECK(all["run"]["steps"] == steps);
    CHECK(Has(planned.out, wording::kTrainingOnEpochs));
    CHECK(Has(run.err, std::to_string(steps) + " steps are "));
    CHECK(plan["seq_len"] == 64);
    CHECK(plan["packing"] == (packing.empty() ? "documents" : packing.substr(11)));
    if (plan["packing"] == "stream") continue;
    CHECK(plan["longer_documents"] == 6);
    CHECK(plan["left_out_tokens"] > 0);
    CHECK(plan["packed"]["sequences"] < plan["one_a_sequence"]["sequences"]);
    CHECK(plan["proposal"]["cut_documents"] <= 0.01);
    CHECK(Has(
        Unwrapped(chats.Run(chats.Plan(asked + " --explain")).out),
        "--seq-len " + std::to_string(plan["proposal"]["seq_len"].get<int64_t>()) + " would cut "));
  }
}

TEST_CASE("plan --data: all that count, and the same of a plan that train runs") {
  const Chats chats;
  const std::string file = chats.path("plan.json"), asked = "--data " + chats.data;
  const RunResult planned = chats.Run(chats.Plan(asked + " --train-on all --plan-out " + file));
  CAPTURE(planned.err);
  REQUIRE(planned.exit_code == 0);
  // Nothing is masked: texts, a stream.
  CHECK(Lacks(DataLine(planned.out), wording::kCountInTheLoss));
  const RunResult run =
      chats.Run("train --backend cpu --threads 1 --steps 1 --train-on all --fresh-weights --plan " +
                file + ' ' + asked);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(Has(run.err, DataLine(planned.out)));
  // With borders of documents that conversations are packed by.
  REQUIRE(chats.Run(chats.Plan(asked + " --plan-out " + file)).exit_code == 0);
  CHECK(Json::parse(ReadWhole(file))["lower"]["document_borders"] == true);
  CHECK(Has(chats
                .Run("train --backend cpu --threads 1 --steps 1 --fresh-weights --plan " + file +
                     ' ' + asked)
                .err,
            "packed (--packing documents), "));
}

TEST_CASE("plan --data for another program: the longest micro-batch, and a probe of it") {
  const Chats chats;
  const std::string plan = "plan --explain --quick --model " + chats.model +
                           " --hw dgx-h100 --gpus 2 --micro-batch 4 --grad-accum 1 --data " +
                           chats.data + " --out " + chats.path("out");
  const std::string cut = " --seq-len 64";
  const RunResult trainer = chats.Run(plan + ".json --for hf-trainer" + cut);
  CAPTURE(trainer.err);
  REQUIRE(trainer.exit_code == 0);
  const std::string page = Unwrapped(trainer.out);
  CHECK(Has(page, wording::kOneDocumentSequenceSequencesAn));
  CHECK(Has(page, wording::kMicroBatchHasAtMost));
  CHECK(Has(page, wording::kMemoryIsPlannedFor));
  CHECK(Has(page, wording::kTwoStepsOfTheLongest));
  CHECK(Has(trainer.out, wording::kTrainerTrainDatasetTorchUtils));
  CHECK(Has(trainer.out, wording::kProbeTorchrunTrainPy));
  CHECK(Has(trainer.out, "--max_steps 2 \\\n      --save_strategy no\n"));
  // Sequences that are longer than all: no batch is as large as one that is planned.
  const RunResult longer = chats.Run(plan + ".json --for hf-trainer --seq-len 512");
  CHECK(longer.exit_code == 0);
  CHECK(Has(Unwrapped(longer.out), wording::kMemoryIsPlannedFor2));
  CHECK(Lacks(Unwrapped(longer.out), wording::kAtMostTokens));

  const RunResult accelerate = chats.Run(plan + ".yaml --for accelerate" + cut);
  CAPTURE(accelerate.err);
  REQUIRE(accelerate.exit_code == 0);
  CHECK(Has(accelerate.out, wording::kDatasetTorchUtilsDataSubset));
  CHECK(Has(accelerate.out, wording::kProbeAccelerateLaunch));
  // torchtitan joins documents and cuts them: no batch is larger than another.
  const std::string titan = plan + ".toml --for torchtitan" + cut;
  const RunResult joined = chats.Run(titan);
  CAPTURE(joined.err);
  CHECK(joined.exit_code == 0);
  CHECK(Has(Unwrapped(joined.out), wording::kEveryMicroBatchIsTokens));
  CHECK(Lacks(joined.out, "PROBE"));
  CHECK(chats.Run(titan + " --packing off").exit_code == 2);
  // Where the question has no data nothing is probed.
  const RunResult without =
      chats.Run("plan --explain --quick --model " + chats.model + " --hw dgx-h100 --gpus 2 --out " +
                chats.path("out.json") + " --for hf-trainer");
  CHECK(without.exit_code == 0);
  CHECK(Lacks(without.out, "PROBE"));
}

TEST_CASE("plan --data: machines that are compared pack as a plan of each does") {
  const Chats chats;
  const std::string asked = "plan --quick --format json --model " + chats.model +
                            " --epochs 30 --data " + chats.data + " --gpus 1 --hw ";
  const RunResult all = chats.Run(asked + "l40s,dgx-h100");
  CAPTURE(all.err);
  REQUIRE(all.exit_code == 0);
  const std::string read = "The first record";  // is said once: so often it was read
  CHECK(Has(all.err, read));
  CHECK(all.err.find(read) == all.err.rfind(read));
  const Json rows = Json::parse(all.out)["machines"];
  REQUIRE(rows.size() == 2);
  for (const Json& row : rows) {
    CAPTURE(row["hw"]);
    const Json one = Json::parse(chats.Run(asked + row["hw"].get<std::string>()).out);
    CHECK(row["steps"] == one["run"]["steps"]);
    CHECK(row["data"]["packing"] == one["data"]["packing"]);
    CHECK(row["seconds"].get<double>() == doctest::Approx(one["run"]["seconds"].get<double>()));
  }
}

TEST_CASE(
    "plan --data --for kubernetes: the epochs, how records are taken, and the model's folder") {
  const Chats chats;
  const std::string written = chats.path("run.yaml");
  const RunResult run = chats.Run(chats.Plan("--epochs 2.5 --truncate --skip-bad 1 --data " +
                                             chats.data + " --for kubernetes --out " + written +
                                             " --plan-out " + chats.path("plan.json")));
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(Has(ReadWhole(written), wording::kZeroplanTrainPlanPlanJson));
  CHECK(Has(Unwrapped(run.out), wording::kTheDataAsDataAnd));
  CHECK(Lacks(run.out, "cp -rL"));

  // Adapters are the plan's, whatever the folder has.
  const std::string adapters = chats.path("lora.json");
  const RunResult lora = chats.Run(chats.Plan("--method lora --plan-out " + adapters));
  CAPTURE(lora.err);
  REQUIRE(lora.exit_code == 0);
  const std::string train = "train --backend cpu --steps 1 --fresh-weights --plan " + adapters +
                            " --data " + chats.data + " --packing off --model " + chats.model;
  const RunResult trained = chats.Run(train);
  CAPTURE(trained.err);
  CHECK(trained.exit_code == 0);
  CHECK(Has(trained.err, "step 1/1"));
  CHECK(Has(chats.Run(train + " --lora-rank 4").err, "lora_rank"));

  // A folder of links, as Hugging Face's cache has them.
  const std::string linked = chats.path("linked");
  std::filesystem::create_directory(linked);
  for (const auto& file : std::filesystem::directory_iterator(chats.model)) {
    std::filesystem::create_symlink(file.path(),
                                    std::filesystem::path(linked) / file.path().filename());
  }
  std::string asked = chats.Plan("--tokens 1B --for skypilot --out " + written + " --plan-out " +
                                 chats.path("plan.json"));
  asked.replace(asked.find(chats.model), chats.model.size(), linked);
  const RunResult cached = chats.Run(asked);
  CAPTURE(cached.err);
  REQUIRE(cached.exit_code == 0);
  CHECK(Has(ReadWhole(written), "~/model: \"./model\""));
  CHECK(Has(Unwrapped(cached.out), linked + " holds links, which an upload does not follow"));
}

TEST_CASE("plan --data: conversations are laid as an epoch is fastest, and the other way is said") {
  const Chats chats;
  std::string asked = chats.Plan("--data " + chats.data);
  asked.replace(asked.find("dgx-h100"), 8, "rtx4090");
  const RunResult run = chats.Run(asked);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(Has(Unwrapped(run.out), wording::kPackingDocumentsInSequences));
  CHECK(Has(DataLine(run.out), "packed (--packing documents), "));
  const RunResult all = chats.Run(asked + " --explain");
  CHECK(Has(Unwrapped(all.out), ", --packing documents"));
}

TEST_CASE("estimate --data: the same facts, of every choice") {
  const Chats chats;
  const std::string shared = " --model " + chats.model +
                             " --hw dgx-h100 --gpus 1 --micro-batch 2 --grad-accum 3 --seq-len 64 "
                             "--gpu-hour-price 2 --epochs 2 --data " +
                             chats.data;
  const RunResult text = chats.Run("estimate --explain" + shared),
                  as_json = chats.Run("estimate --format json" + shared),
                  planned = chats.Run("plan --quick --format json --stage 0 " + shared);
  CAPTURE(text.err);
  REQUIRE(text.exit_code == 0);
  REQUIRE(as_json.exit_code == 0);
  REQUIRE(planned.exit_code == 0);
  CHECK(Has(DataLine(text.out), "90 documents, "));
  CHECK(Has(Unwrapped(text.out), wording::kEveryBatchTakesTheMemory));
  CHECK(Has(text.out, wording::kTrainingOnEpochs));
  CHECK(Has(Unwrapped(text.out), "--packing documents"));
  const Json estimate = Json::parse(as_json.out), plan = Json::parse(planned.out);
  CHECK(estimate["data"] == plan["data"]);
  for (const Json& choice : estimate["choices"]) {
    CHECK(choice["training"]["steps"] == plan["data"]["steps"]);
    CHECK(choice["training"]["tokens"] == plan["run"]["tokens"]);
  }
  // Another program pads.
  const RunResult other = chats.Run("estimate --explain --runtime deepspeed" + shared);
  CAPTURE(other.err);
  REQUIRE(other.exit_code == 0);
  CHECK(Has(DataLine(other.out), wording::kOneDocumentSequenceSequencesAn2));
  CHECK(Has(Unwrapped(other.out), wording::kMicroBatchHasAtMost2));
  for (const std::string wrong : {" --tokens 1B", " --truncate --packing stream"}) {
    const RunResult run = chats.Run("estimate" + shared + wrong);
    CHECK(run.exit_code == 2);
    CHECK(run.out.empty());
  }
  CHECK(Has(chats.Run("estimate --explain --model gpt2 --epochs 2").err, "add --data FILE"));
}

TEST_CASE("plan --data --report: lengths, sequences and the run are on the page") {
  const Chats chats;
  const std::string page = chats.path("page.html");
  for (const std::string command : {"plan --quick --stage 0", "estimate --stage 0"}) {
    CAPTURE(command);
    const RunResult run = chats.Run(command + " --model " + chats.model +
                                    " --hw dgx-h100 --gpus 1 --micro-batch 2 --grad-accum 3 "
                                    "--seq-len 64 --gpu-hour-price 2 --epochs 2 --report " +
                                    page + " --data " + chats.data);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    const std::string html = ReadWhole(page);
    for (const char* part : {"id=\"data\"", "id=\"data-sequences\"", "id=\"run-cost\"",
                             "Training on 2 epochs (", "Data: 90 documents"}) {
      CHECK(Has(html, part));
    }
  }
}

TEST_CASE("plan --data: what cannot be counted is refused, with the way out") {
  const Chats chats;
  std::ofstream(chats.path("empty.jsonl")) << "";
  std::ofstream(chats.path("one.txt")) << "a";
  const auto refuse = [&](const std::string& arguments, const std::vector<std::string>& parts) {
    const RunResult run = chats.Run(arguments);
    CAPTURE(arguments);
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.out.empty());
    for (const std::string& part : parts) CHECK(Has(run.err, part));
  };
  refuse(chats.Plan("--data " + chats.path("none.jsonl")), {"none.jsonl"});
  refuse(chats.Plan("--data " + chats.path("empty.jsonl")), {"empty.jsonl"});
  refuse(chats.Plan("--data " + chats.path("one.txt")), {"--data: ", "one sample"});
  refuse("plan --model gpt2 --hw dgx-h100 --gpus 1 --data " + chats.data,
         {"--data: ", "chats.jsonl", "--tokenizer DIR"});
  refuse(chats.Plan("--tokens 1B --data " + chats.data), {"--tokens: 1B", "--data", "--epochs"});
  refuse(chats.Plan("--epochs 2"), {"--epochs", "add --data FILE"});
  refuse(chats.Plan("--train-on all"), {"--train-on", "add --data FILE"});
  refuse(chats.Plan("--epochs none --data " + chats.data), {"--epochs: none"});
  refuse(chats.Plan("--truncate --packing stream --data " + chats.data), {"--truncate"});
  refuse("plan --gpus 1 --hw dgx-h100 --largest --data " + chats.data, {"--largest", "--data"});
}

}  // namespace
}  // namespace zeroplan
