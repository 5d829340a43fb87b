// Once a program runs, it lives in its arenas: operator new is counted to see that.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "core/lowering/lower.h"
#include "executor/engine/engine.h"
#include "tests/tiny_model.h"

// Sanitizers bring an operator new of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {
std::atomic<int64_t> allocations = 0;

void* Allocate(size_t bytes, size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace zeroplan {
namespace {

TEST_CASE("no allocation: steps and evaluation live in the arenas") {
  const ModelSpec model = testing::TinyModel(
      {.layers = 2, .hidden = 32, .ffn = 128, .vocab = 64, .padded_vocab = 64, .positions = 16});
  for (const uint64_t seed : {0, 5}) {
    for (int stage = 0; stage <= 3; ++stage) {
      CAPTURE(stage);
      TrainSetup setup;
      setup.zero.stage = stage;
      setup.zero.param_persistence_threshold = 100;
      setup.batch = {1, 2, 2, 16};
      const Program program = Lower(model, setup);
      EngineOptions options;
      options.threads_per_rank = 2;
      options.random_order_seed = seed;
      Engine engine(program, options);
      engine.Init();
      const FillBatch fill = [](int, int64_t, std::span<int32_t> inputs,
                                std::span<int32_t> targets) {
        std::fill(inputs.begin(), inputs.end(), 1);
        std::fill(targets.begin(), targets.end(), 2);
      };
      const int64_t before = allocations.load();
      engine.Step(fill);
      engine.Step(fill);
      engine.Evaluate(fill);
      CHECK(allocations.load() == before);
    }
  }
}

}  // namespace
}  // namespace zeroplan

#endif
