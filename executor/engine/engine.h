// Runs a step program: on the CPU with ranks as threads and collectives in process; or one rank of
// it, on the CPU with Gloo or on a GPU with NCCL between processes. One arena per memory space and
// rank. While steps run, only Gloo and its messages allocate memory.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/program/chrome_trace.h"
#include "core/program/program.h"
#include "core/program/step_state.h"
#include "core/settings/packing.h"
#include "executor/checkpoint/state_io.h"

namespace zeroplan {

class LocalRanks;
class PinnedArena;  // executor/device/cuda/cuda_arenas.h
class ProcessGroup;
class Watch;

struct EngineOptions {
  // The backend that runs the program, whatever it was lowered for. kCpu: the rank of `group` that
  // is this process, or all ranks as its threads. kCuda: one rank of `group` on one GPU.
  Backend backend = Backend::kCpu;
  // The processes of the run, one a rank; must outlive the engine. Null, or one process: this
  // process runs all ranks.
  ProcessGroup* group = nullptr;
  // Watches the ranks during the engine's lifetime; must outlive it. Null: no watch.
  Watch* watch = nullptr;
  // Limit for all ranks to arrive at the set-up of a communicator between processes. 0: none.
  double communicator_seconds = 300;
  // kCuda: this rank's pinned arena, from LockPinnedArena; null: the engine makes it.
  std::shared_ptr<PinnedArena> pinned;
  // kCuda: results are equal in every run on the same GPU and libraries; a little slower.
  bool deterministic = false;
  // Limits that every batch of a program with document_borders keeps: kernels of a GPU are slower
  // the more documents there might be. A batch beyond them ends the run with an error.
  DocumentLimits documents;
  uint64_t seed = 1;  // seed of fresh weights and dropout
  // False: Init does not draw weights, which is slower than reading them; Load must follow. Until
  // then they are undefined.
  bool fresh_weights = true;
  // A step whose loss or gradient norm exceeds this many times its median over the last
  // kSpikeWindow steps changes nothing (StepState::skip is set). 0: no such limit.
  double spike_factor = 0;
  int threads_per_rank = 0;  // 0: cores that the process may use / ranks, at least 1
  std::string swap_dir;      // folder of the file arenas; required if the program has any
  // Runs each section in a random legal order over its streams (the same on every rank) instead of
  // in list order, to reveal missing waits. 0: list order.
  uint64_t random_order_seed = 0;
  bool record_trace = false;  // record what ran (see ExecutedTrace) and when (see SpanTrace)
  // Tests: fills the arenas with a byte pattern first, so that HighWater can be read from the
  // bytes.
  bool pattern_arenas = false;
};

struct HighWater {
  // The largest end of a range that an instruction touched, over ranks, by Space.
  std::array<uint64_t, kSpaces> touched_bytes{};
};

// The waits of the compute stream in the last step; empty if a backend cannot measure them.
struct StepTimes {
  std::optional<double> exposed_comm_seconds;  // waits for gathers and reductions
  std::optional<double>
      exposed_offload_seconds;  // waits for copies, host kernels and the disk, and for their issue
  // The part of those waits in which the rank waited for others: in collectives, on a GPU those
  // that compute waits for.
  std::optional<double> waited_for_others_seconds;
};

struct ExecutedInstruction {
  Section section;
  int32_t index;       // within the section
  int32_t repetition;  // number of the micro-step within the optimizer step, else 0
};

// Writes the batch of micro-step `micro_step` of the next optimizer step, I32 and B*T each: inputs;
// targets, below 0 for positions that do not count in the loss; and for a program with
// document_borders the start of each position's document in its row (else `starts` is empty).
// Called on the rank's own thread. Constructed from any callable of that signature, or of one
// without `starts`: then each row is one document.
class FillBatch {
 public:
  using Tokens = std::span<int32_t>;

  template <typename Fill>
    requires(!std::same_as<std::remove_cvref_t<Fill>, FillBatch>)
  FillBatch(Fill fill) {  // NOLINT: implicit
    if constexpr (std::is_invocable_v<Fill&, int, int64_t, Tokens, Tokens, Tokens>) {
      fill_ = std::move(fill);
    } else {
      fill_ = [fill = std::move(fill)](int rank, int64_t micro_step, Tokens inputs, Tokens targets,
                                       Tokens starts) mutable {
        fill(rank, micro_step, inputs, targets);
        std::fill(starts.begin(), starts.end(), 0);
      };
    }
  }

  void operator()(int rank, int64_t micro_step, Tokens inputs, Tokens targets,
                  Tokens starts = {}) const {
    fill_(rank, micro_step, inputs, targets, starts);
  }

 private:
  std::function<void(int, int64_t, Tokens, Tokens, Tokens)> fill_;
};

// kCuda: page-locks the bytes that `program` pins on this rank, for an engine of it
// (`options.pinned`). Returns "", or the driver's message if it refuses. Throws Error(kRuntime) if
// there is not enough memory.
std::string LockPinnedArena(const Program& program, EngineOptions& options);

class Engine {
 public:
  // REQUIRES: `program` outlives the engine. Throws Error(kRuntime) if an arena cannot be allocated
  // (naming space, bytes and the request), Error(kUsage) if swap_dir is not a writable folder.
  // After an error of any method every later call rethrows it, because the ranks no longer agree.
  Engine(const Program& program, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Runs section init: fresh weights from the seed, Adam states zero, StepState at its initial
  // values.
  void Init();
  // REQUIRES: after Init. Replaces master weights (and Adam states if `with_optimizer`) from
  // `source`; restores `state` if given.
  void Load(const StateSource& source, bool with_optimizer, const StepState* state);
  // The ranks that this process runs: all of them, or one if each has a process.
  int first_local_rank() const;
  int local_rank_count() const;

  // Runs section save: writes the shards of this process's ranks to `sinks`, one a local rank, in
  // order. At stage 0 only rank 0 writes.
  void Save(std::span<StateSink* const> sinks);
  // The two halves of a save for a program with a save copy (core/program/step_order.h). The first
  // runs section save without its files: the copy holds the present states until the next call of
  // either Save.
  void SaveToCopy();
  // The second writes the local rank `index` (from 0) from the copy to `sink`. From any thread, one
  // at a time for each rank, concurrently with steps and with all calls that do not save.
  void WriteSaveCopy(int index, StateSink& sink) const;

  // One optimizer step: grad_accum micro-steps and the update. Returns the state after it (the same
  // on every rank); loss_sum is the mean loss over all targets that count, of all ranks and
  // micro-steps, and the gradient is that of this mean. If no target counts, the step changes
  // nothing (StepState::skip is kNothingCounts).
  StepState Step(const FillBatch& fill);
  // Loss of one batch per rank, without gradients: the mean over all B*T targets of all ranks, with
  // 0 for those that do not count. Sets `counted` to the number of this process's targets that do.
  double Evaluate(const FillBatch& fill, int64_t* counted = nullptr);
  // Logits (fp32, padded vocabulary) of row `position` of a one-sequence batch. REQUIRES: the
  // program has a generate section.
  std::vector<float> Logits(std::span<const int32_t> tokens, int32_t position);

  // The same for `token` at `position`. Its keys and values join those of positions 0 to position -
  // 1, which Logits and Decode have stored since Load. REQUIRES: the program has a decode section,
  // 0 <= position < sequence length.
  std::vector<float> Decode(int32_t token, int32_t position);

  // Called within Step's `fill`, by a rank that cannot fill its batch (and leaves valid tokens
  // there): the running step changes nothing on any rank, and ends on all with StepState::skip
  // kAbandoned. The engine stays usable.
  void AbandonStep(int rank);
  // Requests a stop from every rank; all see it after the same step as StepState::stop_requested >
  // 0.
  void RequestStop();

  StepState state() const;
  // BalanceLoss's totals of the last step, summed over all ranks (core/program/program.h); empty of
  // a model without experts.
  std::vector<double> RouterTotals() const;
  StepTimes LastStepTimes() const;
  // Seconds of each local rank's last step without its waits for others; empty if a backend cannot
  // measure them.
  std::vector<std::optional<double>> LastOwnSeconds() const { return own_seconds_; }
  // Memory in use on this process's GPU, by all processes; empty on the CPU.
  std::optional<uint64_t> DeviceUsedBytes() const;
  HighWater high_water() const;
  // Highest byte of each arena that differs from the pattern, + 1. REQUIRES: pattern_arenas.
  std::array<uint64_t, kSpaces> PatternHighWater() const;
  // Bytes that rank 0's collectives sent since the last call, by ring accounting: all-reduce
  // 2n(N-1)/N, reduce-scatter and all-gather n(N-1)/N; scalar reductions separately. File bytes are
  // those of the swap file. Includes bytes moved by Init, Load and Save: call it before a step,
  // too.
  struct Traffic {
    uint64_t collective_bytes = 0, scalar_bytes = 0;
    uint64_t host_to_device_bytes = 0, device_to_host_bytes = 0;
    uint64_t file_read_bytes = 0, file_write_bytes = 0;
  };
  Traffic TakeTraffic();
  // Returns once all work of the last step has ended; throws its failure. All methods but Step call
  // it first.
  void Drain();
  std::vector<ExecutedInstruction> ExecutedTrace(int rank) const;
  // Call Drain first after a step: on a GPU carried-over work has no times before.
  std::vector<TraceSpan> SpanTrace(int rank) const;

  // The bytes of a buffer of one rank, for tests. After a step, call Drain first: carried-over work
  // may be under way, or in random order not have run, and parameters be older than the masters.
  std::span<const std::byte> Peek(int rank, BufferId buffer) const;

 private:
  const Program& program_;
  const EngineOptions options_;
  std::atomic<bool> stop_requested_ = false;
  StepTimes step_times_;  // the first local rank's
  std::vector<std::optional<double>> own_seconds_;
  const std::unique_ptr<LocalRanks> ranks_;
  std::vector<uint8_t> abandoned_;  // by local rank, each written by its own thread
};

}  // namespace zeroplan
