// Runs that died of a host's memory, or around their steps, beside what is predicted of it.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "planner/why/why.h"
#include "tests/has.h"
#include "tests/planner/why/why_of_text.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

TEST_CASE("a host without memory: what is predicted of it") {
  const WhyAnswer answer = WhyOfText(
      "Loading checkpoint shards:  33%|###   | 1/3 [00:09<00:19,  9.81s/it]\n"
      "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 6 "
      "(pid: 730) of binary: /opt/python\n",
      {{"model", "llama3.1-8b"},
       {"runtime", "deepspeed"},
       {"stage", "3"},
       {"gpus", "8"},
       {"micro_batch", "1"},
       {"seq_len", "2048"},
       {"hw", "dgx-h100"},
       {"code", "hf"}});
  REQUIRE(answer.prediction.has_value());
  CHECK(HasFinding(answer, "Memory of a host as predicted: "));
  CHECK(HasFinding(answer, "for 8 processes"));
  CHECK(HasFinding(answer, "Loading: "));
  CHECK(answer.changes.empty());
}

std::string CpuLine(double used, double percent) {
  return fmt::format(
      "[INFO] [utils.py:781:see_memory_usage] begin bf16_optimizer\n"
      "[INFO] [utils.py:789:see_memory_usage] CPU Virtual Memory:  used = {} GB, percent = {}%\n",
      used, percent);
}

TEST_CASE("a host without memory: beside what it has, and what makes it fit") {
  const std::string killed =
      "slurmstepd: error: Detected 3 oom_kill events in StepId=4242.0. Some of the step tasks have "
      "been OOM Killed.\n";
  const std::vector<std::pair<std::string, std::string>> fields = {{"model", "llama3.1-8b"},
                                                                   {"runtime", "deepspeed"},
                                                                   {"stage", "3"},
                                                                   {"offload_optimizer", "cpu"},
                                                                   {"gpus", "8"},
                                                                   {"micro_batch", "1"},
                                                                   {"seq_len", "2048"},
                                                                   {"gpu_memory", "80GB"}};
  const auto with = [&](const std::string& log, const char* memory) {
    auto all = fields;
    if (*memory != '\0') all.emplace_back("host_memory", memory);
    return WhyOfText(log + killed, all);
  };
  // Neither says how much a host has.
  const WhyAnswer unknown = with("", "");
  REQUIRE(unknown.prediction.has_value());
  CHECK_FALSE(unknown.prediction->host_bytes);
  CHECK(HasFinding(unknown, "does not say how much there was, ⟦host_memory⟧ does."));
  CHECK(unknown.changes.empty());

  const WhyAnswer given = with("", "100GiB");
  REQUIRE(given.prediction.has_value());
  CHECK(given.prediction->host_bytes < uint64_t{100} << 30);
  CHECK(HasFinding(given, "A host has 100.00 GiB, 9"));
  CHECK(HasFinding(given, " GiB of it beside ⟦host_reserve⟧: that does not fit."));
  CHECK_FALSE(HasFinding(given, "does not say how much"));
  REQUIRE_FALSE(given.changes.empty());
  for (const WhyChange& change : given.changes) {
    CAPTURE(change.options);
    CHECK(change.estimate.fits);
    CHECK(change.estimate.footprint.host.total() <= *given.prediction->host_bytes);
  }
  CHECK(Has(WordsIn(WhyText(given, 400)), " of a host"));

  // DeepSpeed's lines tell of it: in use, and by its part of all.
  const WhyAnswer of_log = with(CpuLine(40, 40.1) + CpuLine(98.5, 98.5) + CpuLine(60, 60.1), "");
  REQUIRE(of_log.prediction.has_value());
  CHECK(HasFinding(of_log,
                   "The log has up to 98.50 GiB of a host in use, 98.5 % of some 100 GiB (CPU "
                   "Virtual Memory, line 4)."));
  CHECK(of_log.prediction->host_bytes == given.prediction->host_bytes);
  CHECK(of_log.changes.size() == given.changes.size());
  CHECK(Has(WordsIn(WhyText(of_log, 400)), wording::kGibCpuVirtualMemoryLine));
  // Options win, and a difference is said beyond what a host's firmware takes.
  CHECK(with(CpuLine(98.5, 98.5), "102GiB").conflicts.empty());
  const WhyAnswer more = with(CpuLine(98.5, 98.5), "2TiB");
  CHECK(more.conflicts == std::vector<std::string>{"⟦host_memory⟧ 2TiB: the log says 100.0GiB (CPU "
                                                   "Virtual Memory, line 2)"});
  CHECK(HasFinding(more, ": that fits."));
  CHECK(HasFinding(more, "a control group may allow less than the host has."));
  CHECK(more.changes.empty());

  // A config with options keeps the sequences of a step too.
  const std::string config =
      "[config.py:991:print_user_config]   json = {\n  \"train_batch_size\": 16,\n"
      "  \"train_micro_batch_size_per_gpu\": 2,\n  \"gradient_accumulation_steps\": 1,\n"
      "  \"bf16\": {\"enabled\": true},\n  \"zero_optimization\": {\"stage\": 3,\n"
      "    \"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_param\": {\"device\": "
      "\"cpu\"}}\n}\n";
  const WhyAnswer configured = WhyOfText(
      config + CpuLine(100.11, 79.6) + killed,
      {{"model", "llama3.1-8b"}, {"gpus", "8"}, {"seq_len", "4096"}, {"gpu_memory", "80GB"}});
  REQUIRE(configured.prediction.has_value());
  CHECK(configured.prediction->choice.setup.batch.global_batch() == 16);
  REQUIRE_FALSE(configured.changes.empty());
  for (const WhyChange& change : configured.changes) {
    CAPTURE(change.options);
    CHECK(change.estimate.fits);
    CHECK(change.estimate.setup.batch.global_batch() == 16);
  }

  // Less than Python itself takes.
  const WhyAnswer none = with("", "3GiB");
  CHECK(none.changes.empty());
  CHECK(Has(WordsIn(WhyText(none, 400)), wording::kSmallerModelOrHostsWith));
}

TEST_CASE("evaluation that ran out of memory: with the batch size that the log says") {
  const auto finding = [](const std::string& head, const std::string& evaluation) {
    const WhyAnswer answer = WhyOfText(
        head +
            "***** Running training *****\n  Instantaneous batch size per device = 4\n"
            "  Total train batch size (w. parallel, distributed & accumulation) = 32\n"
            "  Gradient Accumulation steps = 1\n" +
            evaluation +
            "Traceback (most recent call last):\n"
            "  File \"/opt/transformers/trainer.py\", line 4400, in evaluation_loop\n"
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.55 GiB. GPU 3 has a "
            "total capacity of 79.10 GiB of which 3.21 GiB is free.\n",
        {{"model", "llama3.2-1b"},
         {"runtime", "deepspeed"},
         {"stage", "3"},
         {"seq_len", "2048"},
         {"checkpointing", "full"}});
    REQUIRE(answer.prediction.has_value());
    for (const std::string& text : answer.findings) {
      if (text.starts_with("Evaluation: ")) return text;
    }
    return std::string();
  };
  const auto header = [](int batch) {
    return fmt::format("***** Running Evaluation *****\n  Num examples = 500\n  Batch size = {}\n",
                       batch);
  };
  const std::string command = "torchrun --nproc_per_node 8 t.py --per_device_eval_batch_size 2\n";
  const std::string two = finding(command, "");
  CHECK(Has(two, wording::kSequencesLogitsAndTheirLoss));
  CHECK(Has(two, wording::kTheBatchSizeIsThe));
  // What ran is what evaluation prints.
  const std::string sixteen = finding(command, header(16));
  CHECK(Has(sixteen, wording::kSequencesLogitsAndTheirLoss2));
  CHECK(Has(sixteen, wording::kTheBatchSizeIsThe2));
  const std::string one = finding("", header(1));
  CHECK(Has(one, wording::kSequenceLogitsAndTheirLoss));
  CHECK(Lacks(one, " With "));
  const std::string unsaid = finding("", "");
  CHECK(Has(unsaid, wording::kSequencesLogitsAndTheirLoss3));
  CHECK(Lacks(unsaid, "the log's"));
  // Of some other header it is none.
  CHECK(finding("", "  Batch size = 2\n") == unsaid);
  CHECK(finding("", header(8)).starts_with(unsaid.substr(0, unsaid.find(", the Trainer's"))));
}

}  // namespace
}  // namespace zeroplan
