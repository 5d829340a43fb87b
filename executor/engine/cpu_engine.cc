// The CPU backend: all ranks as threads of this process, collectives between them in process.
#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "executor/engine/engine_backend.h"
#include "executor/engine/rank_engine.h"
#include "executor/engine/rank_threads.h"
#include "executor/optimizer/step_scalars.h"

namespace zeroplan {
namespace {

class CpuEngine : public EngineBackend {
 public:
  CpuEngine(const Program& program, const EngineOptions& options)
      : program_(program),
        options_(options),
        communicator_(program.setup.batch.world_size),
        ranks_(static_cast<size_t>(communicator_.world_size())),
        threads_(communicator_.world_size()) {
    // On the ranks' own threads, so that their pages come from memory near them.
    OnEveryThread([this](int rank) {
      ranks_[static_cast<size_t>(rank)] = std::make_unique<RankEngine>(
          program_, options_, rank, ThreadsPerRank(), communicator_, built_);
    });
  }

  int first_local_rank() const override { return 0; }
  int local_rank_count() const override { return world_size(); }
  void Init() override;
  void Load(const StateSource& source, bool with_optimizer, const StepState* state) override;
  void Save(std::span<StateSink* const> sinks) override;
  StepState Step(const FillBatch& fill) override;
  void Drain() override {
    OnEveryRank([this](RankEngine& rank, int) { RunDrain(rank); });
    carries_work_ = false;
  }
  double Evaluate(const FillBatch& fill) override;
  std::vector<float> Logits(std::span<const int32_t> tokens, int32_t position) override;
  void RequestStop() override { stop_requested_.store(true); }
  StepState state() const override { return ranks_[0]->host_state(); }
  HighWater high_water() const override;
  std::array<uint64_t, kSpaces> PatternHighWater() const override;
  Engine::Traffic TakeTraffic() override { return ranks_[0]->TakeTraffic(); }
  std::vector<ExecutedInstruction> ExecutedTrace(int rank) const override {
    return ranks_.at(static_cast<size_t>(rank))->executed();
  }
  std::vector<TraceSpan> SpanTrace(int rank) override {
    return ranks_.at(static_cast<size_t>(rank))->spans();
  }
  std::span<const std::byte> Peek(int rank, BufferId buffer) const override;

 private:
  int world_size() const { return communicator_.world_size(); }

  int ThreadsPerRank() const {
    if (options_.threads_per_rank > 0) return options_.threads_per_rank;
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / world_size());
  }

  // Calls fn(rank) on every rank's thread. The first failure stops the group for good and is
  // rethrown, by this call and by every later one.
  template <typename Fn>
  void OnEveryThread(Fn&& fn) {
    RethrowFailure();
    threads_.Run([&](int rank) noexcept {
      try {
        fn(rank);
      } catch (...) {
        communicator_.Abort(std::current_exception());
      }
    });
    RethrowFailure();
  }

  template <typename Fn>
  void OnEveryRank(Fn&& fn) {
    OnEveryThread([&](int rank) { fn(*ranks_[static_cast<size_t>(rank)], rank); });
  }

  void RethrowFailure() const {
    if (const std::exception_ptr cause = communicator_.cause()) std::rethrow_exception(cause);
  }

  void RunDrain(RankEngine& rank) const {
    if (carries_work_) rank.RunSection(Section::kDrain);
  }

  const Program& program_;
  const EngineOptions options_;
  const RankEngine::Clock::time_point built_ = RankEngine::Clock::now();
  Communicator communicator_;
  std::vector<std::unique_ptr<RankEngine>> ranks_;
  bool carries_work_ = false;
  std::atomic<bool> stop_requested_ = false;
  RankThreads threads_;  // last: joined before anything that they use is gone
};

void CpuEngine::Init() {
  OnEveryRank([this](RankEngine& rank, int) {
    RunDrain(rank);
    rank.host_state() = InitialStepState(program_.setup);
    rank.RunSection(Section::kInit);
  });
  carries_work_ = false;
}

void CpuEngine::Load(const StateSource& source, bool with_optimizer, const StepState* state) {
  OnEveryRank([&](RankEngine& rank, int) {
    RunDrain(rank);
    if (state != nullptr) rank.host_state() = *state;
    rank.BindCheckpoint({&source, with_optimizer, nullptr});
    rank.RunSection(Section::kLoad);
    rank.BindCheckpoint({});
  });
  carries_work_ = false;
}

void CpuEngine::Save(std::span<StateSink* const> sinks) {
  OnEveryRank([&](RankEngine& rank, int index) {
    RunDrain(rank);
    rank.BindCheckpoint({nullptr, true, sinks[static_cast<size_t>(index)]});
    rank.RunSection(Section::kSave);
    rank.BindCheckpoint({});
  });
  carries_work_ = false;
}

StepState CpuEngine::Step(const FillBatch& fill) {
  const int64_t grad_accum = program_.setup.batch.grad_accum;
  // One rank asks, and the step's reduction of the state's scalars tells the others.
  const bool stop = stop_requested_.load();
  OnEveryRank([&](RankEngine& rank, int index) {
    for (int64_t m = 0; m < grad_accum; ++m) {
      rank.FillTokens(fill, m);
      rank.RunSection(Section::kMicroStep, MicroStepKind(m, grad_accum), static_cast<int>(m));
    }
    rank.host_state().stop_requested = stop && index == 0 ? 1 : 0;
    rank.RunSection(Section::kOptimizerStep);
  });
  carries_work_ = true;
  return state();
}

double CpuEngine::Evaluate(const FillBatch& fill) {
  double loss_sum = 0;
  OnEveryRank([&](RankEngine& rank, int index) {
    RunDrain(rank);
    const StepState before = rank.host_state();
    rank.FillTokens(fill, 0);
    rank.RunSection(Section::kEval);
    if (index == 0) loss_sum = rank.host_state().loss_sum;
    rank.host_state() = before;
  });
  carries_work_ = false;
  return loss_sum / world_size();
}

std::vector<float> CpuEngine::Logits(std::span<const int32_t> tokens, int32_t position) {
  std::vector<float> logits;
  OnEveryRank([&](RankEngine& rank, int index) {
    RunDrain(rank);
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
  carries_work_ = false;
  return logits;
}

HighWater CpuEngine::high_water() const {
  HighWater highest;
  for (const auto& rank : ranks_) {
    for (size_t space = 0; space < highest.touched_bytes.size(); ++space) {
      highest.touched_bytes[space] =
          std::max(highest.touched_bytes[space], rank->touched_bytes()[space]);
    }
  }
  return highest;
}

std::array<uint64_t, kSpaces> CpuEngine::PatternHighWater() const {
  std::array<uint64_t, kSpaces> highest{};
  for (const auto& rank : ranks_) {
    const std::array<uint64_t, kSpaces> ends = rank->arenas().PatternHighWater();
    for (size_t space = 0; space < ends.size(); ++space) {
      highest[space] = std::max(highest[space], ends[space]);
    }
  }
  return highest;
}

std::span<const std::byte> CpuEngine::Peek(int rank, BufferId buffer) const {
  const RankArenas& arenas = ranks_.at(static_cast<size_t>(rank))->arenas();
  return arenas.bytes(program_.buffers.at(buffer));
}

}  // namespace

std::unique_ptr<EngineBackend> MakeCpuEngine(const Program& program, const EngineOptions& options) {
  return std::make_unique<CpuEngine>(program, options);
}

}  // namespace zeroplan
