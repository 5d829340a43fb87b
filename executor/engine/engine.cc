#include "executor/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "core/base/error.h"
#include "core/program/step_order.h"
#include "executor/engine/local_ranks.h"
#include "executor/engine/watch.h"
#include "executor/optimizer/step_scalars.h"

namespace zeroplan {
namespace {

std::unique_ptr<LocalRanks> MakeRanks(const Program& program, const EngineOptions& options) {
  switch (options.backend) {
    case Backend::kCpu:
      return MakeCpuRanks(program, options);
    case Backend::kCuda:
#ifdef ZEROPLAN_WITH_CUDA
      return MakeCudaRanks(program, options);
#else
      ThrowUsage("this build of zeroplan has no CUDA; configure it with -DZEROPLAN_CUDA=ON");
#endif
  }
  return nullptr;
}

// Over ranks, the largest of what each says by Space.
template <typename Of>
std::array<uint64_t, kSpaces> HighestOf(const LocalRanks& ranks, Of&& of) {
  std::array<uint64_t, kSpaces> highest{};
  for (const auto& rank : ranks.all()) {
    const std::array<uint64_t, kSpaces> ends = of(*rank);
    for (size_t space = 0; space < ends.size(); ++space) {
      highest[space] = std::max(highest[space], ends[space]);
    }
  }
  return highest;
}

}  // namespace

#ifndef ZEROPLAN_WITH_CUDA
std::string LockPinnedArena(const Program&, EngineOptions&) { return ""; }
#endif

Engine::Engine(const Program& program, const EngineOptions& options)
    : program_(program),
      options_(options),
      ranks_(MakeRanks(program_, options_)),
      abandoned_(static_cast<size_t>(ranks_->count()), 0) {
  own_seconds_.resize(abandoned_.size());
  if (options_.watch != nullptr) options_.watch->Observe(ranks_.get());
}

Engine::~Engine() {
  if (options_.watch != nullptr) options_.watch->Observe(nullptr);
}

int Engine::first_local_rank() const { return ranks_->first(); }
int Engine::local_rank_count() const { return ranks_->count(); }

void Engine::Init() {
  ranks_->OnEvery([&](RankRunner& rank, int) {
    rank.Drain();
    rank.host_state() = InitialStepState(program_.setup);
    rank.host_state().spike_factor = static_cast<float>(options_.spike_factor);
    rank.Complete(Section::kInit);
  });
}

void Engine::Load(const StateSource& source, bool with_optimizer, const StepState* state) {
  ranks_->OnEvery([&](RankRunner& rank, int) {
    rank.Drain();
    if (state != nullptr) rank.host_state() = *state;
    rank.host_state().spike_factor = static_cast<float>(options_.spike_factor);
    rank.BindCheckpoint({.source = &source, .with_optimizer = with_optimizer});
    rank.Complete(Section::kLoad);
    rank.BindCheckpoint({});
  });
}

void Engine::Save(std::span<StateSink* const> sinks) {
  ZEROPLAN_CHECK(sinks.size() == static_cast<size_t>(local_rank_count()), "{} sinks for {} ranks",
                 sinks.size(), local_rank_count());
  ranks_->OnEvery([&](RankRunner& rank, int index) {
    rank.Drain();
    rank.BindCheckpoint({.sink = sinks[static_cast<size_t>(index)]});
    rank.Complete(Section::kSave);
    rank.BindCheckpoint({});
  });
}

void Engine::SaveToCopy() {
  ZEROPLAN_CHECK(SavesFromCopy(program_), "the program has no copy to save from");
  ranks_->OnEvery([&](RankRunner& rank, int) {
    rank.Drain();
    rank.BindCheckpoint({.later = true});
    rank.Complete(Section::kSave);
    rank.BindCheckpoint({});
  });
}

void Engine::WriteSaveCopy(int index, StateSink& sink) const {
  ranks_->all()[static_cast<size_t>(index)]->WriteSaveCopy(sink);
}

StepState Engine::Step(const FillBatch& fill) {
  const int64_t grad_accum = program_.setup.batch.grad_accum;
  // Where the update begins: its scalars take the votes along.
  const bool in_backward = program_.setup.zero.optimizer_in_backward;
  ranks_->OnEvery([&](RankRunner& rank, int index) {
    const auto begin = std::chrono::steady_clock::now();
    const auto vote = [&] {
      // One rank of the process asks; the step's reduction of the scalars tells the others.
      const bool abandons = std::exchange(abandoned_[static_cast<size_t>(index)], uint8_t{0}) != 0;
      const int64_t uncounted = rank.TakeUncounted();
      rank.host_state().stop_requested =
          abandons ? std::numeric_limits<double>::quiet_NaN()
                   : StepVote(index == 0 && stop_requested_.load(), uncounted);
    };
    ForEachStepSection(grad_accum, [&](Section section, When kind, int64_t m) {
      const bool updates = in_backward ? section == Section::kMicroStep && m + 1 == grad_accum
                                       : section == Section::kOptimizerStep;
      if (section == Section::kMicroStep) rank.FillTokens(fill, m);
      if (updates) vote();
      if (section == Section::kMicroStep) {
        rank.Run(section, kind, static_cast<int>(m));
      } else {
        rank.Run(section);
      }
    });
    const StepTimes times = rank.Finish();
    if (index == 0) step_times_ = times;
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::optional<double>& own = own_seconds_[static_cast<size_t>(index)];
    own.reset();
    if (const auto& waited = times.waited_for_others_seconds)
      own = std::max(0.0, seconds - *waited);
  });
  return state();
}

double Engine::Evaluate(const FillBatch& fill, int64_t* counted) {
  double loss_sum = 0;
  const BatchSpec& batch = program_.setup.batch;
  std::atomic<int64_t> all = local_rank_count() * batch.micro_batch * batch.local_seq();
  ranks_->OnEvery([&](RankRunner& rank, int index) {
    rank.Drain();
    const StepState before = rank.host_state();
    rank.TakeUncounted();
    rank.FillTokens(fill, 0);
    all -= rank.TakeUncounted();
    rank.Complete(Section::kEval);
    if (index == 0) loss_sum = rank.host_state().loss_sum;
    rank.host_state() = before;
  });
  if (counted != nullptr) *counted = all.load();
  return loss_sum / batch.world_size;
}

std::vector<float> Engine::Logits(std::span<const int32_t> tokens, int32_t position) {
  const int64_t seq_len = program_.setup.batch.seq_len;
  ZEROPLAN_CHECK(!program_.section(Section::kGenerate).empty(),
                 "the program has no generate section");
  ZEROPLAN_CHECK(static_cast<int64_t>(tokens.size()) <= seq_len && position >= 0 &&
                     static_cast<size_t>(position) < tokens.size(),
                 "row {} of {} tokens, sequences of {}", position, tokens.size(), seq_len);
  std::vector<float> logits;
  ranks_->OnEvery([&](RankRunner& rank, int index) {
    rank.Drain();
    const std::span<int32_t> inputs = rank.inputs();
    // Attention is causal: what follows `position` may be anything that is a token.
    std::fill(inputs.begin(), inputs.end(), 0);
    std::copy(tokens.begin(), tokens.end(), inputs.begin());
    const StepState before = rank.host_state();
    rank.host_state().position = position;
    rank.Complete(Section::kGenerate);
    rank.host_state() = before;
    if (index == 0) logits = rank.LogitsRow();
  });
  return logits;
}

std::vector<float> Engine::Decode(int32_t token, int32_t position) {
  ZEROPLAN_CHECK(!program_.section(Section::kDecode).empty(), "the program has no decode section");
  ZEROPLAN_CHECK(position >= 0 && position < program_.setup.batch.seq_len, "position {} of {}",
                 position, program_.setup.batch.seq_len);
  std::vector<float> logits;
  ranks_->OnEvery([&](RankRunner& rank, int index) {
    rank.Drain();
    rank.inputs()[0] = token;
    const StepState before = rank.host_state();
    rank.host_state().position = position;
    rank.Complete(Section::kDecode);
    rank.host_state() = before;
    if (index == 0) logits = rank.LogitsRow();
  });
  return logits;
}

void Engine::Drain() {
  ranks_->OnEvery([](RankRunner& rank, int) { rank.Drain(); });
}

void Engine::AbandonStep(int rank) {
  abandoned_[static_cast<size_t>(rank - first_local_rank())] = 1;
}

void Engine::RequestStop() { stop_requested_.store(true); }

StepState Engine::state() const { return ranks_->front().host_state(); }

std::vector<double> Engine::RouterTotals() const {
  const BufferId totals = program_.router_totals_host_buffer;
  if (totals == kNoBuffer) return {};
  return ranks_->front().HostDoubles(totals);
}

StepTimes Engine::LastStepTimes() const { return step_times_; }

std::optional<uint64_t> Engine::DeviceUsedBytes() const {
  return ranks_->front().DeviceUsedBytes();
}

HighWater Engine::high_water() const {
  return {HighestOf(*ranks_, [](const RankRunner& rank) { return rank.touched_bytes(); })};
}

std::array<uint64_t, kSpaces> Engine::PatternHighWater() const {
  ZEROPLAN_CHECK(options_.pattern_arenas, "needs EngineOptions::pattern_arenas");
  return HighestOf(*ranks_, [](const RankRunner& rank) { return rank.PatternHighWater(); });
}

Engine::Traffic Engine::TakeTraffic() { return ranks_->front().TakeTraffic(); }

std::vector<ExecutedInstruction> Engine::ExecutedTrace(int rank) const {
  return ranks_->of(rank).executed();
}

std::vector<TraceSpan> Engine::SpanTrace(int rank) const { return ranks_->of(rank).spans(); }

std::span<const std::byte> Engine::Peek(int rank, BufferId buffer) const {
  return ranks_->of(rank).Peek(buffer);
}

}  // namespace zeroplan
