// Gradients that DeepSpeed sums or reduces in fp32, against bytes counted from its own code.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/runtimes/deepspeed_engine.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/planner/runtimes/runtime_rows.h"

namespace zeroplan {
namespace {

// The model of benchmarks/peers/count_gradients.py.
ModelSpec CountedModel() {
  ModelSpec spec = LoadModel("gpt2");
  spec.layers = 2;
  spec.hidden = 512;
  spec.ffn = 4 * spec.hidden;
  spec.heads = 4;
  spec.vocab = spec.padded_vocab = 512;
  spec.positions = 256;
  return spec;
}

TrainSetup SetupOf(const nlohmann::json& row) {
  TrainSetup setup;
  setup.zero = ReaderZeroDefaults(row.at("stage"));
  FillReaderSizes(setup.zero);
  setup.zero.overlap_comm = false;
  setup.zero.reduce_bucket_elements = 1 << 20;
  setup.zero.prefetch_bucket_elements = 1;
  setup.zero.param_persistence_threshold = 0;
  setup.zero.max_reuse_distance = 0;
  setup.batch.world_size = 2;
  setup.batch.grad_accum = row.at("micro_steps");
  setup.precision.dtype = row.at("dtype") == "fp16" ? Dtype::kF16 : Dtype::kBF16;
  setup.precision.grad_accum_dtype = row.at("sums") == "fp32" ? Dtype::kF32 : setup.precision.dtype;
  setup.precision.fp32_reduction = row.at("sent") == "fp32";
  return setup;
}

TEST_CASE("DeepSpeed: gradients summed or reduced in fp32 take what its own code takes") {
  std::ifstream in(SourcePath("tests/data/runtimes/gradient_counts.jsonl"));
  REQUIRE(in);
  const ModelSpec spec = CountedModel();
  const TorchModel model(spec);
  int rows = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    CAPTURE(line);
    const nlohmann::json row = nlohmann::json::parse(line);
    const TrainSetup setup = SetupOf(row);
    // Its blocks have the tensors' sizes.
    TorchMemory memory(std::nullopt, /*expandable=*/true);
    TorchTimer timer(nullptr, {});
    const TorchPlay play{spec, setup, {}};
    const auto make = setup.zero.stage == 3 ? MakeStage3 : MakeStages0To2;
    const std::unique_ptr<TorchRuntime> engine = make(model, play, &memory, &timer);
    const auto live = [&] { return memory.allocator().allocated(); };
    const auto most = [&](TorchPhase phase) { return memory.peak(phase).allocated_bytes; };
    engine->Init();
    CHECK(most(TorchPhase::kInit) == row.at("init"));
    CHECK(live() == row.at("after_init"));

    const int modules = model.final_norm() + 1;  // the head is the embedding's weight
    uint64_t passes = 0, between = 0, before_update = 0;
    for (int step = 0; step < 3; ++step) {
      memory.ForgetPeaks(TorchPhase::kForwardBackward);
      for (int64_t micro = 0; micro < setup.batch.grad_accum; ++micro) {
        between = live();
        engine->BeginMicroStep(micro + 1 == setup.batch.grad_accum);
        for (int module = 0; module < modules; ++module) {
          engine->BeforeForward(module);
          engine->AfterForward(module);
        }
        engine->BeginBackward();
        for (int module = modules - 1; module >= 0; --module) {
          engine->BeforeBackward(module);
          const std::vector<int>& params = model.modules[static_cast<size_t>(module)].params;
          std::vector<Tensor> grads;
          for (const int param : params) {
            const uint64_t elements = model.params[static_cast<size_t>(param)].elements;
            grads.push_back(memory.New(TorchClass::kGrads, 2 * elements));
          }
          for (size_t i = 0; i < params.size(); ++i) {
            engine->Gradient(params[i], std::move(grads[i]));
          }
          engine->AfterBackward(module);
        }
        engine->EndBackward();
      }
      passes = most(TorchPhase::kForwardBackward);
      before_update = live();
      memory.ForgetPeaks(TorchPhase::kStep);
      engine->Step();
    }
    // Stages 1 and 2 copy a bucket that several ranks have parts of; the model counts it for each.
    const bool whole = setup.zero.stage == 1 && setup.precision.grad_accum_dtype == Dtype::kF32;
    const bool copies = setup.zero.stage < 3 && !whole;
    const uint64_t counted = row.at("passes");
    CHECK(passes >= counted);
    CHECK(passes <= counted + (copies ? 2 * setup.zero.reduce_bucket_elements : 0));
    CHECK(between == row.at("between_micro_steps"));
    CHECK(before_update == row.at("before_update"));
    CHECK(most(TorchPhase::kStep) == row.at("update"));
    CHECK(live() == row.at("after"));
  }
  CHECK(rows == 26);
}

TorchPlay PlayOf(int stage, int micro_steps = 4) {
  TorchPlay play;
  play.model = LoadModel("llama3.2-1b");
  play.setup.zero = ReaderZeroDefaults(stage);
  play.setup.batch.world_size = 8;
  play.setup.batch.micro_batch = 1;
  play.setup.batch.seq_len = 1024;
  play.setup.batch.grad_accum = micro_steps;
  return play;
}

uint64_t AfterInit(TorchPlay play, bool sums, bool sent = false) {
  if (sums) play.setup.precision.grad_accum_dtype = Dtype::kF32;
  play.setup.precision.fp32_reduction = sent;
  return DeepSpeedFootprint(play).after_init_bytes;
}

TEST_CASE("DeepSpeed: what fp32 sums of gradients add, by stage") {
  const TorchModel model(PlayOf(1).model);
  const auto psi = static_cast<double>(model.elements());
  const auto added = [&](int stage, bool sent) {
    const TorchPlay play = PlayOf(stage);
    return static_cast<double>(AfterInit(play, true, sent)) -
           static_cast<double>(AfterInit(play, false));
  };
  CHECK(added(1, false) == doctest::Approx(4 * psi).epsilon(1e-3));  // whole, always there
  CHECK(added(2, false) == 0);                                       // no effect
  // Shards in fp32. A block of the allocator may have 1 MiB more than its tensor.
  CHECK(added(3, false) == doctest::Approx(2 * psi / 8).epsilon(0.004));
  // The bucket of stage 3 has the dtype in which gradients are sent.
  CHECK(added(3, true) == doctest::Approx(2 * psi / 8 + 2 * 5e8).epsilon(2e-3));

  // An optimizer on the host has the shards page-locked there.
  TorchPlay play = PlayOf(3);
  play.setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  const uint64_t before = DeepSpeedFootprint(play).host.pinned_bytes;
  play.setup.precision.grad_accum_dtype = Dtype::kF32;
  const auto shards = static_cast<uint64_t>(psi) / 8;
  CHECK(DeepSpeedFootprint(play).host.pinned_bytes - before ==
        PinnedBlockBytes(4 * shards) - PinnedBlockBytes(2 * shards));
}

TEST_CASE("DeepSpeed: fp32 reductions send twice the bytes") {
  const HardwareProfile hardware = LoadProfile("hgx-h200");
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const auto seconds = [&](bool fp32) {
      TorchPlay play = PlayOf(stage, 1);
      play.setup.zero.overlap_comm = false;
      play.setup.precision.fp32_reduction = fp32;
      const TorchMachine machine(hardware, {8, 8});
      TorchTimer timer(&machine, {});
      dynamic_cast<const TorchBased&>(DeepSpeedRuntime()).Play(play, &timer);
      return timer.Time(1)->exposed_communication;
    };
    CHECK(seconds(true) > 1.1 * seconds(false));
    CHECK(seconds(true) < 2.1 * seconds(false));
  }
}

TEST_CASE("DeepSpeed: fp32 sums that it has not, or trains wrongly with, are refused by name") {
  const auto refused = [](TorchPlay play) -> std::string {
    play.setup.precision.grad_accum_dtype = Dtype::kF32;
    try {
      DeepSpeedFootprint(play);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  CHECK(Has(refused(PlayOf(0)), "no optimizer for it at stage 0"));
  // Two ranks of 0.19.6 on a CPU, with gradients of 1 and 2: the first half of the parameters was
  // updated with 1, the second with 2, in place of 1.5.
  TorchPlay play = PlayOf(1);
  play.setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  CHECK(Has(refused(play), "at stage 1 with offload_optimizer"));
  play = PlayOf(1);
  play.setup.precision.dtype = Dtype::kF16;
  CHECK(Has(refused(play), "gradients of that rank alone"));
  play = PlayOf(3);
  play.setup.zero.offload_optimizer.device = OffloadDevice::kNvme;
  play.setup.zero.offload_optimizer.buffer_count = 8;
  CHECK(Has(refused(play), "with offload_optimizer.device nvme is not modelled"));
  for (const int stage : {1, 2, 3}) CHECK(refused(PlayOf(stage)).empty());
  TorchPlay fp16 = PlayOf(3);
  fp16.setup.precision.dtype = Dtype::kF16;
  CHECK(refused(fp16).empty());
}

TEST_CASE("DeepSpeed: a config keeps the dtype in which sums are sent") {
  TrainSetup setup = PlayOf(1).setup;
  setup.precision.grad_accum_dtype = Dtype::kF32;
  const auto config = [&] {
    return nlohmann::json::parse(DeepSpeedRuntime().ConfigJson(setup, 16));
  };
  CHECK(config().at("data_types").at("grad_accum_dtype") == "fp32");
  CHECK_FALSE(config().contains("communication_data_type"));  // bf16, as DeepSpeed has it
  setup.precision.fp32_reduction = true;
  CHECK(config().at("communication_data_type") == "fp32");
}

}  // namespace
}  // namespace zeroplan
