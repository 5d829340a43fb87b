// A kernel takes its row and its implementations, nothing else: one that the tree does not have is
// lowered, printed, verified, walked, costed and run by code that has never heard of it.
#include "tests/made_up_kernel.h"

#include <doctest/doctest.h>

#include "core/program/program.h"
#include "core/program/verify.h"
#include "cost_models/cost_model.h"
#include "cost_models/kernel_cost.h"
#include "cost_models/memory_walk.h"
#include "cost_models/traffic.h"
#include "tests/cost_models/plain_profile.h"
#include "tests/executor/engine/tiny_program.h"

namespace zeroplan {
namespace {

constexpr int64_t kElements = 32;  // 128 bytes, what buffers are aligned to

std::vector<const LaunchKernel*> Launches(const Program& program) {
  std::vector<const LaunchKernel*> found;
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch != nullptr && launch->kernel == kExtraKernel) found.push_back(launch);
  }
  return found;
}

TEST_CASE("made-up kernel: lowered, run again by selective recompute, printed, verified") {
  const MadeUpKernel kernel;
  const MadeUpStep step = LowerMadeUpStep(Backend::kCuda, kElements);
  VerifyOrThrow(step.program);
  CHECK(Launches(step.program).size() == 2);
  const std::string text = FormatSection(step.program, Section::kMicroStep);
  CAPTURE(text);
  const std::string line = "    compute  leaky_relu  x -> y  (n=32 slope=0.25)\n";
  const size_t first = text.find(line);
  REQUIRE(first != std::string::npos);
  CHECK(text.find(line, first + 1) != std::string::npos);
}

TEST_CASE("made-up kernel: its row says what it needs where it is read for memory and time") {
  const MadeUpKernel kernel;
  const Program program = LowerMadeUpStep(Backend::kCuda, kElements).program;
  // State, result, x, and y or the y made again.
  const MemoryReport memory = WalkMemory(program);
  CHECK(memory.arena(Space::kDevice) == 4 * 128);
  CHECK(memory.of(MemoryClass::kActivations) == 2 * 128);
  CHECK(WalkTraffic(program).host_to_device_bytes == 128);
  for (const LaunchKernel* launch : Launches(program)) {
    CHECK(LaunchBytes(program, *launch) == 2 * 128);
    const KernelCost costs(PlainProfile().gpu, 1);
    CHECK(costs.Seconds(program, *launch) == costs.memory().Seconds(2 * 128));
  }
}

TEST_CASE("made-up kernel: the engine runs it, and touches what was planned") {
  const MadeUpKernel kernel;
  const MadeUpStep step = LowerMadeUpStep(Backend::kCpu, kElements);
  EngineOptions options;
  options.threads_per_rank = 1;
  Engine engine(step.program, options);
  engine.Init();
  engine.Step([](int, int64_t, std::span<int32_t> inputs, std::span<int32_t>) {
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = FloatWord(static_cast<float>(i) - 16);
  });
  const std::vector<float> values = PeekFloats(engine, 0, step.result);
  REQUIRE(values.size() == kElements);
  for (size_t i = 0; i < values.size(); ++i) {
    const float x = static_cast<float>(i) - 16;
    CHECK(values[i] == (x > 0 ? x : kMadeUpSlope * x));
  }
  const auto device = static_cast<size_t>(Space::kDevice);
  CHECK(engine.high_water().touched_bytes[device] == step.program.arena_bytes[device]);
}

TEST_CASE("made-up kernel: gone with its row") {
  const Program program = [] {
    const MadeUpKernel kernel;
    return LowerMadeUpStep(Backend::kCpu, kElements).program;
  }();
  CHECK_FALSE(KernelExists(kExtraKernel));
  const std::vector<Violation> violations = Verify(program);
  REQUIRE_FALSE(violations.empty());
  CHECK(violations.front().rule == "malformed");
  CHECK_THROWS(Engine(program, {}));
}

}  // namespace
}  // namespace zeroplan
