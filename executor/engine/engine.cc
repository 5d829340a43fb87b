#include "executor/engine/engine.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "executor/engine/rank_engine.h"
#include "executor/engine/rank_threads.h"
#include "executor/optimizer/step_scalars.h"

namespace zeroplan {

struct Engine::Impl {
  Impl(const Program& planned, const EngineOptions& chosen)
      : program(planned),
        options(chosen),
        communicator(planned.setup.batch.world_size),
        ranks(static_cast<size_t>(communicator.world_size())),
        threads(communicator.world_size()) {}

  int world_size() const { return communicator.world_size(); }

  int ThreadsPerRank() const {
    if (options.threads_per_rank > 0) return options.threads_per_rank;
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / world_size());
  }

  // Calls fn(rank) on every rank's thread. The first failure stops the group for good and is
  // rethrown, by this call and by every later one.
  template <typename Fn>
  void OnEveryThread(Fn&& fn) {
    RethrowFailure();
    threads.Run([&](int rank) noexcept {
      try {
        fn(rank);
      } catch (...) {
        communicator.Abort(std::current_exception());
      }
    });
    RethrowFailure();
  }

  template <typename Fn>
  void OnEveryRank(Fn&& fn) {
    OnEveryThread([&](int rank) { fn(*ranks[static_cast<size_t>(rank)], rank); });
  }

  void RethrowFailure() const {
    if (const std::exception_ptr cause = communicator.cause()) std::rethrow_exception(cause);
  }

  // Evaluation, saving and loading see the program at rest: nothing of the last step is under way.
  void Drain(RankEngine& rank) const {
    if (carries_work) rank.RunSection(Section::kDrain);
  }

  const Program& program;
  const EngineOptions options;
  const RankEngine::Clock::time_point built = RankEngine::Clock::now();
  Communicator communicator;
  std::vector<std::unique_ptr<RankEngine>> ranks;
  bool carries_work = false;
  std::atomic<bool> stop_requested = false;
  RankThreads threads;  // last: joined before anything that they use is gone
};

Engine::Engine(const Program& program, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(program, options)) {
  // On the ranks' own threads, so that their pages come from memory near them.
  impl_->OnEveryThread([this](int rank) {
    Impl& impl = *impl_;
    impl.ranks[static_cast<size_t>(rank)] = std::make_unique<RankEngine>(
        impl.program, impl.options, rank, impl.ThreadsPerRank(), impl.communicator, impl.built);
  });
}

Engine::~Engine() = default;

int Engine::first_local_rank() const { return 0; }
int Engine::local_rank_count() const { return impl_->world_size(); }

void Engine::Init() {
  impl_->OnEveryRank([this](RankEngine& rank, int) {
    rank.host_state() = InitialStepState(impl_->program.setup);
    rank.RunSection(Section::kInit);
  });
  impl_->carries_work = false;
}

void Engine::Load(const StateSource& source, bool with_optimizer, const StepState* state) {
  impl_->OnEveryRank([&](RankEngine& rank, int) {
    impl_->Drain(rank);
    if (state != nullptr) rank.host_state() = *state;
    rank.BindCheckpoint({&source, with_optimizer, nullptr});
    rank.RunSection(Section::kLoad);
    rank.BindCheckpoint({});
  });
  impl_->carries_work = false;
}

void Engine::Save(std::span<StateSink* const> sinks) {
  ZEROPLAN_CHECK(sinks.size() == static_cast<size_t>(impl_->world_size()), "{} sinks for {} ranks",
                 sinks.size(), impl_->world_size());
  impl_->OnEveryRank([&](RankEngine& rank, int index) {
    impl_->Drain(rank);
    rank.BindCheckpoint({nullptr, true, sinks[static_cast<size_t>(index)]});
    rank.RunSection(Section::kSave);
    rank.BindCheckpoint({});
  });
  impl_->carries_work = false;
}

StepState Engine::Step(const FillBatch& fill) {
  const int64_t grad_accum = impl_->program.setup.batch.grad_accum;
  // One rank asks, and the step's reduction of the state's scalars tells the others.
  const bool stop = impl_->stop_requested.load();
  impl_->OnEveryRank([&](RankEngine& rank, int index) {
    for (int64_t m = 0; m < grad_accum; ++m) {
      rank.FillTokens(fill, m);
      rank.RunSection(Section::kMicroStep, MicroStepKind(m, grad_accum), static_cast<int>(m));
    }
    rank.host_state().stop_requested = stop && index == 0 ? 1 : 0;
    rank.RunSection(Section::kOptimizerStep);
  });
  impl_->carries_work = true;
  return state();
}

double Engine::Evaluate(const FillBatch& fill) {
  double loss_sum = 0;
  impl_->OnEveryRank([&](RankEngine& rank, int index) {
    impl_->Drain(rank);
    const StepState before = rank.host_state();
    rank.FillTokens(fill, 0);
    rank.RunSection(Section::kEval);
    if (index == 0) loss_sum = rank.host_state().loss_sum;
    rank.host_state() = before;
  });
  impl_->carries_work = false;
  return loss_sum / impl_->world_size();
}

std::vector<float> Engine::Logits(std::span<const int32_t> tokens, int32_t position) {
  const int64_t seq_len = impl_->program.setup.batch.seq_len;
  ZEROPLAN_CHECK(!impl_->program.section(Section::kGenerate).empty(),
                 "the program has no generate section");
  ZEROPLAN_CHECK(static_cast<int64_t>(tokens.size()) <= seq_len && position >= 0 &&
                     static_cast<size_t>(position) < tokens.size(),
                 "row {} of {} tokens, sequences of {}", position, tokens.size(), seq_len);
  std::vector<float> logits;
  impl_->OnEveryRank([&](RankEngine& rank, int index) {
    impl_->Drain(rank);
    const std::span<int32_t> inputs = rank.inputs();
    // Attention is causal: what follows `position` may be anything that is a token.
    std::fill(inputs.begin(), inputs.end(), 0);
    std::copy(tokens.begin(), tokens.end(), inputs.begin());
    const StepState before = rank.host_state();
    rank.host_state().position = position;
    rank.RunSection(Section::kGenerate);
    rank.host_state() = before;
    if (index == 0) logits = rank.LogitsAsFloat();
  });
  impl_->carries_work = false;
  return logits;
}

void Engine::RequestStop() { impl_->stop_requested.store(true); }

StepState Engine::state() const { return impl_->ranks[0]->host_state(); }

StepTimes Engine::LastStepTimes() const { return {}; }
std::optional<uint64_t> Engine::DeviceUsedBytes() const { return std::nullopt; }

HighWater Engine::high_water() const {
  HighWater highest;
  for (const auto& rank : impl_->ranks) {
    for (size_t space = 0; space < highest.touched_bytes.size(); ++space) {
      highest.touched_bytes[space] =
          std::max(highest.touched_bytes[space], rank->touched_bytes()[space]);
    }
  }
  return highest;
}

std::array<uint64_t, kSpaces> Engine::PatternHighWater() const {
  ZEROPLAN_CHECK(impl_->options.pattern_arenas, "needs EngineOptions::pattern_arenas");
  std::array<uint64_t, kSpaces> highest{};
  for (const auto& rank : impl_->ranks) {
    const std::array<uint64_t, kSpaces> ends = rank->arenas().PatternHighWater();
    for (size_t space = 0; space < ends.size(); ++space) {
      highest[space] = std::max(highest[space], ends[space]);
    }
  }
  return highest;
}

Engine::Traffic Engine::TakeTraffic() { return impl_->ranks[0]->TakeTraffic(); }

std::vector<ExecutedInstruction> Engine::ExecutedTrace(int rank) const {
  return impl_->ranks.at(static_cast<size_t>(rank))->executed();
}

std::vector<TraceSpan> Engine::SpanTrace(int rank) const {
  return impl_->ranks.at(static_cast<size_t>(rank))->spans();
}

std::span<const std::byte> Engine::Peek(int rank, BufferId buffer) const {
  const RankArenas& arenas = impl_->ranks.at(static_cast<size_t>(rank))->arenas();
  return arenas.bytes(impl_->program.buffers.at(buffer));
}

}  // namespace zeroplan
