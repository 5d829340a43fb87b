// Documents packed into rows, and what a program makes of them: for tests that hold packed training
// against separate.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "core/families/gpt2/gpt2.h"
#include "core/lowering/lower.h"
#include "executor/engine/engine.h"
#include "tests/agreement/memory_state.h"
#include "tests/agreement/reference_step.h"
#include "tests/core/families/llama/tiny_llama.h"
#include "tests/core/lowering/matrix.h"
#include "tests/first_moments.h"

namespace zeroplan::packed_training {

inline constexpr int64_t kT = 64;

inline ModelSpec Gpt2Model() { return testing::TinyModel({.positions = kT}); }
inline ModelSpec LlamaModel(const ModelFamily& family) {
  ModelSpec model = testing::TinyLlama(family);
  model.positions = kT;
  return model;
}

// Of pairs of an input and its target; some of the latter do not count.
inline std::vector<testing::Sequence> RandomDocuments(std::mt19937& random, int count) {
  std::vector<testing::Sequence> documents;
  for (int d = 0; d < count; ++d) {
    const int64_t length = 1 + static_cast<int64_t>(random() % 40);
    const int64_t prompt = static_cast<int64_t>(random() % static_cast<unsigned>(length));
    testing::Sequence& document = documents.emplace_back();
    auto token = static_cast<int32_t>(random() % 37);
    for (int64_t t = 0; t < length; ++t) {
      document.inputs.push_back(token);
      token = static_cast<int32_t>(random() % 3 == 0 ? random() % 37 : (token * 7 + 3u) % 37);
      document.targets.push_back(t < prompt ? -1 : token);
    }
  }
  return documents;
}

// Rows of kT positions.
struct Rows {
  std::vector<int32_t> inputs, targets, starts;

  int64_t count() const { return static_cast<int64_t>(inputs.size()) / kT; }
  void Pad() {
    const auto start = static_cast<int32_t>(inputs.size() % kT);
    while (inputs.size() % kT != 0) {
      inputs.push_back(0);
      targets.push_back(-1);
      starts.push_back(start);
    }
  }
  void Add(const testing::Sequence& document) {
    const auto start = static_cast<int32_t>(inputs.size() % kT);
    inputs.insert(inputs.end(), document.inputs.begin(), document.inputs.end());
    targets.insert(targets.end(), document.targets.begin(), document.targets.end());
    starts.insert(starts.end(), document.inputs.size(), start);
  }
};

// One behind the other, where they fit; then rows of padding alone up to a multiple of `rows`.
inline Rows Packed(const std::vector<testing::Sequence>& documents, int64_t rows) {
  Rows packed;
  for (const testing::Sequence& document : documents) {
    if (packed.inputs.size() % kT + document.inputs.size() > kT) packed.Pad();
    packed.Add(document);
  }
  packed.Pad();
  while (packed.count() % rows != 0) {
    packed.Add({{0}, {-1}});
    packed.Pad();
  }
  return packed;
}
inline Rows Separate(const std::vector<testing::Sequence>& documents) {
  Rows separate;
  for (const testing::Sequence& document : documents) {
    separate.Add(document);
    separate.Pad();
  }
  return separate;
}

inline FillBatch Cut(const Rows& rows, const Program& program) {
  const BatchSpec batch = program.setup.batch;
  REQUIRE(rows.count() == batch.global_batch());
  return [&rows, batch](int rank, int64_t m, std::span<int32_t> inputs, std::span<int32_t> targets,
                        std::span<int32_t> starts) {
    const int64_t group = rank / batch.sequence_ranks, length = batch.local_seq();
    const int64_t first = (m * batch.data_ranks() + group) * batch.micro_batch * kT;
    for (int64_t i = 0; i < batch.micro_batch; ++i) {
      const int64_t from = first + i * kT + rank % batch.sequence_ranks * length;
      std::copy_n(rows.inputs.begin() + from, length, inputs.begin() + i * length);
      std::copy_n(rows.targets.begin() + from, length, targets.begin() + i * length);
    }
    std::copy_n(rows.starts.begin() + first, starts.size(), starts.begin());
  };
}

struct Outcome {
  std::vector<StepState> steps;
  testing::FirstMoments moments;
  testing::Tensors weights;
};

// The same model with heads that cuDNN takes.
inline ModelSpec Wide(ModelSpec model) {
  model.heads = 4;
  model.hidden = model.family == &Gpt2() ? 256 : 96;
  model.head_size = model.family == &Gpt2() ? 0 : 64;
  return model;
}

// A step with each of `batches`, from random weights and no moments. Weights are those of small
// models (RandomState); of larger ones sums are as large where matrices are smaller.
inline Outcome Train(const ModelSpec& model, TrainSetup setup, bool document_borders,
                     const std::vector<Rows>& batches, Backend backend = Backend::kCpu,
                     const DocumentLimits& limits = {}, bool own_documents = false) {
  setup.batch.seq_len = kT;
  const BatchSpec& batch = setup.batch;
  setup.batch.micro_batch = batches[0].count() / (batch.data_ranks() * batch.grad_accum);
  setup.optimizer.gradient_clipping = 0;
  LowerOptions lower;
  lower.document_borders = document_borders;
  lower.own_documents = own_documents;
  lower.logits_chunk_bytes = 5000;
  lower.backend = backend;
  const Program program = Lower(model, setup, lower);
  EngineOptions options;
  options.backend = backend;
  options.documents = limits;
  options.deterministic = setup.deterministic;
  options.threads_per_rank = 1;
  options.swap_dir = "/tmp";
  Engine engine(program, options);
  engine.Init();
  const auto& table = *program.layout.tensors;
  testing::MemoryState state(program.layout);
  testing::RandomState start(table, 5);
  for (auto* moments : {&start.m, &start.v}) {
    for (testing::Values& values : *moments) values.assign(values.size(), 0);
  }
  const double scale = model.hidden > 24 ? 0.25 : 1;
  for (size_t t = 0; t < table.size(); ++t) {
    if (table[t].shape.size() < 2) continue;
    for (auto& weight : start.weights[t]) weight *= scale;
  }
  start.WriteTo(state);
  engine.Load(state, true, nullptr);
  Outcome outcome;
  for (const Rows& rows : batches) outcome.steps.push_back(engine.Step(Cut(rows, program)));
  std::vector<StateSink*> sinks(static_cast<size_t>(batch.world_size), &state);
  engine.Save(sinks);
  outcome.moments = testing::ReadFirstMoments(state, table);
  for (size_t t = 0; t < table.size(); ++t) {
    outcome.weights.emplace_back(state.master(t).begin(), state.master(t).end());
  }
  return outcome;
}

}  // namespace zeroplan::packed_training
