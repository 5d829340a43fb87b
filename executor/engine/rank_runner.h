// One rank of a run. Engine's sequence of a step, of saving, of evaluating is written over it; a
// kind of hardware says how a section's instructions run and when they are over.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/program/chrome_trace.h"
#include "core/program/program.h"
#include "core/program/step_state.h"
#include "executor/checkpoint/state_io.h"
#include "executor/device/arena.h"
#include "executor/device/swap_file.h"
#include "executor/engine/engine.h"
#include "executor/engine/resolve.h"
#include "executor/engine/watch.h"

namespace zeroplan {

// A rank's accesses to files: its swap file, and the shards that checkpoints read and write.

// ---- a rank's shards between checkpoints, which know tensors, and memory, which knows units ----

// Elements [begin, begin + count) of rank `rank`'s shard of a unit; padding reads as 0. `source`
// null: fresh states, all 0. REQUIRES: out.size() >= count.
void ReadShard(const ParamLayout& layout, const FileIo& io, int rank, const StateSource* source,
               std::span<float> out);

// Hands the tensors' part of the same range to `sink`.
void WriteShard(const ParamLayout& layout, const FileIo& io, int rank,
                std::span<const float> values, StateSink& sink);

// Where the checkpoint reads and writes of a section go.
struct CheckpointBinding {
  const StateSource* source = nullptr;
  bool with_optimizer = true;  // false: Adam states read as 0
  StateSink* sink = nullptr;
  bool later = false;  // nothing is written: RankRunner::WriteSaveCopy does
};

// Runs a checkpoint's FileIo on its staging memory, io.count floats. REQUIRES: `binding` has the
// source or sink that it needs.
void RunCheckpointIo(const Program& program, const FileIo& io, int rank,
                     const CheckpointBinding& binding, std::span<float> host);

class RankFiles {
 public:
  // `program` and `swap` outlive it.
  RankFiles(const Program& program, int rank, const SwapFile& swap)
      : program_(program), rank_(rank), swap_(swap) {}

  // Where checkpoint accesses go from now on. REQUIRES: no access is under way.
  void Bind(const CheckpointBinding& binding) { binding_ = binding; }

  // Moves bytes between the file and the host memory that `io` names. Any thread, one at a time for
  // each FileIo::stream(): the swap file is read while it is written, elsewhere.
  void Run(const FileIo& io, const ResolvedInstruction& resolved);

  // Bytes of the swap file that were moved since the last call.
  uint64_t TakeReadBytes() { return read_bytes_.exchange(0); }
  uint64_t TakeWrittenBytes() { return written_bytes_.exchange(0); }

 private:
  void RunSwap(const FileIo& io, const ResolvedInstruction& resolved);

  const Program& program_;
  const int rank_;
  const SwapFile& swap_;
  CheckpointBinding binding_;
  // A thread of the host may count while another takes.
  std::atomic<uint64_t> read_bytes_{0}, written_bytes_{0};
};

// REQUIRES: every call comes from the rank's own thread, but for the reports, which another thread
// may ask for while no section runs.
class RankRunner {
 public:
  virtual ~RankRunner() = default;
  RankRunner(const RankRunner&) = delete;
  RankRunner& operator=(const RankRunner&) = delete;

  // ---- sections ----

  // Runs the instructions of `section` that belong to micro-step `kind` (kind counts in kMicroStep
  // only), or hands them to streams that do. `repetition` is what the trace says.
  void Run(Section section, When kind = kOnly, int repetition = 0);
  // Returns once all that was run is over, but for what the program carries into the next step.
  // Throws what failed of it. Returns what the compute stream waited for since the last call.
  virtual StepTimes Finish() { return {}; }
  // Run and Finish.
  void Complete(Section section) {
    Run(section);
    Finish();
  }
  // Completes section drain if a step ran since it last did.
  void Drain();
  // This rank has failed, of `cause`, and runs nothing any more: lets go whoever waits for it, so
  // that no rank waits for ever.
  virtual void Abort(const std::exception_ptr& cause) noexcept = 0;

  // ---- for the watch (watch.h); from any thread ----

  // What its threads are at.
  virtual Standing standing() const = 0;
  // Changes whenever one of them gets anywhere.
  virtual uint64_t moves() const noexcept { return place_.moves(); }
  // What a library has found wrong meanwhile; empty: nothing.
  virtual std::string Problem() const { return {}; }
  // Fails with `cause` what waits for others here, or will.
  virtual void Interrupt(const std::exception_ptr& cause) noexcept = 0;
  // A call of the engine is over on this rank.
  void Idle() noexcept { place_.Turn(Doing::kNothing); }

  // ---- what sections take and leave; in memory of the host ----

  // Where the accesses to checkpoints go.
  void BindCheckpoint(const CheckpointBinding& binding) { files().Bind(binding); }
  // What section save has left in the copy that the program saves from; any thread.
  void WriteSaveCopy(StateSink& sink) const;
  // Writes a batch's inputs and targets, B*T each, once those of the micro-step before were taken.
  void FillTokens(const FillBatch& fill, int64_t micro_step);
  // Targets filled since the last call that do not count (those below 0).
  int64_t TakeUncounted() { return std::exchange(uncounted_, 0); }
  std::span<int32_t> inputs();
  // The host's copy of the step state.
  StepState& host_state();
  // The row that section generate left, as fp32.
  std::vector<float> LogitsRow();

  // ---- reports: see Engine's of the same names ----

  const std::array<uint64_t, kSpaces>& touched_bytes() const { return touched_bytes_; }
  Engine::Traffic TakeTraffic();
  const std::vector<ExecutedInstruction>& executed() const { return executed_; }
  virtual std::vector<TraceSpan> spans() const = 0;
  virtual std::optional<uint64_t> DeviceUsedBytes() const { return std::nullopt; }
  virtual std::array<uint64_t, kSpaces> PatternHighWater() const = 0;
  // The bytes stay until the next call for this buffer.
  virtual std::span<const std::byte> Peek(BufferId buffer) = 0;

 protected:
  // `program` outlives it.
  RankRunner(const Program& program, int rank, bool record_trace);

  virtual void Issue(Section section, When kind, int repetition) = 0;
  // Returns once the tokens in host memory have been taken.
  virtual void AwaitTokens() {}
  // Writes the number of the first sequence of a micro-step of the coming step.
  void NumberSequences(int64_t micro_step);
  // Fills Program::row_places and head_tokens for a batch.
  void FillTokenRows(std::span<const int32_t> input);
  virtual RankFiles& files() = 0;
  virtual const ArenaBases& bases() const = 0;

  // What Issue tells of each instruction.
  void NoteExecuted(Section section, size_t index, int repetition,
                    const ResolvedInstruction& resolved) {
    for (size_t space = 0; space < touched_bytes_.size(); ++space) {
      touched_bytes_[space] = std::max(touched_bytes_[space], resolved.touched_end[space]);
    }
    if (record_trace_) executed_.push_back({section, static_cast<int32_t>(index), repetition});
  }
  void NoteTraffic(const Collective& collective, const ResolvedInstruction& resolved) {
    (collective.scalar ? traffic_.scalar_bytes : traffic_.collective_bytes) += resolved.bytes;
  }
  void NoteTraffic(const Copy& copy, const ResolvedInstruction& resolved);

  // "instruction 17 of section micro_step, micro-step 2: ..."
  std::string InstructionText(const Standpoint& at) const;
  // What the rank's own thread is at, in words.
  std::string PlaceText() const;

  // Instructions that a trace has room for before it grows.
  static constexpr size_t kTraceReserve = 1u << 14;

  const Program& program_;
  const int rank_;
  const bool record_trace_;
  RankPlace place_;  // of the rank's own thread

 private:
  // Memory that callers reach between sections, whether the program keeps it allocated then or not.
  std::span<std::byte> HostBytes(BufferId id);

  bool carries_work_ = false;  // a step ran, and no drain since
  int64_t uncounted_ = 0;
  std::vector<int32_t> row_places_;   // by token; empty: the embedding has no rows of its own
  std::vector<int32_t> head_tokens_;  // of the head's rows, with those of padding
  std::array<uint64_t, kSpaces> touched_bytes_{};
  Engine::Traffic traffic_;  // but for the bytes of files
  std::vector<ExecutedInstruction> executed_;
};

}  // namespace zeroplan
