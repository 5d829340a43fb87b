// Results of transformers and PyTorch for small models that transformers saved, and checks of
// zeroplan against them on either backend. The folders of tests/fixtures come from
// tests/fixtures/make_gpt2_fixture.py, make_llama_fixtures.py and make_moe_fixtures.py in this
// folder.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "core/program/verify.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/engine/engine.h"
#include "tests/paths.h"

namespace zeroplan::transformers_checks {

namespace fs = std::filesystem;
using nlohmann::json;

inline constexpr int64_t kLength = 16, kGlobalBatch = 4;

// A model with what transformers says of it: its logits and loss in double precision, steps of
// training in fp32, and how far PyTorch's own bf16 runs are from these.
struct Fixture {
  fs::path folder;
  json expected;
};

// All folders of tests/fixtures that hold an expected.json.
inline const std::vector<Fixture>& Fixtures() {
  static const std::vector<Fixture> fixtures = [] {
    std::vector<Fixture> found;
    for (const auto& entry : fs::directory_iterator(SourcePath("tests/fixtures"))) {
      std::ifstream file(entry.path() / "expected.json");
      if (file.good()) found.push_back({entry.path(), json::parse(file)});
    }
    return found;
  }();
  REQUIRE(!fixtures.empty());
  return fixtures;
}

// How a fixture's model is run. On CUDA: one rank.
struct Run {
  Backend backend = Backend::kCpu;
  Dtype dtype = Dtype::kF32;
  int stage = 0;
  int ranks = 1;
  OffloadDevice optimizer = OffloadDevice::kNone;
  OffloadDevice param = OffloadDevice::kNone;
};

// One batch of the fixture spread over the ranks, AdamW as the fixture's.
inline TrainSetup Setup(const Fixture& fixture, const Run& run) {
  TrainSetup setup;
  setup.zero.stage = run.stage;
  setup.zero.offload_optimizer.device = run.optimizer;
  setup.zero.offload_param.device = run.param;
  setup.precision.dtype = setup.precision.grad_accum_dtype = run.dtype;
  setup.batch = {kGlobalBatch / run.ranks, 1, run.ranks, kLength};
  const json& adamw = fixture.expected["adamw"];
  setup.optimizer.lr = adamw["lr"];
  setup.optimizer.betas = {adamw["betas"][0], adamw["betas"][1]};
  setup.optimizer.eps = adamw["eps"];
  setup.optimizer.weight_decay = adamw["weight_decay"];
  setup.optimizer.gradient_clipping = adamw["clip"];
  return setup;
}

// Batch `step` of the fixture: row r of it goes to rank r / micro_batch.
inline FillBatch Batch(const Fixture& fixture, const Program& program, size_t step) {
  return [&fixture, &program, step](int rank, int64_t, std::span<int32_t> inputs,
                                    std::span<int32_t> targets) {
    const int64_t rows = program.setup.batch.micro_batch;
    for (int64_t i = 0; i < rows * kLength; ++i) {
      const auto row = static_cast<size_t>(rank * rows + i / kLength);
      const auto t = static_cast<size_t>(i % kLength), at = static_cast<size_t>(i);
      const json& tokens = fixture.expected["tokens"][step][row];
      inputs[at] = tokens[t];
      targets[at] = tokens[t + 1];
    }
  };
}

// A program and an engine with the weights in a folder.
struct Model {
  Program program;
  Engine engine;

  Model(const TrainSetup& setup, const fs::path& from, Backend backend = Backend::kCpu,
        Purpose purpose = Purpose::kTrain, bool keep_keys_values = false, float router_aux_loss = 0)
      : program(Lower(SpecIn(from, router_aux_loss), setup,
                      LoweringFor(backend, purpose, keep_keys_values))),
        engine(program, OptionsFor(backend)) {
    engine.Init();
    engine.Load(HfWeightsSource(from, program.model, *program.layout.tensors), false, nullptr);
  }

 private:
  // transformers adds the auxiliary loss only with output_router_logits, whatever its coefficient.
  static ModelSpec SpecIn(const fs::path& from, float router_aux_loss) {
    ModelSpec spec = LoadModel(from.string());
    spec.router_aux_loss = router_aux_loss;
    return spec;
  }
  static LowerOptions LoweringFor(Backend backend, Purpose purpose, bool keep_keys_values) {
    LowerOptions options;
    options.keep_keys_values = keep_keys_values;
    options.backend = backend;
    options.purpose = purpose;
    return options;
  }
  static EngineOptions OptionsFor(Backend backend) {
    EngineOptions options;
    options.backend = backend;
    options.threads_per_rank = 1;
    return options;
  }
};

// The largest error of a position's logits is to be below `bound` of that position's largest.
inline void CheckLogits(const Fixture& fixture, const Run& run, double bound) {
  TrainSetup setup = Setup(fixture, run);
  setup.batch.micro_batch = 1;
  Model model(setup, fixture.folder, run.backend, Purpose::kGenerate);
  const auto vocab = static_cast<size_t>(model.program.model.vocab);
  REQUIRE(vocab == 61);
  REQUIRE(fixture.expected["logits"].size() == kGlobalBatch * kLength);
  for (size_t row = 0; row < kGlobalBatch; ++row) {
    const std::vector<int32_t> tokens = fixture.expected["tokens"][0][row];
    for (int32_t t = 0; t < kLength; ++t) {
      CAPTURE(row);
      CAPTURE(t);
      const std::vector<double> expected =
          fixture.expected["logits"][row * kLength + static_cast<size_t>(t)];
      const std::vector<float> logits =
          model.engine.Logits(std::span(tokens).first(static_cast<size_t>(kLength)), t);
      REQUIRE(logits.size() >= vocab);
      double worst = 0, largest = 0;
      for (size_t v = 0; v < vocab; ++v) {
        worst = std::max(worst, std::abs(static_cast<double>(logits[v]) - expected[v]));
        largest = std::max(largest, std::abs(expected[v]));
      }
      CHECK(worst < bound * largest);
    }
  }
}

// fp32 against double: a logit passes some 30 kernels whose sums have 24 to 96 terms, so it is off
// by about sqrt(30 * 96) * 2^-24 = 3e-6 of the largest. On a GPU that needs products without TF32,
// which the engine never asks for (CUBLAS_COMPUTE_32F), and attention in fp32, which cuDNN does not
// have: its plain kernels run.
inline constexpr double kExactBound = 1e-5;

inline void CheckExactLogits(const Fixture& fixture, Backend backend) {
  CheckLogits(fixture, {.backend = backend}, kExactBound);
}

// The same of tokens one by one, behind prompts of every length, the empty one too. Sums are cut
// otherwise than in a whole pass; there are no more of them.
inline void CheckDecodedLogits(const Fixture& fixture, Backend backend, Dtype dtype, double bound) {
  TrainSetup setup = Setup(fixture, {.backend = backend, .dtype = dtype});
  setup.batch.micro_batch = 1;
  Model model(setup, fixture.folder, backend, Purpose::kGenerate, true);
  VerifyOrThrow(model.program);
  const auto vocab = static_cast<size_t>(model.program.model.vocab);
  const std::vector<int32_t> tokens = fixture.expected["tokens"][0][0];
  for (int32_t prompt = 0; prompt < kLength; ++prompt) {
    CAPTURE(prompt);
    if (prompt > 0) {
      model.engine.Logits(std::span(tokens).first(static_cast<size_t>(prompt)), prompt - 1);
    }
    for (int32_t t = prompt; t < kLength; ++t) {
      CAPTURE(t);
      const std::vector<double> expected = fixture.expected["logits"][static_cast<size_t>(t)];
      const std::vector<float> logits = model.engine.Decode(tokens[static_cast<size_t>(t)], t);
      double worst = 0, largest = 0;
      for (size_t v = 0; v < vocab; ++v) {
        worst = std::max(worst, std::abs(static_cast<double>(logits[v]) - expected[v]));
        largest = std::max(largest, std::abs(expected[v]));
      }
      CHECK(worst < bound * largest);
    }
  }
  // What is touched is what was planned, the caches among it.
  CHECK(model.engine.high_water().touched_bytes[0] == model.program.arena_bytes[0]);
}

inline void CheckExactDecoding(const Fixture& fixture, Backend backend) {
  CheckDecodedLogits(fixture, backend, Dtype::kF32, kExactBound);
}

inline void CheckExactLoss(const Fixture& fixture, const Run& run) {
  const double expected = fixture.expected["loss"];
  Model model(Setup(fixture, run), fixture.folder, run.backend);
  const double loss = model.engine.Evaluate(Batch(fixture, model.program, 0));
  CHECK(std::abs(loss - expected) < kExactBound * expected);
}

// By how much a step's loss and norm may differ from PyTorch's in fp32: a share of these, or so
// much.
struct TrainingBounds {
  double loss_share = 0, norm_share = 0;
  double loss = 0, norm = 0;
};

inline void CheckTraining(const Fixture& fixture, const Run& run, const TrainingBounds& bounds) {
  CAPTURE(run.stage);
  Model model(Setup(fixture, run), fixture.folder, run.backend);
  const std::vector<double> losses = fixture.expected["train_losses"];
  const std::vector<double> norms = fixture.expected["grad_norms"];
  REQUIRE(losses.size() >= 20);
  for (size_t step = 0; step < losses.size(); ++step) {
    CAPTURE(step);
    const StepState state = model.engine.Step(Batch(fixture, model.program, step));
    CHECK(std::abs(state.loss_sum - losses[step]) < bounds.loss_share * losses[step] + bounds.loss);
    CHECK(std::abs(static_cast<double>(state.grad_norm) - norms[step]) <
          bounds.norm_share * norms[step] + bounds.norm);
  }
}

// Both sides compute in fp32 and round differently. That changes gradients by about 1e-6, but
// Adam's first steps go by the sign of a gradient, also of one near zero, and 30 steps of lr 2e-3
// carry such differences on: hence 1e-4 for the loss and, as a norm is a first power of what
// differs where a loss near its minimum is a second, 1e-3 for the norm.
inline void CheckExactTraining(const Fixture& fixture, const Run& run) {
  CheckTraining(fixture, run, {.loss_share = 1e-4, .norm_share = 1e-3});
}

// bf16 has a noise: where a computation rounds decides on the sign of its error. Its size is
// measured on PyTorch's side: expected.json says how far its own bf16 runs of the model (weights in
// bf16, autocast, micro-batches of two sizes) are at most from its exact ones. zeroplan rounds at
// places of its own, so its errors are another draw of that noise: twice the largest seen is
// allowed.
inline constexpr double kNoiseFactor = 2;

inline void CheckNoisyLogits(const Fixture& fixture, Backend backend) {
  const double noise = fixture.expected["bf16_noise"]["logits"];
  CheckLogits(fixture, {.backend = backend, .dtype = Dtype::kBF16}, kNoiseFactor * noise);
}

inline void CheckNoisyDecoding(const Fixture& fixture, Backend backend) {
  const double noise = fixture.expected["bf16_noise"]["logits"];
  CheckDecodedLogits(fixture, backend, Dtype::kBF16, kNoiseFactor * noise);
}

// REQUIRES: run.dtype is kBF16.
inline void CheckNoisyTraining(const Fixture& fixture, const Run& run) {
  const json& noise = fixture.expected["bf16_noise"];
  CheckTraining(fixture, run,
                {.loss = kNoiseFactor * noise["loss"].get<double>(),
                 .norm = kNoiseFactor * noise["grad_norm"].get<double>()});
}

}  // namespace zeroplan::transformers_checks
