// PyTorch alone and DDP: what parameters, gradients and states take, and what is refused.
#include <doctest/doctest.h>

#include "core/families/load_model.h"
#include "planner/runtimes/runtimes.h"
#include "planner/runtimes/torch_based.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

TorchPlay DdpPlay(const char* model = "gpt3-1.3b") {
  TorchPlay play;
  play.model = LoadModel(model);
  play.setup.zero.stage = 0;
  play.setup.batch.seq_len = 64;
  return play;
}

TorchFootprint PlayDdp(const TorchPlay& play) {
  return dynamic_cast<const TorchBased&>(DdpRuntime()).Play(play);
}

// Bytes of a class at the step's peak, a parameter.
double PerParam(const TorchPlay& play, TorchClass kind, TorchPhase phase = TorchPhase::kStep) {
  return static_cast<double>(PlayDdp(play)
                                 .peaks[static_cast<size_t>(phase)]
                                 .class_bytes[static_cast<size_t>(kind)]) /
         static_cast<double>(play.model.ParamCount());
}

TEST_CASE("ddp: parameters, gradients and states in the dtype that they are held in") {
  TorchPlay play = DdpPlay();
  for (const auto& [dtype, bytes] : {std::pair{Dtype::kF32, 4.0}, {Dtype::kBF16, 2.0}}) {
    CAPTURE(bytes);
    play.recipe.param_dtype = dtype;
    const auto near = [](double value) { return doctest::Approx(value).epsilon(0.01); };
    CHECK(PerParam(play, TorchClass::kParams) == near(bytes));
    CHECK(PerParam(play, TorchClass::kGrads) == near(bytes));
    CHECK(PerParam(play, TorchClass::kOptimizer) == near(2 * bytes));
  }
  // What published weights of transformers' and torchtune's users are in.
  play.recipe.param_dtype.reset();
  CHECK(PerParam(play, TorchClass::kParams) == doctest::Approx(4).epsilon(0.01));
  play.recipe.code = CodeStyle::kHf;
  CHECK(PerParam(play, TorchClass::kParams) == doctest::Approx(2).epsilon(0.01));
}

TEST_CASE("ddp: several GPUs have buckets as large as all gradients, from the first step on") {
  TorchPlay play = DdpPlay();
  play.recipe.param_dtype = Dtype::kF32;
  const double alone = PerParam(play, TorchClass::kBuffers);
  play.setup.batch.world_size = 8;
  const double more = PerParam(play, TorchClass::kBuffers) - alone;
  CHECK(more == doctest::Approx(4).epsilon(0.01));
}

TEST_CASE("ddp: an optimizer in backward never holds all gradients") {
  TorchPlay play = DdpPlay();
  play.recipe.param_dtype = Dtype::kBF16;
  const auto grads = [&play] {
    return PerParam(play, TorchClass::kGrads, TorchPhase::kForwardBackward) +
           PerParam(play, TorchClass::kGrads);
  };
  const double kept = grads();
  play.recipe.optimizer_in_backward = true;
  // The tied table's two gradients, until they are added, are all that is there at once.
  const double table = static_cast<double>(play.model.padded_vocab * play.model.hidden) /
                       static_cast<double>(play.model.ParamCount());
  CHECK(kept > 2);
  CHECK(grads() < 1.1 * 2 * 2 * table);
  play.setup.batch.grad_accum = 2;
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { PlayDdp(play); }), "⟦optimizer_in_backward⟧"));
}

TEST_CASE("ddp: partitioning, offload and fp16 masters are refused by name") {
  const auto refused = [](auto&& change) {
    TorchPlay play = DdpPlay();
    change(play);
    return ErrorOf(ExitCode::kUsage, [&] { PlayDdp(play); });
  };
  CHECK(Has(refused([](TorchPlay& play) { play.setup.zero.stage = 2; }), "give ⟦stage⟧ 0"));
  CHECK(Has(refused([](TorchPlay& play) {
              play.setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
            }),
            wording::kDdpKeepsEverythingOnThe));
  CHECK(Has(refused([](TorchPlay& play) {
              play.setup.precision.dtype = Dtype::kF16;
              play.recipe.param_dtype = Dtype::kBF16;
            }),
            "GradScaler"));
  CHECK(Has(refused([](TorchPlay& play) {
              play.setup.precision.dtype = Dtype::kF16;
              play.recipe.optimizer_in_backward = true;
            }),
            wording::kInFpGradscalerUnscales));
  CHECK(Has(DdpRuntime().NoFormat(ConfigFormat::kDeepSpeed, "run.json"), "add ⟦for⟧ hf-trainer"));
}

}  // namespace
}  // namespace zeroplan
