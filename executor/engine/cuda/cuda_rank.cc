#include "executor/engine/cuda/cuda_rank.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>
#include <variant>

#include "core/base/error.h"
#include "executor/collectives/barrier.h"
#include "executor/engine/checkpoint_io.h"

namespace zeroplan {
namespace {

int HostThreads(const EngineOptions& options, const ProcessGroup& group) {
  if (options.threads_per_rank > 0) return options.threads_per_rank;
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / std::max(1, group.place().local_world_size));
}

int MultiprocessorCount(int device) {
  int count = 0;
  ZEROPLAN_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

// A thread that waits for something near: first it keeps asking, then it lets others work.
class Patience {
 public:
  void Pause() {
    if (++asked_ < kSpins) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  int asked() const { return asked_; }

 private:
  static constexpr int kSpins = 2000;
  int asked_ = 0;
};

// Makes the device current before anything is allocated on it.
int UseDevice(int device) {
  ZEROPLAN_CUDA(cudaSetDevice(device));
  return device;
}

}  // namespace

CudaRank::CudaRank(const Program& program, const EngineOptions& options, ProcessGroup& group,
                   int device)
    : program_(program),
      group_(group),
      rank_(group.rank()),
      record_trace_(options.record_trace),
      device_(UseDevice(device)),
      pool_(HostThreads(options, group)),
      arenas_(program, group.rank(), options.swap_dir, pool_.threads()),
      bases_(arenas_.bases()),
      resolved_(program, bases_, CudaKernels(), group.rank(), group.world_size()),
      gemm_(device_, DefaultCacheFolder()),
      attention_(device_, options.deterministic),
      events_(program),
      finished_(MakeEvent(false)),
      tokens_copied_(MakeEvent(false)),
      before_copy_(MakeEvent(false)) {
  for (int s = 0; s < kStreams; ++s) {
    const auto stream = static_cast<Stream>(s);
    const auto i = static_cast<size_t>(s);
    KernelContext& context = contexts_[i];
    context.program = &program;
    context.rank = rank_;
    context.seed = options.seed;
    context.pool = &pool_;
    if (OnHost(stream)) continue;
    // Collectives and copies are what others wait for.
    streams_[i] = MakeStream(stream != Stream::kCompute);
    launches_[i] = {streams_[i].get(), MultiprocessorCount(device_), &gemm_, &attention_};
    context.cuda = &launches_[i];
  }
  if (world_size() > 1) {
    gather_.emplace(group);
    reduce_.emplace(group);
  }
  Prepare();
  clock_ = std::make_unique<StepClock>(stream(Stream::kCompute), record_trace_);
}

CudaRank::~CudaRank() {
  aborted_.store(true);
  if (!host_.failed() && !storage_.failed()) return;
  Abort();
}

void CudaRank::Abort() noexcept {
  aborted_.store(true);
  events_.ReleaseAll();
  if (gather_) gather_->Abort();
  if (reduce_) reduce_->Abort();
}

// Algorithms and plans of every launch, while the arenas hold nothing yet.
void CudaRank::Prepare() {
  const KernelTable& kernels = CudaKernels();
  for (int s = 0; s < kSections; ++s) {
    const auto section = static_cast<Section>(s);
    const std::vector<Instruction>& instructions = program_.section(section);
    for (size_t i = 0; i < instructions.size(); ++i) {
      const auto* launch = std::get_if<LaunchKernel>(&instructions[i].op);
      if (launch == nullptr || OnHost(instructions[i].stream)) continue;
      const KernelFn prepare = kernels.prepare[static_cast<size_t>(launch->kernel)];
      if (prepare == nullptr) continue;
      prepare({launch->kernel, launch->flags, launch->dims,
               resolved_.args(resolved_.section(section)[i]),
               contexts_[static_cast<size_t>(instructions[i].stream)], launch->scalars});
    }
  }
  ZEROPLAN_CUDA(cudaDeviceSynchronize());
}

void CudaRank::Issue(Section section, When kind, int repetition) {
  if (replays_ && (section == Section::kMicroStep || section == Section::kOptimizerStep)) {
    Replay(section, kind, repetition);
  } else {
    IssueAll(section, kind, repetition);
  }
}

void CudaRank::ReplayGraphs() {
  const ZeroConfig& zero = program_.setup.zero;
  replays_ = world_size() == 1 && !record_trace_ &&
             zero.offload_optimizer.device == OffloadDevice::kNone &&
             zero.offload_param.device == OffloadDevice::kNone;
}

// All streams fork from compute at a section's begin and join it at its end, so capturing compute
// captures them all.
void CudaRank::Replay(Section section, When kind, int repetition) {
  CudaGraphExec& replayed = graphs_[{section, kind}];
  cudaStream_t compute = stream(Stream::kCompute);
  if (replayed == nullptr) {
    ZEROPLAN_CUDA(cudaStreamBeginCapture(compute, cudaStreamCaptureModeThreadLocal));
    capturing_ = true;
    IssueAll(section, kind, repetition);
    capturing_ = false;
    cudaGraph_t captured = nullptr;
    ZEROPLAN_CUDA(cudaStreamEndCapture(compute, &captured));
    const CudaGraph graph(captured);
    cudaGraphExec_t exec = nullptr;
    ZEROPLAN_CUDA(cudaGraphInstantiate(&exec, captured, 0));
    replayed.reset(exec);
  }
  ZEROPLAN_CUDA(cudaGraphLaunch(replayed.get(), compute));
  if (section == Section::kMicroStep) tokens_under_way_ = true;
}

void CudaRank::IssueAll(Section section, When kind, int repetition) {
  const std::vector<Instruction>& instructions = program_.section(section);
  for (size_t i = 0; i < instructions.size(); ++i) {
    if (section == Section::kMicroStep && (instructions[i].when & kind) == 0) continue;
    if (OnHost(instructions[i].stream)) {
      IssueOnHost(section, i);
    } else {
      IssueOnGpu(section, i);
    }
    const ResolvedInstruction& resolved = resolved_.section(section)[i];
    for (size_t space = 0; space < touched_bytes_.size(); ++space) {
      touched_bytes_[space] = std::max(touched_bytes_[space], resolved.touched_end[space]);
    }
    if (record_trace_) executed_.push_back({section, static_cast<int32_t>(i), repetition});
  }
}

void CudaRank::IssueOnGpu(Section section, size_t index) {
  const Instruction& instruction = program_.section(section)[index];
  const bool event = std::holds_alternative<RecordEvent>(instruction.op) ||
                     std::holds_alternative<WaitEvent>(instruction.op);
  const bool span = record_trace_ && !event && !std::holds_alternative<Alloc>(instruction.op) &&
                    !std::holds_alternative<Free>(instruction.op);
  if (span) clock_->BeginSpan(stream(instruction.stream), section, static_cast<int32_t>(index));
  try {
    Dispatch(instruction, resolved_.section(section)[index]);
  } catch (const std::exception& failure) {
    ThrowRuntime("{}\n  section {}, instruction {}: {}", failure.what(), SectionName(section),
                 index, FormatInstruction(program_, instruction));
  }
  if (span) clock_->EndSpan(stream(instruction.stream));
}

void CudaRank::Dispatch(const Instruction& instruction, const ResolvedInstruction& resolved) {
  const Stream s = instruction.stream;
  std::visit(Overload{
                 [&](const LaunchKernel& launch) { Launch(launch, resolved, s); },
                 [&](const Collective& collective) { IssueCollective(collective, resolved, s); },
                 [&](const Copy& copy) { IssueCopy(copy, resolved, s); },
                 [&](const FileIo&) { ZEROPLAN_CHECK(false, "file access on {}", StreamName(s)); },
                 // The arena is there already: these are what the plan counts.
                 [](const Alloc&) {},
                 [](const Free&) {},
                 [&](const RecordEvent& record) { events_.RecordOn(stream(s), record.event); },
                 [&](const WaitEvent& wait) { IssueWait(wait.event, s); },
             },
             instruction.op);
}

void CudaRank::Launch(const LaunchKernel& launch, const ResolvedInstruction& resolved, Stream s) {
  CudaKernels().rows[static_cast<size_t>(launch.kernel)](
      {launch.kernel, launch.flags, launch.dims, resolved_.args(resolved),
       contexts_[static_cast<size_t>(s)], launch.scalars});
  ZEROPLAN_CUDA(cudaPeekAtLastError());
}

void CudaRank::IssueCollective(const Collective& collective, const ResolvedInstruction& resolved,
                               Stream s) {
  std::optional<NcclCommunicator>& communicator = s == Stream::kGather ? gather_ : reduce_;
  ZEROPLAN_CHECK(communicator.has_value(), "a collective of one rank");
  communicator->Issue({collective.kind, collective.dtype, resolved_.segments(resolved)}, stream(s));
  (collective.scalar ? traffic_.scalar_bytes : traffic_.collective_bytes) += resolved.bytes;
}

void CudaRank::IssueCopy(const Copy& copy, const ResolvedInstruction& resolved, Stream s) {
  const auto pageable = [&](const Ref& ref) {
    return program_.buffers[ref.buffer].space == Space::kPageable;
  };
  if (pageable(copy.src) || pageable(copy.dst)) {
    // The driver may read pageable memory when it is called, not when the stream gets there.
    ZEROPLAN_CUDA(cudaEventRecord(before_copy_.get(), stream(s)));
    Poll(before_copy_.get());
  }
  ZEROPLAN_CUDA(
      cudaMemcpyAsync(resolved.dst, resolved.src, resolved.bytes, cudaMemcpyDefault, stream(s)));
  const bool from_device = program_.buffers[copy.src.buffer].space == Space::kDevice;
  const bool to_device = program_.buffers[copy.dst.buffer].space == Space::kDevice;
  if (to_device && !from_device) traffic_.host_to_device_bytes += resolved.bytes;
  if (from_device && !to_device) traffic_.device_to_host_bytes += resolved.bytes;
  if (copy.src.buffer == program_.tokens_host_buffer) {
    // External: the host asks for it, whether it is recorded by a graph or directly.
    ZEROPLAN_CUDA(
        cudaEventRecordWithFlags(tokens_copied_.get(), stream(s),
                                 capturing_ ? cudaEventRecordExternal : cudaEventRecordDefault));
    tokens_under_way_ = true;
  }
}

void CudaRank::IssueWait(EventId event, Stream s) {
  const Stream recorder = events_.recorder(event);
  if (s != Stream::kCompute || capturing_) {
    events_.WaitOn(stream(s), event);
    return;
  }
  const bool communication = recorder == Stream::kGather || recorder == Stream::kReduce;
  clock_->BeginWait(stream(s),
                    communication ? StepClock::Cause::kCommunication : StepClock::Cause::kOffload);
  events_.WaitOn(stream(s), event);
  clock_->EndWait(stream(s));
}

void CudaRank::IssueOnHost(Section section, size_t index) {
  const Instruction& instruction = program_.section(section)[index];
  HostWorker& on = worker(instruction.stream);
  if (const auto* record = std::get_if<RecordEvent>(&instruction.op)) {
    const uint32_t number = events_.IssueRecord(record->event);
    on.Post([this, event = record->event, number] { events_.Signal(event, number); });
    return;
  }
  if (const auto* wait = std::get_if<WaitEvent>(&instruction.op)) {
    const uint32_t number = events_.IssuedSoFar(wait->event);
    on.Post([this, event = wait->event, number] { WaitOnHost(event, number); });
    return;
  }
  on.Post([this, section, index] {
    const double begin = record_trace_ ? clock_->HostSeconds() : 0;
    DispatchOnHost(program_.section(section)[index], resolved_.section(section)[index]);
    if (record_trace_) {
      clock_->AddHostSpan({section, static_cast<int32_t>(index), begin, clock_->HostSeconds()});
    }
  });
}

void CudaRank::DispatchOnHost(const Instruction& instruction, const ResolvedInstruction& resolved) {
  std::visit(Overload{
                 [&](const LaunchKernel& launch) {
                   CpuKernels().rows[static_cast<size_t>(launch.kernel)](
                       {launch.kernel, launch.flags, launch.dims, resolved_.args(resolved),
                        contexts_[static_cast<size_t>(Stream::kHost)], launch.scalars});
                 },
                 [&](const Collective&) { ZEROPLAN_CHECK(false, "a collective on the host"); },
                 [&](const Copy&) { std::memcpy(resolved.dst, resolved.src, resolved.bytes); },
                 [&](const FileIo& io) { RunFileIo(io, resolved); },
                 [](const Alloc&) {},
                 [](const Free&) {},
                 [](const RecordEvent&) {},
                 [](const WaitEvent&) {},
             },
             instruction.op);
}

void CudaRank::RunFileIo(const FileIo& io, const ResolvedInstruction& resolved) {
  switch (io.target) {
    case FileTarget::kSwap: {
      const std::span<std::byte> host(resolved.src, resolved.bytes);
      if (io.write) {
        arenas_.file().Write(resolved.file_offset, host);
        file_write_bytes_ += resolved.bytes;
      } else {
        arenas_.file().Read(resolved.file_offset, host);
        file_read_bytes_ += resolved.bytes;
      }
      return;
    }
    case FileTarget::kCheckpoint:
      RunCheckpointIo(program_, io, rank_, checkpoint_,
                      {reinterpret_cast<float*>(resolved.src), io.count});
      return;
  }
}

void CudaRank::WaitOnHost(EventId event, uint32_t number) const {
  Patience patience;
  while (!events_.Reached(event, number)) {
    if (aborted_.load(std::memory_order_relaxed)) throw GroupAborted();
    patience.Pause();
  }
  if (aborted_.load(std::memory_order_relaxed)) throw GroupAborted();
}

void CudaRank::Poll(cudaEvent_t event) {
  Patience patience;
  while (true) {
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaSuccess) return;
    if (status != cudaErrorNotReady) ZEROPLAN_CUDA(status);
    host_.RethrowFailure();
    storage_.RethrowFailure();
    if (group_.failed()) throw Error(ExitCode::kRuntime, group_.failure());
    if (patience.asked() % 1024 == 1023) {
      if (gather_) gather_->CheckAsyncError();
      if (reduce_) reduce_->CheckAsyncError();
    }
    patience.Pause();
  }
}

void CudaRank::Finish() {
  ZEROPLAN_CUDA(cudaEventRecord(finished_.get(), stream(Stream::kCompute)));
  Poll(finished_.get());
  host_.RethrowFailure();
  storage_.RethrowFailure();
}

void CudaRank::Run(Section section) {
  Issue(section);
  Finish();
}

void CudaRank::FillTokens(const FillBatch& fill, int64_t micro_step) {
  if (tokens_under_way_) Poll(tokens_copied_.get());
  tokens_under_way_ = false;
  const std::span<int32_t> input = inputs();
  fill(rank_, micro_step, input, {input.data() + input.size(), input.size()});
}

std::span<std::byte> CudaRank::HostBytes(BufferId id) {
  ZEROPLAN_CHECK(id != kNoBuffer, "the program has no such buffer");
  const Buffer& buffer = program_.buffers[id];
  ZEROPLAN_CHECK(buffer.space != Space::kDevice && buffer.space != Space::kFile,
                 "{} is not in host memory", BufferName(buffer));
  return {bases_[static_cast<size_t>(buffer.space)] + buffer.offset, buffer.bytes};
}

StepState& CudaRank::host_state() {
  return *reinterpret_cast<StepState*>(HostBytes(program_.state_host_buffer).data());
}

std::span<int32_t> CudaRank::inputs() {
  const std::span<std::byte> bytes = HostBytes(program_.tokens_host_buffer);
  return {reinterpret_cast<int32_t*>(bytes.data()), bytes.size() / sizeof(int32_t) / 2};
}

Engine::Traffic CudaRank::TakeTraffic() {
  Engine::Traffic taken = std::exchange(traffic_, {});
  taken.file_read_bytes = file_read_bytes_.exchange(0);
  taken.file_write_bytes = file_write_bytes_.exchange(0);
  return taken;
}

}  // namespace zeroplan
