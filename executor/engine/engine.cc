#include "executor/engine/engine.h"

#include "core/base/error.h"
#include "executor/engine/engine_backend.h"

namespace zeroplan {
namespace {

std::unique_ptr<EngineBackend> MakeBackend(const Program& program, const EngineOptions& options) {
  switch (options.backend) {
    case Backend::kCpu:
      return MakeCpuEngine(program, options);
    case Backend::kCuda:
#ifdef ZEROPLAN_WITH_CUDA
      return MakeCudaEngine(program, options);
#else
      ThrowUsage("this build of zeroplan has no CUDA; configure it with -DZEROPLAN_CUDA=ON");
#endif
  }
  return nullptr;
}

}  // namespace

Engine::Engine(const Program& program, const EngineOptions& options)
    : program_(program), options_(options), backend_(MakeBackend(program, options)) {}

Engine::~Engine() = default;

int Engine::first_local_rank() const { return backend_->first_local_rank(); }
int Engine::local_rank_count() const { return backend_->local_rank_count(); }

void Engine::Init() { backend_->Init(); }

void Engine::Load(const StateSource& source, bool with_optimizer, const StepState* state) {
  backend_->Load(source, with_optimizer, state);
}

void Engine::Save(std::span<StateSink* const> sinks) {
  ZEROPLAN_CHECK(sinks.size() == static_cast<size_t>(local_rank_count()), "{} sinks for {} ranks",
                 sinks.size(), local_rank_count());
  backend_->Save(sinks);
}

StepState Engine::Step(const FillBatch& fill) { return backend_->Step(fill); }

double Engine::Evaluate(const FillBatch& fill) { return backend_->Evaluate(fill); }

std::vector<float> Engine::Logits(std::span<const int32_t> tokens, int32_t position) {
  const int64_t seq_len = program_.setup.batch.seq_len;
  ZEROPLAN_CHECK(!program_.section(Section::kGenerate).empty(),
                 "the program has no generate section");
  ZEROPLAN_CHECK(static_cast<int64_t>(tokens.size()) <= seq_len && position >= 0 &&
                     static_cast<size_t>(position) < tokens.size(),
                 "row {} of {} tokens, sequences of {}", position, tokens.size(), seq_len);
  return backend_->Logits(tokens, position);
}

void Engine::RequestStop() { backend_->RequestStop(); }

StepState Engine::state() const { return backend_->state(); }

StepTimes Engine::LastStepTimes() const { return backend_->LastStepTimes(); }

std::optional<uint64_t> Engine::DeviceUsedBytes() const { return backend_->DeviceUsedBytes(); }

HighWater Engine::high_water() const { return backend_->high_water(); }

std::array<uint64_t, kSpaces> Engine::PatternHighWater() const {
  ZEROPLAN_CHECK(options_.pattern_arenas, "needs EngineOptions::pattern_arenas");
  return backend_->PatternHighWater();
}

Engine::Traffic Engine::TakeTraffic() { return backend_->TakeTraffic(); }

std::vector<ExecutedInstruction> Engine::ExecutedTrace(int rank) const {
  return backend_->ExecutedTrace(rank);
}

void Engine::Drain() { backend_->Drain(); }
std::vector<TraceSpan> Engine::SpanTrace(int rank) { return backend_->SpanTrace(rank); }

std::span<const std::byte> Engine::Peek(int rank, BufferId buffer) const {
  return backend_->Peek(rank, buffer);
}

}  // namespace zeroplan
