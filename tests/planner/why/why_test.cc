// A log beside what is predicted of its run: whose word counts, what is asked for, what changes it.
#include "planner/why/why.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "hwprofiles/loader.h"
#include "planner/request/parse.h"
#include "planner/runtimes/runtimes.h"
#include "planner/why/merged_request.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/planned_models.h"
#include "tests/planner/runtimes/published_rows.h"
#include "tests/planner/why/why_of_text.h"
#include "tests/temp_dir.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

constexpr double kGiBOf = 1ull << 30;

std::string Fixture(const std::string& name) { return SourcePath("tests/fixtures/why/" + name); }

TEST_CASE("a DeepSpeed run: predicted from the config that it printed") {
  const WhyAnswer answer = Why(Fixture("deepspeed_backward.log"));
  CHECK(answer.missing.empty());
  REQUIRE(answer.prediction.has_value());
  const WhyPrediction& predicted = *answer.prediction;
  const TrainSetup& setup = predicted.choice.setup;
  CHECK(predicted.resolved->inputs().runtime == &DeepSpeedRuntime());
  CHECK(predicted.resolved->inputs().model.name == "llama3.2-1b");
  CHECK(setup.zero.stage == 2);
  CHECK(setup.zero.reduce_bucket_elements == 4'194'304);
  CHECK(setup.zero.overlap_comm);
  CHECK(setup.batch.world_size == 4);
  CHECK(setup.batch.micro_batch == 8);
  CHECK(setup.batch.grad_accum == 2);
  CHECK(setup.batch.seq_len == 4096);
  CHECK(setup.precision.dtype == Dtype::kBF16);
  CHECK(setup.recompute.kind == RecomputeKind::kNone);
  // Of the GPU what this process had and what was free.
  CHECK(static_cast<double>(predicted.gpu_bytes) / kGiBOf == doctest::Approx(69.21 + 9.88));
  CHECK(static_cast<double>(*predicted.needed) / kGiBOf == doctest::Approx(66.90 + 15.66));
  CHECK(predicted.beyond == 0);
  CHECK_FALSE(predicted.choice.fits);
  CHECK(HasFinding(answer, "15.66 GiB, which were wanted, is the size of logits in fp32"));
  CHECK(HasFinding(answer, "Not fragmentation"));
  CHECK(HasFinding(answer, "The prediction agrees that it does not fit"));
  CHECK_FALSE(answer.times_known);

  // What is proposed fits, alone, and keeps the sequences of a step.
  CHECK(answer.single_changes);
  CHECK(answer.changes.size() >= 3);
  for (const WhyChange& change : answer.changes) {
    CAPTURE(change.options);
    CHECK(change.estimate.fits);
    CHECK(change.estimate.setup.batch.global_batch() == 64);
  }
  const WhyChange* recompute = ChangeWith(answer, "⟦checkpointing⟧ full");
  REQUIRE(recompute != nullptr);
  CHECK(recompute->options == "⟦checkpointing⟧ full");
  CHECK(recompute->elsewhere == "gradient_checkpointing True");
  const WhyChange* smaller = ChangeWith(answer, "⟦micro_batch⟧");
  REQUIRE(smaller != nullptr);
  CHECK(smaller->estimate.setup.batch.micro_batch < 8);
  CHECK(Has(smaller->elsewhere, wording::kPerDeviceTrainBatchSize));
  CHECK(ChangeWith(answer, "⟦code⟧ liger") != nullptr);

  const std::string text = WordsIn(WhyText(answer, 400));
  CHECK(Has(text, wording::kRanOutOfGpuMemory));
  CHECK(Has(text, wording::kAllocatedAfterInitialisation));
  CHECK(Has(text, "⟦seq_len⟧ 4096 (--max_seq_length 4096, line 1)"));
}

TEST_CASE("options win over the log, and what differs is said") {
  const WhyAnswer answer = Why(Fixture("deepspeed_backward.log"),
                               {{"micro_batch", "2"}, {"stage", "3"}, {"seq_len", "2048"}});
  REQUIRE(answer.prediction.has_value());
  const TrainSetup& setup = answer.prediction->choice.setup;
  CHECK(setup.batch.micro_batch == 2);
  CHECK(setup.batch.seq_len == 2048);
  CHECK(setup.zero.stage == 3);
  CHECK(setup.zero.reduce_bucket_elements == 4'194'304);  // the config's other keys stay
  const std::vector<std::string> expected = {
      "⟦micro_batch⟧ 2: the log's config has 8 (line 27)",
      "⟦stage⟧ 3: the log's config has 2 (line 27)",
      "⟦seq_len⟧ 2048: the log says 4096 (--max_seq_length 4096, line 1)"};
  CHECK(answer.conflicts.size() == expected.size());
  for (const std::string& conflict : expected) {
    CHECK(std::count(answer.conflicts.begin(), answer.conflicts.end(), conflict) == 1);
  }
  CHECK(Why(Fixture("deepspeed_backward.log"), {{"seq_len", "4096"}}).conflicts.empty());
}

TEST_CASE("what neither says is asked for by name") {
  const WhyAnswer answer = Why(Fixture("trainer_loss.log"));
  CHECK_FALSE(answer.prediction.has_value());
  const std::string text = WhyIncomplete(answer);
  for (const char* field : {"⟦model⟧", "⟦seq_len⟧", "⟦micro_batch⟧"}) CHECK(Has(text, field));
  CHECK(Lacks(text, "⟦hw⟧"));  // the message tells the GPU's memory
  CHECK(Has(WordsIn(WhyText(answer, 400)), wording::kGibWereWanted));
  // A folder of another machine is no model here.
  const WhyAnswer elsewhere = WhyOfText(
      "python train.py --model_name_or_path /data/models/llama --per_device_train_batch_size 1\n");
  CHECK(Has(WhyIncomplete(elsewhere), wording::kTheLogHasDataModels));
  const WhyAnswer stage = WhyOfText("python train.py --deepspeed ds.json\n");
  CHECK(Has(WhyIncomplete(stage), wording::kTheZeroStageOr));
}

TEST_CASE("a run of Trainer that was held to 24 GiB: measured beside predicted") {
  const WhyAnswer answer = Why(Fixture("trainer_loss.log"), {{"model", "llama3.2-1b"},
                                                             {"runtime", "ddp"},
                                                             {"gpus", "1"},
                                                             {"micro_batch", "4"},
                                                             {"grad_accum", "2"},
                                                             {"seq_len", "2048"},
                                                             {"checkpointing", "none"}});
  REQUIRE(answer.prediction.has_value());
  CHECK(answer.log.Cause()->phase == RunPhase::kLoss);
  // 24 GiB of the allocator, and what lay outside it: 22.36 less 21.60 and 97.95 MiB.
  CHECK(static_cast<double>(answer.prediction->gpu_bytes) / kGiBOf ==
        doctest::Approx(24 + 22.36 - 21.60 - 97.95 / 1024).epsilon(0.0001));
  CHECK_FALSE(answer.prediction->choice.fits);
  CHECK(answer.prediction->beyond == 0);
  CHECK(HasFinding(answer, "3.91 GiB, which were wanted, is the size of logits in fp32"));
  CHECK_FALSE(answer.changes.empty());
}

TEST_CASE("a run of Trainer under DeepSpeed that died in the loss") {
  const WhyAnswer answer =
      Why(Fixture("deepspeed_loss.log"),
          {{"model", "llama3.2-1b"}, {"seq_len", "4096"}, {"stage", "2"}, {"hw", "hgx-h200"}});
  REQUIRE(answer.prediction.has_value());
  CHECK(answer.log.Cause()->phase == RunPhase::kLoss);
  CHECK(answer.prediction->resolved->inputs().runtime == &DeepSpeedRuntime());
  const TrainSetup& setup = answer.prediction->choice.setup;
  CHECK(setup.batch.micro_batch == 16);
  CHECK(setup.batch.world_size == 1);
  CHECK_FALSE(answer.prediction->choice.fits);
  CHECK(answer.prediction->beyond == 0);
  CHECK(HasFinding(answer, "31.31 GiB, which were wanted, is the size of logits in fp32"));
  CHECK(HasFinding(answer, "Not fragmentation"));
  // The log counts as many parameters as are trained.
  CHECK_FALSE(HasFinding(answer, "The log counts"));
  // Without the second copy of the logits, which it died of, it had what is predicted: activations,
  // parameters with their fp32 partition, and the 16-bit logits; Adam's states come later.
  const TorchPeak& peak =
      answer.prediction->choice.footprint.torch->peak(TorchPhase::kForwardBackward);
  const auto activations =
      static_cast<double>(peak.class_bytes[static_cast<size_t>(TorchClass::kActivations)]);
  const double params = 1'235'814'400.0;
  const double logits = 16.0 * 4096 * 128'256 * 2;
  const double had = static_cast<double>(*answer.log.Cause()->gpu.allocated);
  CHECK(activations + (2 + 4) * params + logits == doctest::Approx(had).epsilon(0.01));
}

std::string Shortage(const std::string& sizes) {
  return "Traceback (most recent call last):\n"
         "  File \"/opt/torch/_tensor.py\", line 2, in backward\n"
         "torch.OutOfMemoryError: CUDA out of memory. " +
         sizes + "\n";
}

const std::vector<std::pair<std::string, std::string>> kGpt2 = {
    {"model", "gpt2"},   {"runtime", "ddp"}, {"gpus", "1"},    {"micro_batch", "1"},
    {"grad_accum", "1"}, {"seq_len", "256"}, {"dtype", "bf16"}};

TEST_CASE("allocated against reserved: fragmentation is told where it decides") {
  const WhyAnswer pieces = WhyOfText(
      Shortage("Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.00 GiB of which "
               "1.00 GiB is free. Including non-PyTorch memory, this process has 20.00 GiB memory "
               "in use. Of the allocated memory 12.00 GiB is allocated by PyTorch, and 7.00 GiB is "
               "reserved by PyTorch but unallocated."),
      kGpt2);
  CHECK(HasFinding(pieces, "Fragmentation: 7.00 GiB were reserved and not allocated, more than"));
  CHECK(HasFinding(pieces, "expandable_segments:True"));
  CHECK(HasFinding(pieces, "2.00 GiB of the GPU are other processes'."));
  const WhyAnswer both = WhyOfText(
      Shortage("Tried to allocate 2.00 GiB (GPU 0; 23.00 GiB total capacity; 20.00 GiB already "
               "allocated; 1.00 GiB free; 21.50 GiB reserved in total by PyTorch)"),
      kGpt2);
  CHECK(HasFinding(both, "with what was free (1.00 GiB)"));
  const WhyAnswer none = WhyOfText(
      Shortage("Tried to allocate 2.00 GiB (GPU 0; 23.00 GiB total capacity; 21.00 GiB already "
               "allocated; 1.00 GiB free; 21.50 GiB reserved in total by PyTorch)"),
      kGpt2);
  CHECK(HasFinding(none, "Not fragmentation"));
  CHECK(HasFinding(none, "expandable_segments:True alone does not help"));
  const std::string on = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n";
  const auto with = [&](const char* allocated) {
    return WhyOfText(on + Shortage(fmt::format("Tried to allocate 2.00 GiB (GPU 0; 23.00 GiB total "
                                               "capacity; {} GiB already allocated; 1.00 GiB free; "
                                               "21.50 GiB reserved in total by PyTorch)",
                                               allocated)),
                     kGpt2);
  };
  const WhyAnswer joined = with("20.00");
  CHECK(HasFinding(joined, "Fragmentation, although expandable segments are on: with what was"));
  CHECK_FALSE(HasFinding(joined, "ALLOC_CONF"));
  const WhyAnswer full = with("20.45");
  CHECK(HasFinding(full,
                   "Not fragmentation alone: 20.45 GiB allocated and 2.00 GiB wanted are 98 "
                   "% of 23.00 GiB"));
  CHECK_FALSE(HasFinding(full, "Fragmentation"));
}

TEST_CASE("a shortage that nobody says the place of: changes take less than is predicted") {
  const std::string message =
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.00 GiB "
      "total capacity; 21.00 GiB already allocated; 1.00 GiB free; 21.50 GiB reserved in total by "
      "PyTorch)\n";
  const WhyAnswer answer = WhyOfText(message, kGpt2);
  REQUIRE(answer.prediction.has_value());
  CHECK(answer.log.Cause()->phase == RunPhase::kUnknown);
  CHECK(answer.prediction->beyond > 0);
  CHECK(HasFinding(answer, "more than predicted for the peak"));
  auto fields = kGpt2;
  fields[3].second = "8";
  fields.emplace_back("gpu_memory", "80GB");
  const WhyAnswer driver = WhyOfText("RuntimeError: CUDA error: out of memory\n", fields);
  CHECK_FALSE(driver.changes.empty());
  CHECK(Lacks(WordsIn(WhyText(driver, 400)), wording::kNoChangeWasFound));
  for (const WhyAnswer* of : {&answer, &driver}) {
    REQUIRE(of->prediction.has_value());
    const TorchFootprint& now = *of->prediction->choice.footprint.torch;
    for (const WhyChange& change : of->changes) {
      CHECK_FALSE(change.options.empty());
      const TorchFootprint& then = *change.estimate.footprint.torch;
      CHECK((then.TensorBytes() < now.TensorBytes() || then.ReservedBytes() < now.ReservedBytes()));
      CHECK(then.TensorBytes() <= now.TensorBytes());
    }
  }
}

TEST_CASE("a change does not advise itself") {
  const std::string log =
      "accelerate launch --num_processes 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B "
      "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --max_seq_length 4096 "
      "--bf16 True --gradient_checkpointing True --optim adamw_torch --fsdp \"full_shard "
      "auto_wrap\" "
      "--use_liger_kernel True\n";
  const std::vector<std::pair<std::string, std::string>> fields = {{"hw", "dgx-a100-40gb"}};
  const std::string spares = "has to empty its cache, which ⟦expandable_segments⟧ may spare it.";
  const auto text_of = [&](const std::string& head) {
    const std::string shortage = Shortage(
        "Tried to allocate 832.00 MiB. GPU 2 has a total capacity of 39.39 GiB of which 400.00 MiB "
        "is free.");
    return WordsIn(WhyText(WhyOfText(head + log + shortage, fields), 4000));
  };
  const std::string off = text_of(""),
                    on = text_of("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n");
  CHECK(Has(off, spares));
  const size_t own = off.find(" ⟦expandable_segments⟧ [");
  REQUIRE(own != std::string::npos);
  const std::string line = off.substr(own, off.find(". ", own) + 1 - own);
  CHECK(line.ends_with("; the allocator has to empty its cache."));
  // Nor is it of use where it is on.
  CHECK(Lacks(on, spares));
}

TEST_CASE("a DeepSpeed config whose zero_optimization is no object") {
  const auto why = [](const std::string& zero) {
    auto fields = kGpt2;
    fields[1].second = "deepspeed";
    fields.insert(fields.end(),
                  {{"gpu_memory", "80GB"}, {"stage", "2"}, {"offload_optimizer", "cpu"}});
    return WhyOfText(
        "[config.py:991:print_user_config]   json = {\n  \"bf16\": {\"enabled\": true},\n"
        "  \"zero_optimization\": " +
            zero + "\n}\n",
        fields);
  };
  for (const char* zero : {"true", "null"}) {
    const WhyAnswer answer = why(zero);
    REQUIRE(answer.prediction.has_value());
    CHECK(answer.prediction->choice.setup.zero.stage == 2);
  }
  for (const char* zero : {"\"on\"", "[2]", "3"}) {
    const WhyAnswer answer = why(zero);
    CHECK_FALSE(answer.prediction.has_value());
    CHECK(Has(WhyIncomplete(answer), "zero_optimization"));
  }
}

TEST_CASE("a model that is planned for others is found where the log says it is") {
  const TempDir folder;
  WriteJson(folder.path("config.json"), PlannedFixture("gemma2")["config"]);
  const std::string log = "python train.py --model_name_or_path " + folder.path() +
                          " --optim lion_8bit --bf16 True\nNum processes: 1\n";
  std::vector<std::pair<std::string, std::string>> fields = {
      {"runtime", "ddp"}, {"gpu_memory", "8GB"}, {"micro_batch", "1"}, {"seq_len", "64"}};
  const WhyAnswer answer = WhyOfText(log, fields);
  REQUIRE(answer.prediction.has_value());
  CHECK(Has(WordsIn(WhyText(answer, 400)), wording::kLineLionBitIsNot));
  auto frozen = fields;
  frozen.emplace_back("freeze", "*norm*");
  CHECK(Has(WhyIncomplete(WhyOfText(log, frozen)), wording::kOfGemmaNothingCanBe));
  WriteJson(folder.path("config.json"), PlannedFixture("qwen2_5_vl")["config"]);
  CHECK(Has(WhyIncomplete(WhyOfText(log, fields)), wording::kTokensOfImagesAreMore));
  fields.emplace_back("image_tokens", "16");
  CHECK(WhyOfText(log, fields).prediction.has_value());
}

TEST_CASE("a run that took more than is predicted is said to, and changes leave so much free") {
  const WhyAnswer answer = WhyOfText(
      Shortage("Tried to allocate 2.00 GiB (GPU 0; 23.00 GiB total capacity; 21.00 GiB already "
               "allocated; 1.00 GiB free; 21.50 GiB reserved in total by PyTorch)"),
      kGpt2);
  REQUIRE(answer.prediction.has_value());
  CHECK(answer.prediction->choice.fits);
  const uint64_t peak =
      answer.prediction->choice.footprint.torch->peak(TorchPhase::kForwardBackward).allocated_bytes;
  CHECK(answer.prediction->beyond == *answer.prediction->needed - peak);
  CHECK(HasFinding(answer, "more than predicted for the backward pass"));
  CHECK(HasFinding(answer, "Taken without being said: ⟦checkpointing⟧ none."));
  for (const WhyChange& change : answer.changes) {
    const TorchFootprint& torch = *change.estimate.footprint.torch;
    CHECK(torch.TensorBytes() + torch.context_bytes + answer.prediction->beyond <=
          answer.prediction->gpu_bytes);
  }
}

TEST_CASE("a run that ran: steps and memory beside the prediction, what the log has of causes") {
  const std::string log =
      "torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B "
      "--max_seq_length 4096 --gradient_checkpointing True --bf16 True --deepspeed ds.json\n"
      "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"
      "[INFO] [logging.py:128:log_dist] [Rank 0] Creating torch.bfloat16 ZeRO stage 3 optimizer\n"
      "[INFO] [config.py:1005:print]   train_micro_batch_size_per_gpu  2\n"
      "[INFO] [config.py:1005:print]   gradient_accumulation_steps .. 4\n"
      "[INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step=10, "
      "RunningAvgSamplesPerSec=6.4, CurrSamplesPerSec=6.4, MemAllocated=4.32GB, "
      "MaxMemAllocated=38.49GB\n"
      "[WARNING] [stage3.py:2391:step] 2 pytorch allocator cache flushes since last step.\n";
  const WhyAnswer answer =
      WhyOfText(log, {{"hw", "dgx-h100"}, {"offload_optimizer", "cpu"}, {"offload_param", "none"}});
  REQUIRE(answer.prediction.has_value());
  CHECK(answer.times_known);
  CHECK(answer.changes.empty());
  // 64 sequences at 6.4 a second.
  const std::string text = WordsIn(WhyText(answer, 400));
  CHECK(Has(text, "10.0 s"));
  CHECK(HasFinding(answer, "times the prediction"));
  CHECK(HasFinding(answer, "emptied its cache"));
  CHECK(HasFinding(answer, "OMP_NUM_THREADS to 1 (line 2)"));
  CHECK(Has(text, wording::kNoFailureIsInThe));
  // Without the GPUs' name no times are compared.
  const WhyAnswer unknown = WhyOfText(
      log, {{"gpu_memory", "80GB"}, {"offload_optimizer", "cpu"}, {"offload_param", "none"}});
  CHECK_FALSE(unknown.times_known);
  CHECK_FALSE(HasFinding(unknown, "times the prediction"));
  CHECK(Lacks(WordsIn(WhyText(unknown, 400)), wording::kAnOptimizerStep));
}

TEST_CASE("a model that the log prints is that model") {
  const std::string config =
      "[transformers] loading configuration file /home/user/mine/config.json\n"
      "[transformers] Model config LlamaConfig {\n  \"attention_bias\": false,\n"
      "  \"hidden_act\": \"silu\",\n  \"hidden_size\": 512,\n  \"intermediate_size\": 1536,\n"
      "  \"max_position_embeddings\": 4096,\n  \"model_type\": \"llama\",\n"
      "  \"num_attention_heads\": 8,\n  \"num_hidden_layers\": 6,\n"
      "  \"num_key_value_heads\": 4,\n  \"rms_norm_eps\": 1e-06,\n"
      "  \"rope_parameters\": {\n    \"rope_theta\": 10000.0,\n    \"rope_type\": \"default\"\n  "
      "},\n"
      "  \"tie_word_embeddings\": true,\n  \"vocab_size\": 32000\n}\n\nNum processes: 1\n";
  const std::vector<std::pair<std::string, std::string>> fields = {
      {"runtime", "ddp"}, {"gpu_memory", "8GB"}, {"micro_batch", "2"}, {"seq_len", "256"}};
  const WhyAnswer answer = WhyOfText(config, fields);
  REQUIRE(answer.prediction.has_value());
  const ModelSpec& model = answer.prediction->resolved->inputs().model;
  CHECK(model.layers == 6);
  CHECK(model.hidden == 512);
  CHECK(model.name == "model-of-the-log");
  // What is not read names the log and the line.
  std::string other = config;
  other.replace(other.find("silu"), 4, "relu");
  const WhyAnswer refused = WhyOfText(other, fields);
  CHECK_FALSE(refused.prediction.has_value());
  CHECK(Has(WhyIncomplete(refused), wording::kTrainLogModelConfigLine));
  CHECK(Lacks(WhyIncomplete(refused), "zeroplan_why"));
}

TEST_CASE("what nobody said and would explain a difference is named") {
  const std::string head =
      "python train.py --model_name_or_path gpt2-xl --per_device_train_batch_size 8 --block_size "
      "1024 --gradient_accumulation_steps 1 --bf16 True\nNum processes: 1\n";
  const std::vector<std::pair<std::string, std::string>> fields = {
      {"runtime", "ddp"}, {"gpu_memory", "140GB"}, {"code", "hf"}, {"attn", "sdpa"}};
  const auto ran = [&](double gib) {
    return WhyOfText(head + fmt::format("epoch=0/micro_step=9/global_step=9, "
                                        "RunningAvgSamplesPerSec=2.5, MaxMemAllocated={}GB\n",
                                        gib),
                     fields);
  };
  // As much as it takes with recompute.
  auto with = fields;
  with.emplace_back("checkpointing", "full");
  const WhyAnswer recomputed = WhyOfText(head, with);
  REQUIRE(recomputed.prediction.has_value());
  const double gib =
      static_cast<double>(recomputed.prediction->choice.footprint.torch->TensorBytes()) / kGiBOf;
  const WhyAnswer answer = ran(gib);
  CHECK(HasFinding(answer, "Of what the log does not say this would agree with it: "));
  CHECK(HasFinding(answer, "⟦checkpointing⟧ full ("));
  // A run that ran where nothing fits without it.
  auto small = fields;
  small[1].second = fmt::format("{:.0f}GB", gib * 1.2 * 1.0737 + 2);
  const WhyAnswer ran_all_the_same =
      WhyOfText(head + "global_step=9, RunningAvgSamplesPerSec=2.5\n", small);
  CHECK(HasFinding(ran_all_the_same, "It ran, and the prediction is that it does not fit"));
  CHECK(HasFinding(ran_all_the_same, "⟦checkpointing⟧ full ("));
  // Nothing is looked for where the prediction agrees.
  const double plain =
      static_cast<double>(answer.prediction->choice.footprint.torch->TensorBytes()) / kGiBOf;
  CHECK(plain > 1.1 * gib);
  CHECK_FALSE(HasFinding(ran(plain), "Of what the log does not say"));
}

TEST_CASE("a model that has not as many parameters as the log counts is not the run's") {
  const std::string log =
      "***** Running training *****\n  Instantaneous batch size per device = 4\n  Total train "
      "batch "
      "size (w. parallel, distributed & accumulation) = 4\n  Gradient Accumulation steps = 1\n  "
      "Number of trainable parameters = 1,235,814,400\n";
  const std::vector<std::pair<std::string, std::string>> fields = {
      {"runtime", "ddp"}, {"gpu_memory", "80GB"}, {"seq_len", "512"}};
  const auto counts = [&](const char* model) {
    auto with = fields;
    with.emplace_back("model", model);
    return HasFinding(WhyOfText(log, with), "The log counts 1.24B trained parameters");
  };
  CHECK_FALSE(counts("llama3.2-1b"));
  CHECK(counts("llama3.1-8b"));
  // Their number fits no rank on all linears, so the rank is missing.
  const WhyAnswer adapters = WhyOfText(
      log + "trainable params: 11,272,000 || all params: 1,247,086,400 || trainable%: 0.9039\n",
      {{"runtime", "ddp"}, {"gpu_memory", "80GB"}, {"seq_len", "512"}, {"model", "llama3.2-1b"}});
  CHECK(Has(WhyIncomplete(adapters), wording::kTheRankOfPeftAdapters));
  const WhyAnswer rank = WhyOfText(
      log + "trainable params: 11,272,192 || all params: 1,247,086,592 || trainable%: 0.9039\n",
      {{"runtime", "ddp"},
       {"gpu_memory", "80GB"},
       {"seq_len", "512"},
       {"model", "llama3.2-1b"},
       {"lora_rank", "16"}});
  CHECK(rank.prediction.has_value());
  CHECK_FALSE(HasFinding(rank, "The log counts"));
}

TEST_CASE("--add: the row is one that the reader of measured runs takes") {
  const TempDir folder;
  const std::string rows = folder.path("runs.jsonl");
  const std::vector<std::pair<std::string, std::string>> fields = {{"hw", "dgx-h100"},
                                                                   {"checkpointing", "none"}};
  Why(Fixture("deepspeed_backward.log"), fields, rows);
  Why(Fixture("deepspeed_backward.log"), fields, rows);
  std::ifstream in(rows);
  std::vector<nlohmann::json> all;
  for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line));
  REQUIRE(all.size() == 2);
  CHECK(all[0]["id"] == "deepspeed_backward");
  CHECK(all[1]["id"] == "deepspeed_backward-2");
  CHECK(all[0]["outcome"] == "out of memory");
  CHECK(all[0]["measured"].empty());
  CHECK(all[0]["request"]["seq_len"] == 4096);
  CHECK(all[0]["request"]["runtime"] == "deepspeed");
  CHECK(all[0]["config"]["zero_optimization"]["stage"] == 2);
  CHECK_FALSE(all[0]["request"].contains("stage"));

  // A run that ran, with what was measured of it.
  const std::string ran = folder.path("ran.log");
  std::ofstream(ran)
      << "python train.py --model_name_or_path gpt2-xl --per_device_train_batch_size 4 "
         "--gradient_accumulation_steps 2 --block_size 1024 --bf16 True "
         "--gradient_checkpointing False\nNum processes: 2\n"
         "[INFO] [stage_1_and_2.py:151:__init__] CPU Offload: False\n"
         "Creating torch.bfloat16 ZeRO stage 2 optimizer\n"
         "DeepSpeed info: version=0.19.6, git-hash=unknown\n"
         "global_step=10, RunningAvgSamplesPerSec=8.0, MaxMemAllocated=31.5GB\n";
  const std::string lived = folder.path("lived.jsonl");
  Why(ran, {{"hw", "dgx-h100"}, {"offload_param", "none"}}, lived);
  std::ifstream file(lived);
  const nlohmann::json row = nlohmann::json::parse(file);
  CHECK(row["id"] == "ran");
  CHECK(row["framework"] == "DeepSpeed 0.19.6");
  CHECK(row["outcome"] == "ran");
  CHECK(row["measured"]["step_seconds"].get<double>() == doctest::Approx(2.0));
  CHECK(row["measured"]["allocated_gib"].get<double>() == doctest::Approx(31.5));
  CHECK(row["request"]["stage"] == 2);
  CHECK(row["request"]["checkpointing"] == "none");

  // What neither says is not added.
  Why(Fixture("deepspeed_backward.log"), {{"hw", "dgx-h100"}}, rows);  // its command says the rest
  const std::string unsaid =
      ErrorOf(ExitCode::kUsage, [&] { Why(Fixture("deepspeed_backward.log"), {}, rows); });
  CHECK(Has(unsaid, wording::kNeitherTheLogNorAn));
  const std::string other = folder.path("other.jsonl");
  std::ofstream(other) << "{\"no\": \"run\"}\n";
  CHECK(
      Has(ErrorOf(ExitCode::kUsage, [&] { Why(Fixture("deepspeed_backward.log"), fields, other); }),
          "other.jsonl:1: is no row of a run"));

  const auto read = LoadPublishedRuns(std::filesystem::relative(rows, SourcePath("")));
  REQUIRE(read.size() == 3);
  CHECK_FALSE(read[0].ran);
  REQUIRE(read[0].resolved != nullptr);
  CHECK(read[0].resolved->inputs().setups.front().batch.micro_batch == 8);
}

TEST_CASE("what did not die of memory is not predicted, and nothing is asked for") {
  for (const char* text :
       {"Traceback (most recent call last):\n  File \"/home/user/t.py\", line 1, in main\n"
        "ValueError: batches of 8 and 4\n",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=469508, "
        "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out.\n",
        "Traceback (most recent call last):\n  File \"/home/user/t.py\", line 1, in main\n"
        "KeyboardInterrupt\n"}) {
    CAPTURE(text);
    const WhyAnswer answer = WhyOfText(text);
    CHECK(answer.missing.empty());
    CHECK(WhyIncomplete(answer).empty());
    CHECK_FALSE(answer.prediction.has_value());
    CHECK_FALSE(WhyText(answer, 100).empty());
  }
}

TEST_CASE("nothing is made of a log that says nothing") {
  const auto error = [](const std::string& text) {
    return ErrorOf(ExitCode::kUsage, [&] { WhyOfText(text); });
  };
  CHECK(Has(error(""), "train.log: is empty; give the log of a run of DeepSpeed"));
  CHECK(Has(error("hello\nworld\n"), "nothing of a training run is recognised in its 2 lines"));
  CHECK(Has(error(std::string("\0\1\2\3", 4)), wording::kItIsBinaryOrText));
  CHECK(Has(ErrorOf(ExitCode::kUsage, [] { Why("/no/such/file"); }), wording::kNoSuchFileCannotBe));
  CHECK(Has(ErrorOf(ExitCode::kUsage,
                    [] {
                      Why(Fixture("trainer_loss.log"), {{"runtime", "zeroplan"},
                                                        {"model", "gpt2"},
                                                        {"gpus", "1"},
                                                        {"micro_batch", "1"},
                                                        {"seq_len", "64"}});
                    }),
            "name the program of the log"));
}

}  // namespace
}  // namespace zeroplan
