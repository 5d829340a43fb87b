// One rank on its GPU: arenas, streams, libraries, and what issues a section's instructions.
//
// The calling thread issues a section's instructions in list order: those of the GPU's streams to
// the GPU, those of `host` and `storage` to a thread each. Nothing is waited for but by streams
// among themselves, until Finish.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/program/program.h"
#include "executor/collectives/cuda/nccl_communicator.h"
#include "executor/device/cuda/cuda_arenas.h"
#include "executor/device/cuda/cuda_handles.h"
#include "executor/engine/checkpoint_io.h"
#include "executor/engine/cuda/event_table.h"
#include "executor/engine/cuda/host_worker.h"
#include "executor/engine/cuda/step_clock.h"
#include "executor/engine/engine.h"
#include "executor/engine/resolve.h"
#include "executor/kernels/cuda/attention/attention_plans.h"
#include "executor/kernels/cuda/cuda_launch.h"
#include "executor/kernels/cuda/gemm/gemm_plans.h"
#include "executor/kernels/thread_pool.h"
#include "executor/process/process_group.h"

namespace zeroplan {

class CudaRank {
 public:
  // Takes GPU `device`, allocates the arenas, joins the communicators, chooses algorithms. All
  // ranks of `group` do so at once. `program`, `options` and `group` outlive it.
  CudaRank(const Program& program, const EngineOptions& options, ProcessGroup& group, int device);
  ~CudaRank();
  CudaRank(const CudaRank&) = delete;
  CudaRank& operator=(const CudaRank&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return group_.world_size(); }

  // Issues the instructions of `section` that belong to micro-step `kind`.
  void Issue(Section section, When kind = kOnly, int repetition = 0);
  // From now on micro-steps and updates replay as CUDA graphs where they can: where one rank
  // offloads nothing. (Then no event is carried from one section to another, which a graph could
  // not wait for, no copy needs the host, and there are no waits to measure.) Saves the gaps
  // between kernels, and the time to issue them.
  void ReplayGraphs();
  // Returns once the compute stream has done all that was issued, and with it all that sections
  // join at their ends. Throws what a host stream threw, what NCCL found, or the first failed
  // rank's message.
  void Finish();
  // Issue and Finish.
  void Run(Section section);

  void BindCheckpoint(const CheckpointBinding& binding) { checkpoint_ = binding; }
  // Waits until the tokens of the micro-step before are on the GPU, then fills the next.
  void FillTokens(const FillBatch& fill, int64_t micro_step);
  // Memory that callers reach while nothing is under way.
  std::span<std::byte> HostBytes(BufferId id);
  StepState& host_state();
  std::span<int32_t> inputs();

  // Lets go whatever waits, here and on the GPU: after a failure.
  void Abort() noexcept;

  const std::array<uint64_t, kSpaces>& touched_bytes() const { return touched_bytes_; }
  Engine::Traffic TakeTraffic();
  StepClock& clock() { return *clock_; }
  const std::vector<ExecutedInstruction>& executed() const { return executed_; }
  const ArenaBases& bases() const { return bases_; }
  const CudaArenas& arenas() const { return arenas_; }

 private:
  void Prepare();
  void IssueAll(Section section, When kind, int repetition);
  void Replay(Section section, When kind, int repetition);
  void IssueOnGpu(Section section, size_t index);
  void IssueOnHost(Section section, size_t index);
  void Dispatch(const Instruction& instruction, const ResolvedInstruction& resolved);
  void DispatchOnHost(const Instruction& instruction, const ResolvedInstruction& resolved);
  void Launch(const LaunchKernel& launch, const ResolvedInstruction& resolved, Stream stream);
  void IssueCollective(const Collective& collective, const ResolvedInstruction& resolved,
                       Stream stream);
  void IssueCopy(const Copy& copy, const ResolvedInstruction& resolved, Stream stream);
  void IssueWait(EventId event, Stream stream);
  void RunFileIo(const FileIo& io, const ResolvedInstruction& resolved);
  void Poll(cudaEvent_t event);
  void WaitOnHost(EventId event, uint32_t number) const;
  cudaStream_t stream(Stream s) const { return streams_[static_cast<size_t>(s)].get(); }
  HostWorker& worker(Stream s) { return s == Stream::kHost ? host_ : storage_; }

  const Program& program_;
  ProcessGroup& group_;
  const int rank_;
  const bool record_trace_;
  const int device_;
  ThreadPool pool_;
  const CudaArenas arenas_;
  const ArenaBases bases_;
  const ResolvedProgram resolved_;
  std::array<CudaStream, kStreams> streams_;  // null for the host's
  GemmPlans gemm_;
  AttentionPlans attention_;
  std::array<CudaLaunch, kStreams> launches_;
  std::array<KernelContext, kStreams> contexts_;
  std::optional<NcclCommunicator> gather_, reduce_;
  EventTable events_;
  std::unique_ptr<StepClock> clock_;
  CudaEvent finished_;       // on compute
  CudaEvent tokens_copied_;  // the last micro-step's tokens
  CudaEvent before_copy_;    // a copy of pageable memory waits for it on the host
  bool tokens_under_way_ = false;
  bool replays_ = false;    // ReplayGraphs was called
  bool capturing_ = false;  // what is issued becomes part of a graph
  std::map<std::pair<Section, When>, CudaGraphExec> graphs_;
  CheckpointBinding checkpoint_;
  std::array<uint64_t, kSpaces> touched_bytes_{};
  Engine::Traffic traffic_;
  std::atomic<uint64_t> file_read_bytes_{0}, file_write_bytes_{0};
  std::vector<ExecutedInstruction> executed_;
  std::atomic<bool> aborted_{false};
  HostWorker host_, storage_;  // last: their threads use the rest
};

}  // namespace zeroplan
