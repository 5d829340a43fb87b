// The CUDA backend: one rank of the run, on one GPU of this process.
#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/units.h"
#include "executor/device/pattern.h"
#include "executor/engine/cuda/cuda_rank.h"
#include "executor/engine/engine_backend.h"
#include "executor/kernels/convert.h"
#include "executor/optimizer/step_scalars.h"
#include "executor/process/single_process.h"

namespace zeroplan {
namespace {

// Graphs replace single launches once what is loaded at first use is there.
constexpr int64_t kStepsBeforeGraphs = 3;

constexpr uint64_t kPatternBlock = uint64_t{16} << 20;

// The GPU of this process: its rank's among those of the host, or the only one it may see.
int ChooseDevice(const ProcessPlace& place) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    ThrowRuntime("rank {}: there is no GPU to train on: {}; --backend cpu runs without", place.rank,
                 status == cudaSuccess ? "none is visible" : cudaGetErrorString(status));
  }
  if (count == 1) return 0;
  if (place.local_rank >= count) {
    ThrowRuntime("rank {}: is rank {} of its host, which has {} GPUs; use at most {} ranks a host",
                 place.rank, place.local_rank, count, count);
  }
  return place.local_rank;
}

class CudaEngine : public EngineBackend {
 public:
  CudaEngine(const Program& program, const EngineOptions& options)
      : program_(program),
        group_(options.group == nullptr ? alone_ : *options.group),
        pattern_(options.pattern_arenas) {
    ZEROPLAN_CHECK(group_.world_size() == program.setup.batch.world_size,
                   "{} processes for a program of {} ranks", group_.world_size(),
                   program.setup.batch.world_size);
    ZEROPLAN_CHECK(options.random_order_seed == 0, "random orders are the CPU backend's");
    rank_ = std::make_unique<CudaRank>(program, options, group_, ChooseDevice(group_.place()));
    if (pattern_) FillWithPattern();
  }

  // Gathers under way would write to memory that is about to go.
  ~CudaEngine() override {
    if (failure_) return;
    try {
      Drain();
    } catch (...) {
      try {
        LogWarning("rank {}: the end of the last step's update was not awaited", rank_->rank());
      } catch (...) {
      }
    }
  }

  int first_local_rank() const override { return rank_->rank(); }
  int local_rank_count() const override { return 1; }

  void Init() override {
    Guard([&] {
      RunDrain();
      rank_->host_state() = InitialStepState(program_.setup);
      rank_->Run(Section::kInit);
    });
  }

  void Load(const StateSource& source, bool with_optimizer, const StepState* state) override {
    Guard([&] {
      RunDrain();
      if (state != nullptr) rank_->host_state() = *state;
      rank_->BindCheckpoint({&source, with_optimizer, nullptr});
      rank_->Run(Section::kLoad);
      rank_->BindCheckpoint({});
    });
  }

  void Save(std::span<StateSink* const> sinks) override {
    Guard([&] {
      RunDrain();
      rank_->BindCheckpoint({nullptr, true, sinks[0]});
      rank_->Run(Section::kSave);
      rank_->BindCheckpoint({});
    });
  }

  StepState Step(const FillBatch& fill) override {
    Guard([&] {
      rank_->clock().Settle();  // what was waited for since the last step is none of this one's
      const int64_t grad_accum = program_.setup.batch.grad_accum;
      for (int64_t m = 0; m < grad_accum; ++m) {
        rank_->FillTokens(fill, m);
        rank_->Issue(Section::kMicroStep, MicroStepKind(m, grad_accum), static_cast<int>(m));
      }
      // Its own number is the rank's; the step's reduction of the scalars tells the others.
      rank_->host_state().stop_requested = stop_requested_.load() ? 1 : 0;
      rank_->Run(Section::kOptimizerStep);
      carries_work_ = true;
      step_times_ = rank_->clock().Settle();
      if (++steps_ == kStepsBeforeGraphs) rank_->ReplayGraphs();
    });
    return state();
  }

  void Drain() override {
    Guard([&] { RunDrain(); });
  }

  double Evaluate(const FillBatch& fill) override {
    double loss_sum = 0;
    Guard([&] {
      RunDrain();
      const StepState before = rank_->host_state();
      rank_->FillTokens(fill, 0);
      rank_->Run(Section::kEval);
      loss_sum = rank_->host_state().loss_sum;
      rank_->host_state() = before;
      rank_->clock().Settle();
    });
    return loss_sum / rank_->world_size();
  }

  std::vector<float> Logits(std::span<const int32_t> tokens, int32_t position) override {
    std::vector<float> logits;
    Guard([&] {
      RunDrain();
      const std::span<int32_t> inputs = rank_->inputs();
      std::fill(inputs.begin(), inputs.end(), 0);  // attention is causal: any token will do
      std::copy(tokens.begin(), tokens.end(), inputs.begin());
      const StepState before = rank_->host_state();
      rank_->host_state().position = position;
      rank_->Run(Section::kGenerate);
      rank_->host_state() = before;
      const std::span<std::byte> row = rank_->HostBytes(program_.logits_host_buffer);
      const Dtype dtype = program_.buffers[program_.logits_host_buffer].dtype;
      logits.resize(row.size() / DtypeBytes(dtype));
      Widen(dtype, row.data(), static_cast<int64_t>(logits.size()), logits.data());
    });
    return logits;
  }

  void RequestStop() override { stop_requested_.store(true); }

  StepState state() const override { return rank_->host_state(); }
  StepTimes LastStepTimes() const override { return step_times_; }

  std::optional<uint64_t> DeviceUsedBytes() const override {
    size_t free_bytes = 0, total_bytes = 0;
    ZEROPLAN_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
    return total_bytes - free_bytes;
  }

  HighWater high_water() const override { return {rank_->touched_bytes()}; }

  std::array<uint64_t, kSpaces> PatternHighWater() const override;
  Engine::Traffic TakeTraffic() override { return rank_->TakeTraffic(); }
  std::vector<ExecutedInstruction> ExecutedTrace(int rank) const override {
    CheckOwn(rank);
    return rank_->executed();
  }
  std::vector<TraceSpan> SpanTrace(int rank) override {
    CheckOwn(rank);
    Guard([&] {
      RunDrain();
      rank_->clock().Settle();  // the spans of what was carried out of the last step
    });
    return rank_->clock().spans();
  }
  std::span<const std::byte> Peek(int rank, BufferId buffer) const override;

 private:
  // The first failure ends the engine: what waits is let go, and every later call rethrows it.
  template <typename Fn>
  void Guard(Fn&& fn) {
    if (failure_) std::rethrow_exception(failure_);
    try {
      fn();
    } catch (...) {
      failure_ = std::current_exception();
      TellOthers();
      rank_->Abort();
      throw;
    }
  }

  // Before anything that may wait for this GPU, which may wait for ranks that do not know yet.
  void TellOthers() noexcept {
    try {
      std::rethrow_exception(failure_);
    } catch (const Error& error) {
      group_.FailWith(error.code(), error.what());
    } catch (const std::exception& error) {
      group_.Fail(error.what());
    } catch (...) {
      group_.Fail("an unknown failure");
    }
  }

  void RunDrain() {
    if (std::exchange(carries_work_, false)) rank_->Run(Section::kDrain);
  }

  void CheckOwn(int rank) const {
    ZEROPLAN_CHECK(rank == rank_->rank(), "rank {} is another process's", rank);
  }
  void FillWithPattern();

  const Program& program_;
  SingleProcess alone_;
  ProcessGroup& group_;
  const bool pattern_;
  std::unique_ptr<CudaRank> rank_;
  std::exception_ptr failure_;
  bool carries_work_ = false;
  std::atomic<bool> stop_requested_ = false;
  StepTimes step_times_;
  int64_t steps_ = 0;  // of this engine
  mutable std::map<BufferId, std::vector<std::byte>> peeked_;
};

void CudaEngine::FillWithPattern() {
  std::vector<std::byte> block(kPatternBlock);
  for (Space space : {Space::kDevice, Space::kPinned, Space::kPageable}) {
    const uint64_t bytes = program_.arena_bytes[static_cast<size_t>(space)];
    std::byte* arena = rank_->bases()[static_cast<size_t>(space)];
    for (uint64_t at = 0; at < bytes; at += block.size()) {
      const uint64_t part = std::min<uint64_t>(block.size(), bytes - at);
      FillPattern({block.data(), part}, at);
      ZEROPLAN_CUDA(cudaMemcpy(arena + at, block.data(), part, cudaMemcpyDefault));
    }
  }
  if (program_.arena_bytes[static_cast<size_t>(Space::kFile)] > 0) {
    rank_->arenas().file().FillWithPattern();
  }
}

std::array<uint64_t, kSpaces> CudaEngine::PatternHighWater() const {
  std::array<uint64_t, kSpaces> ends{};
  std::vector<std::byte> block(kPatternBlock);
  ZEROPLAN_CUDA(cudaDeviceSynchronize());
  for (Space space : {Space::kDevice, Space::kPinned, Space::kPageable}) {
    const auto s = static_cast<size_t>(space);
    for (uint64_t at = 0; at < program_.arena_bytes[s]; at += block.size()) {
      const uint64_t part = std::min<uint64_t>(block.size(), program_.arena_bytes[s] - at);
      ZEROPLAN_CUDA(cudaMemcpy(block.data(), rank_->bases()[s] + at, part, cudaMemcpyDefault));
      const uint64_t end = PatternEnd({block.data(), part}, at);
      if (end > 0) ends[s] = at + end;
    }
  }
  ends[static_cast<size_t>(Space::kFile)] = rank_->arenas().file().PatternHighWater();
  return ends;
}

std::span<const std::byte> CudaEngine::Peek(int rank, BufferId id) const {
  CheckOwn(rank);
  const Buffer& buffer = program_.buffers.at(id);
  std::vector<std::byte>& copy = peeked_[id];
  copy.resize(buffer.bytes);
  ZEROPLAN_CUDA(cudaDeviceSynchronize());
  ZEROPLAN_CUDA(cudaMemcpy(copy.data(),
                           rank_->bases()[static_cast<size_t>(buffer.space)] + buffer.offset,
                           buffer.bytes, cudaMemcpyDefault));
  return copy;
}

}  // namespace

std::unique_ptr<EngineBackend> MakeCudaEngine(const Program& program,
                                              const EngineOptions& options) {
  return std::make_unique<CudaEngine>(program, options);
}

}  // namespace zeroplan
