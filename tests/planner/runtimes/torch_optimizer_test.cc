#include "planner/runtimes/torch_optimizer.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/runtimes/torch_memory.h"
#include "tests/paths.h"
#include "tests/planner/runtimes/runtime_rows.h"

namespace zeroplan {
namespace {

// What each state of these shapes is, by dtype and size, as tiny models had it on the CPU after a
// step: a matrix of 1000 x 64, an embedding of 4096 x 64, vectors of 64 and 5000, a matrix of
// 64 x 63.
const std::vector<UpdatedTensor> kTiny = {{64'000, 1000, false},
                                          {262'144, 4096, true},
                                          {64, 0, false},
                                          {5000, 0, false},
                                          {4032, 64, false}};

std::vector<uint64_t> States(TorchOptimizer optimizer, Dtype params) {
  std::vector<uint64_t> bytes;
  for (const UpdatedTensor& tensor : kTiny) {
    const StatesBytes states = StatesBytesOf(RowOf(optimizer), tensor, params);
    bytes.push_back(states.allocated + states.managed);
  }
  return bytes;
}

}  // namespace

TEST_CASE("states of optimizers are as the libraries make them") {
  using Bytes = std::vector<uint64_t>;
  CHECK(States(TorchOptimizer::kAdamWFused, Dtype::kF32) ==
        Bytes{512'000, 2'097'152, 512, 40'000, 32'256});
  CHECK(States(TorchOptimizer::kAdamW, Dtype::kBF16) ==
        Bytes{256'000, 1'048'576, 256, 20'000, 16'128});
  // Two bytes an element, scales of 250 and 20 blocks; embeddings as Trainer has them in fp32.
  const Bytes eight_bit = {128'000 + 2'000, 2'097'152, 512, 10'000 + 160, 32'256};
  CHECK(States(TorchOptimizer::kAdamW8bit, Dtype::kF32) == eight_bit);
  CHECK(States(TorchOptimizer::kAdamW8bit, Dtype::kBF16) == eight_bit);
  CHECK(States(TorchOptimizer::kPagedAdamW8bit, Dtype::kBF16) == eight_bit);
  CHECK(States(TorchOptimizer::kPagedAdamW, Dtype::kBF16) ==
        Bytes{512'000, 2'097'152, 512, 40'000, 32'256});
  // Maps of 256 numbers for each state; what 256 does not divide is like the parameters.
  CHECK(States(TorchOptimizer::kAdamWTorchao8bit, Dtype::kBF16) ==
        Bytes{128'000 + 2'000 + 2'048, 524'288 + 8'192 + 2'048, 256, 20'000, 16'128});
  CHECK(States(TorchOptimizer::kAdafactor, Dtype::kBF16) == Bytes{4'260, 16'644, 260, 20'004, 512});
}

TEST_CASE("paged states are outside the allocator, from 100,000 elements on") {
  const OptimizerRow& row = RowOf(TorchOptimizer::kPagedAdamW);
  CHECK(StatesBytesOf(row, {99'999, 0, false}, Dtype::kF32).managed == 0);
  const StatesBytes large = StatesBytesOf(row, {100'000, 0, false}, Dtype::kF32);
  CHECK(large.managed == 800'000);
  CHECK(large.allocated == 0);
  // Scales are not paged.
  const StatesBytes eight_bit =
      StatesBytesOf(RowOf(TorchOptimizer::kPagedAdamW8bit), {102'400, 0, false}, Dtype::kF32);
  CHECK(eight_bit.managed == 204'800);
  CHECK(eight_bit.allocated == 3'200);
}

TEST_CASE("what a step of an optimizer makes beside its states") {
  const auto extra = [](TorchOptimizer optimizer, Dtype params) {
    TorchMemory memory;
    TorchTimer timer(nullptr, {});
    TorchStates states(optimizer, params, {{2'000'000, 1000, false}, {1'000'000, 1000, false}},
                       &memory, &timer);
    states.Step();
    const uint64_t kept = memory.allocator().allocated();
    memory.Enter(TorchPhase::kStep);
    states.Step();
    CHECK(memory.allocator().allocated() == kept);
    return memory.peak(TorchPhase::kStep).allocated_bytes - kept;
  };
  constexpr uint64_t kSlack = 2 << 20;  // of blocks
  CHECK(extra(TorchOptimizer::kAdamWFused, Dtype::kF32) == 0);
  CHECK(extra(TorchOptimizer::kAdamW8bit, Dtype::kF32) == 0);
  // A list as large as a state.
  const uint64_t list = extra(TorchOptimizer::kAdamW, Dtype::kF32);
  CHECK(list >= 12'000'000);
  CHECK(list < 12'000'000 + kSlack);
  // Two of the larger tensor, in fp32; four where parameters and gradients are cast.
  const uint64_t update = extra(TorchOptimizer::kAdafactor, Dtype::kF32);
  CHECK(update >= 16'000'000);
  CHECK(update < 16'000'000 + kSlack);
  CHECK(extra(TorchOptimizer::kAdafactor, Dtype::kBF16) >= 32'000'000);
}

TEST_CASE("what an update reads and writes") {
  TorchMemory memory;
  TorchTimer timer(nullptr, {});
  const UpdatedTensor large{1 << 20, 1024, false};
  const auto bytes = [&](TorchOptimizer optimizer, Dtype params) {
    return TorchStates(optimizer, params, {large}, &memory, &timer).UpdateBytes(large) / (1 << 20);
  };
  CHECK(bytes(TorchOptimizer::kAdamWFused, Dtype::kF32) == 28);
  CHECK(bytes(TorchOptimizer::kAdamWFused, Dtype::kBF16) == 14);
  CHECK(bytes(TorchOptimizer::kAdamW, Dtype::kF32) == 72);
  CHECK(bytes(TorchOptimizer::kPagedAdamW, Dtype::kBF16) == 22);
  CHECK(bytes(TorchOptimizer::kAdamW8bit, Dtype::kF32) == doctest::Approx(16.06).epsilon(0.001));
  CHECK(bytes(TorchOptimizer::kAdafactor, Dtype::kF32) == 84);
  CHECK(bytes(TorchOptimizer::kAdafactor, Dtype::kBF16) == 102);
}

// An optimizer alone on Llama 3.2 1B's parameters, on one H200: bitsandbytes 0.50.2, torchao
// 0.18.0, transformers 5.17.0.
TEST_CASE("an optimizer's states, transients and seconds beside what was measured") {
  ModelSpec spec = LoadModel("llama3.2-1b");
  spec.padded_vocab = spec.vocab;
  const TorchModel model(spec);
  const HardwareProfile hardware = LoadProfile("hgx-h200");
  const TorchMachine machine(hardware, {1, 1});
  std::ifstream file(SourcePath("tests/data/runtimes/optimizer_runs.jsonl"));
  int rows = 0;
  Errors times;
  for (std::string line; std::getline(file, line); ++rows) {
    const auto row = nlohmann::json::parse(line);
    const auto named = ValueIn(kWords<TorchOptimizer>, row["optim"].get<std::string>());
    REQUIRE(named);
    const TorchOptimizer optimizer = *named;
    const Dtype params = row["dtype"] == "float32" ? Dtype::kF32 : Dtype::kBF16;
    REQUIRE(model.elements() == row["elements"].get<uint64_t>());
    CAPTURE(line);
    TorchMemory memory;
    TorchTimer timer(&machine, {});
    TorchStates states(optimizer, params, UpdatedTensorsOf(model), &memory, &timer);
    states.Step();
    const uint64_t kept = memory.allocator().allocated();
    CHECK(static_cast<double>(kept) ==
          doctest::Approx(row["state_bytes"].get<double>()).epsilon(0.001).scale(1e6));
    memory.Enter(TorchPhase::kStep);
    timer.BeginStep();
    timer.BeginMicroStep();
    states.Step();
    timer.EndStep();
    const uint64_t extra = memory.peak(TorchPhase::kStep).allocated_bytes - kept;
    CHECK(static_cast<double>(extra) ==
          doctest::Approx(row["transient_bytes"].get<double>()).epsilon(0.002).scale(1e6));
    const double seconds = timer.Time(1)->step_seconds;
    times.Add(seconds, row["seconds"]);
  }
  CHECK(rows == 14);
  CAPTURE(times.worst);
  CHECK(times.worst < 0.215);  // docs/runtimes.md
}

}  // namespace zeroplan
