// One rank of a run. Engine implements the sequence of a step, of saving and of evaluating over
// this interface; each backend implements how a section's instructions run and when they have
// ended.
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

// A rank's file accesses: its swap file, and the shards that checkpoints read and write.

// ---- a rank's shards between checkpoints, which have tensors, and memory, which has units ----

// Reads elements [begin, begin + count) of rank `rank`'s shard of a unit; padding reads as 0.
// `source` null: fresh states, all 0. REQUIRES: out.size() >= count.
void ReadShard(const ParamLayout& layout, const FileIo& io, int rank, const StateSource* source,
               std::span<float> out);

// Writes the tensors' part of the same range to `sink`.
void WriteShard(const ParamLayout& layout, const FileIo& io, int rank,
                std::span<const float> values, StateSink& sink);

// The source and sink of a section's checkpoint accesses.
struct CheckpointBinding {
  const StateSource* source = nullptr;
  bool with_optimizer = true;  // false: Adam states read as 0
  StateSink* sink = nullptr;
  bool later = false;  // writes nothing, because RankRunner::WriteSaveCopy will
};

// Runs a checkpoint's FileIo on its staging memory, io.count floats. REQUIRES: `binding` has the
// source or sink that it needs.
void RunCheckpointIo(const Program& program, const FileIo& io, int rank,
                     const CheckpointBinding& binding, std::span<float> host);

class RankFiles {
 public:
  // `program` and `swap` must outlive it.
  RankFiles(const Program& program, int rank, const SwapFile& swap)
      : program_(program), rank_(rank), swap_(swap) {}

  // Sets the target of later checkpoint accesses. REQUIRES: no access is under way.
  void Bind(const CheckpointBinding& binding) { binding_ = binding; }

  // Moves bytes between the file and the host memory that `io` names. Any thread, one at a time for
  // each FileIo::stream(): other parts of the swap file are read while it is written.
  void Run(const FileIo& io, const ResolvedInstruction& resolved);

  // Bytes of the swap file moved since the last call.
  uint64_t TakeReadBytes() { return read_bytes_.exchange(0); }
  uint64_t TakeWrittenBytes() { return written_bytes_.exchange(0); }

 private:
  void RunSwap(const FileIo& io, const ResolvedInstruction& resolved);

  const Program& program_;
  const int rank_;
  const SwapFile& swap_;
  CheckpointBinding binding_;
  // Atomic, because a host thread counts while another takes the counts.
  std::atomic<uint64_t> read_bytes_{0}, written_bytes_{0};
};

// REQUIRES: every call comes from the rank's own thread, except for the reports, which another
// thread may read while no section runs.
class RankRunner {
 public:
  virtual ~RankRunner() = default;
  RankRunner(const RankRunner&) = delete;
  RankRunner& operator=(const RankRunner&) = delete;

  // ---- sections ----

  // Runs the instructions of `section` that belong to micro-step `kind` (kind counts in kMicroStep
  // only), or issues them to streams. `repetition`: the number in the trace.
  void Run(Section section, When kind = kOnly, int repetition = 0);
  // Returns once all issued work has ended, except for work that the program carries into the next
  // step. Throws its failure. Returns the waits of the compute stream since the last call.
  virtual StepTimes Finish() { return {}; }
  // Run and Finish.
  void Complete(Section section) {
    Run(section);
    Finish();
  }
  // Completes section drain if a step ran since the last drain.
  void Drain();
  // Marks this rank as failed with `cause`, so that it runs nothing any more, and releases all
  // ranks that wait for it.
  virtual void Abort(const std::exception_ptr& cause) noexcept = 0;

  // ---- for the watch (watch.h); from any thread ----

  // The present activity of its threads.
  virtual Standing standing() const = 0;
  // Changes whenever one of its threads progresses.
  virtual uint64_t moves() const noexcept { return place_.moves(); }
  // An asynchronous error of a library; empty: none.
  virtual std::string Problem() const { return {}; }
  // Fails with `cause` all calls that wait for others here, now and later.
  virtual void Interrupt(const std::exception_ptr& cause) noexcept = 0;
  // Marks the end of an engine call on this rank.
  void Idle() noexcept { place_.Turn(Doing::kNothing); }

  // ---- inputs and outputs of sections; in host memory ----

  // Sets the target of checkpoint accesses.
  void BindCheckpoint(const CheckpointBinding& binding) { files().Bind(binding); }
  // Writes from the program's save copy, filled by section save; any thread.
  void WriteSaveCopy(StateSink& sink) const;
  // Writes a batch's inputs and targets, B*T each, once those of the previous micro-step were
  // copied.
  void FillTokens(const FillBatch& fill, int64_t micro_step);
  // Targets below 0, which do not count, filled since the last call.
  int64_t TakeUncounted() { return std::exchange(uncounted_, 0); }
  std::span<int32_t> inputs();
  // The host's copy of the step state.
  StepState& host_state();
  // The values of a host buffer in F64.
  std::vector<double> HostDoubles(BufferId buffer);
  // The row of logits from section generate, as fp32.
  std::vector<float> LogitsRow();

  // ---- reports: see Engine's methods of the same names ----

  const std::array<uint64_t, kSpaces>& touched_bytes() const { return touched_bytes_; }
  Engine::Traffic TakeTraffic();
  const std::vector<ExecutedInstruction>& executed() const { return executed_; }
  virtual std::vector<TraceSpan> spans() const = 0;
  virtual std::optional<uint64_t> DeviceUsedBytes() const { return std::nullopt; }
  virtual std::array<uint64_t, kSpaces> PatternHighWater() const = 0;
  // The bytes stay valid until the next call for this buffer.
  virtual std::span<const std::byte> Peek(BufferId buffer) = 0;

 protected:
  // `program` must outlive it.
  RankRunner(const Program& program, int rank, bool record_trace);

  virtual void Issue(Section section, When kind, int repetition) = 0;
  // Returns once the tokens in host memory have been copied.
  virtual void AwaitTokens() {}
  // Writes the number of the first sequence of a micro-step of the next step.
  void NumberSequences(int64_t micro_step);
  // Fills Program::row_places and head_tokens for a batch.
  void FillTokenRows(std::span<const int32_t> input);
  virtual RankFiles& files() = 0;
  virtual const ArenaBases& bases() const = 0;

  // Issue calls it for each instruction.
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
  // The place of the rank's own thread, as text.
  std::string PlaceText() const;

  // Number of instructions that a trace reserves.
  static constexpr size_t kTraceReserve = 1u << 14;

  const Program& program_;
  const int rank_;
  const bool record_trace_;
  RankPlace place_;  // place of the rank's own thread

 private:
  // Memory that callers access between sections, whether or not the program keeps it allocated
  // then.
  std::span<std::byte> HostBytes(BufferId id);

  bool carries_work_ = false;  // a step ran, and no drain since
  int64_t uncounted_ = 0;
  std::vector<int32_t> row_places_;   // by token; empty: the embedding has no single-token rows
  std::vector<int32_t> head_tokens_;  // tokens of the head's single-token rows, padding included
  std::array<uint64_t, kSpaces> touched_bytes_{};
  Engine::Traffic traffic_;  // except the bytes of files
  std::vector<ExecutedInstruction> executed_;
};

}  // namespace zeroplan
