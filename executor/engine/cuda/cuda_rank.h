// One rank on its GPU: arenas, streams, libraries, and the issue of a section's instructions.
//
// The calling thread issues a section's instructions in list order: those of the GPU's streams to
// the GPU, those of the host's streams to a thread each. Until Finish, only streams wait for one
// another.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/program/collectives.h"
#include "core/program/program.h"
#include "executor/collectives/cuda/nccl_communicator.h"
#include "executor/device/cuda/cuda_arenas.h"
#include "executor/device/cuda/cuda_handles.h"
#include "executor/engine/cuda/graph_replay.h"
#include "executor/engine/cuda/host_streams.h"
#include "executor/engine/cuda/step_clock.h"
#include "executor/engine/engine.h"
#include "executor/engine/rank_runner.h"
#include "executor/engine/resolve.h"
#include "executor/kernels/cuda/attention/attention_plans.h"
#include "executor/kernels/cuda/cuda_launch.h"
#include "executor/kernels/cuda/gemm/gemm_plans.h"
#include "executor/kernels/thread_pool.h"
#include "executor/process/process_group.h"

namespace zeroplan {

class CudaRank final : public RankRunner {
 public:
  // Makes GPU `device` current, allocates the arenas, joins the communicators, chooses algorithms.
  // All ranks of options.group do so at once. `program` and the group must outlive it.
  CudaRank(const Program& program, const EngineOptions& options, int device);
  ~CudaRank() override;

  StepTimes Finish() override;
  void Abort(const std::exception_ptr& cause) noexcept override;

  Standing standing() const override;
  uint64_t moves() const noexcept override;
  std::string Problem() const override;
  void Interrupt(const std::exception_ptr& cause) noexcept override;

  std::vector<TraceSpan> spans() const override { return clock_->spans(); }
  std::optional<uint64_t> DeviceUsedBytes() const override;
  std::array<uint64_t, kSpaces> PatternHighWater() const override;
  std::span<const std::byte> Peek(BufferId buffer) override;

 protected:
  void Issue(Section section, When kind, int repetition) override;
  void AwaitTokens() override;
  RankFiles& files() override { return files_; }
  const ArenaBases& bases() const override { return bases_; }

 private:
  void Prepare();
  void IssueAll(Section section, When kind, int repetition);
  void NoteIssue(const Instruction& instruction);
  void IssueOnGpu(Section section, size_t index);
  void Dispatch(const Instruction& instruction, const ResolvedInstruction& resolved);
  void Launch(const LaunchKernel& launch, const ResolvedInstruction& resolved, Stream stream);
  void IssueCollective(const Collective& collective, const ResolvedInstruction& resolved,
                       Stream stream);
  void IssueCopy(const Copy& copy, const ResolvedInstruction& resolved, Stream stream);
  void IssueWait(EventId event, Stream stream);
  void Poll(cudaEvent_t event);
  void LetGo() noexcept;
  void ThrowIfInterrupted() const;
  // " of its streams, compute and reduce are not done"; empty if the driver does not answer.
  std::string BusyStreams() const;
  uint64_t CollectivesOf(Section section, When kind);
  cudaStream_t stream(Stream s) const { return streams_[static_cast<size_t>(s)].get(); }

  SingleProcess alone_;  // the group if options have none
  ProcessGroup& group_;
  const int device_;
  ThreadPool pool_;
  const CudaArenas arenas_;
  const ArenaBases bases_;
  const ResolvedProgram resolved_;
  RankFiles files_;
  std::array<CudaStream, kStreams> streams_;  // null for the host's streams
  GemmPlans gemm_;
  AttentionPlans attention_;
  std::array<CudaLaunch, kStreams> launches_;
  std::array<KernelContext, kStreams> contexts_;
  std::map<CommunicatorKey, NcclCommunicator> communicators_;  // all that the program needs
  EventTable events_;
  CudaEvent finished_;       // recorded on compute
  CudaEvent tokens_copied_;  // recorded after the last micro-step's tokens were copied
  CudaEvent before_copy_;    // the host waits for it before a copy of pageable memory
  bool tokens_under_way_ = false;
  bool aborted_ = false;
  std::atomic<bool> interrupted_{false};
  std::exception_ptr interruption_;  // set before interrupted_
  // number of collectives in sections that are replayed whole
  std::map<std::pair<Section, When>, uint64_t> collectives_;
  std::map<BufferId, std::vector<std::byte>> peeked_;
  // Made when the streams exist and are idle.
  std::optional<StepClock> clock_;
  std::optional<GraphReplay> graphs_;
  std::optional<HostStreams> host_;  // last, because its threads use the other members
};

}  // namespace zeroplan
