#include "executor/engine/cuda/cuda_rank.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <variant>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/thread.h"
#include "core/program/step_order.h"
#include "core/settings/setup_facts.h"
#include "executor/device/cuda/cuda_handles.h"
#include "executor/engine/cuda/arena_pattern.h"
#include "executor/engine/local_ranks.h"
#include "executor/kernels/cuda/library_check.h"
#include "machine/detect.h"

namespace zeroplan {

namespace {

int RankOf(const EngineOptions& options) {
  return options.group == nullptr ? 0 : options.group->rank();
}

int HostThreads(const EngineOptions& options, const ProcessPlace& place) {
  if (options.threads_per_rank > 0) return options.threads_per_rank;
  // A launcher may have bound each rank to cores of its own.
  const auto all = static_cast<int>(std::thread::hardware_concurrency());
  const int share = all / std::max(1, place.local_world_size);
  return std::max(1, std::min(share, QueryHost().cores));
}

int MultiprocessorCount(int device) {
  int count = 0;
  ZEROPLAN_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

// The device. Throws Error(kUsage) where it does not multiply as the program does.
int CheckProducts(const Program& program, int device) {
  const Fp8Config& fp8 = program.setup.precision.fp8;
  if (!fp8.enabled) return device;
  const std::string lacks = Fp8GpuLacks(fp8, ComputeCapabilityOf(device));
  if (lacks.empty()) return device;
  ThrowUsage("⟦matmul_dtype⟧ fp8 (_zeroplan.fp8.enabled true) is not allowed on GPU {}: {}; use {}",
             device, lacks, DtypeName(program.setup.precision.dtype));
}

// Makes the device current before anything is allocated on it.
int UseDevice(int device) {
  ZEROPLAN_CUDA(cudaSetDevice(device));
  return device;
}

}  // namespace

CudaRank::CudaRank(const Program& program, const EngineOptions& options, int device)
    : RankRunner(program, RankOf(options), options.record_trace),
      group_(options.group == nullptr ? alone_ : *options.group),
      device_(UseDevice(CheckProducts(program, device))),
      pool_(HostThreads(options, group_.place())),
      arenas_(program, rank_, options.swap_dir, pool_.threads(), options.pinned),
      bases_(arenas_.bases()),
      resolved_(program, bases_, CudaKernels(), rank_),
      files_(program, rank_, arenas_.file()),
      gemm_(device_, DefaultCacheFolder(), options.deterministic),
      attention_(device_, options.deterministic),
      events_(program),
      finished_(MakeEvent(false)),
      tokens_copied_(MakeEvent(false)),
      before_copy_(MakeEvent(false)) {
  attention_.LimitDocuments(options.documents);
  if (program.own_documents) attention_.UseOwnDocuments();
  for (int s = 0; s < kStreams; ++s) {
    const auto stream = static_cast<Stream>(s);
    const auto i = static_cast<size_t>(s);
    KernelContext& context = contexts_[i];
    context.program = &program;
    context.rank = rank_;
    context.seed = options.seed;
    context.fresh_weights = options.fresh_weights;
    context.pool = &pool_;
    if (OnHost(stream)) continue;
    // Collectives and copies are what others wait for.
    streams_[i] = MakeStream(stream != Stream::kCompute);
    launches_[i] = {streams_[i].get(), MultiprocessorCount(device_), &gemm_, &attention_};
    context.cuda = &launches_[i];
  }
  // A communicator takes memory: there are those of the program's collectives. Those of groups are
  // split from that of all ranks, over which a step's scalars are summed.
  for (const CommunicatorKey& key : CommunicatorsOf(program)) {
    const bool of_all = key.axis == RankAxis::kAll;
    const CommunicatorKey all{RankAxis::kAll, of_all ? key.stream : Stream::kReduce};
    NcclCommunicator& whole =
        communicators_.try_emplace(all, group_, options.communicator_seconds).first->second;
    if (of_all) continue;
    communicators_.try_emplace(key, group_, whole, program.axes(), key.axis,
                               options.communicator_seconds);
  }
  Prepare();
  clock_.emplace(stream(Stream::kCompute), record_trace_);
  // A trace has a span for each instruction, which a graph does not tell.
  graphs_.emplace(program, !record_trace_);
  host_.emplace(program, resolved_, contexts_[static_cast<size_t>(Stream::kHost)], events_, *clock_,
                files_);
  if (options.pattern_arenas) FillArenas(program, bases_, arenas_.file());
}

CudaRank::~CudaRank() {
  if (!aborted_ && interrupted_.load()) Abort(interruption_);
  if (!aborted_) {
    try {
      Drain();  // gathers under way would write to memory that is about to go
    } catch (...) {
      Abort(std::current_exception());
      try {
        LogWarning("rank {}: the end of the last step's update was not awaited", rank_);
      } catch (...) {
      }
    }
  }
  host_->Abort();
  if (host_->failed()) LetGo();
}

void CudaRank::Interrupt(const std::exception_ptr& cause) noexcept {
  if (interrupted_.load()) return;
  interruption_ = cause;
  interrupted_.store(true);
}

void CudaRank::ThrowIfInterrupted() const {
  if (interrupted_.load(std::memory_order_acquire)) std::rethrow_exception(interruption_);
}

// A thread that reads a batch, and the host's that run something, need nobody. One that issues may
// wait for room in the GPU's queue, behind a collective that others have not come to.
Standing CudaRank::standing() const {
  Standing standing{rank_, PlaceText(), place_.get().doing == Doing::kReadsBatch};
  for (const Stream stream : kHostStreams) {
    const Standpoint at = host_->place(stream).get();
    if (at.doing != Doing::kRuns && at.doing != Doing::kAwaitsEvent) continue;
    const bool runs = at.doing == Doing::kRuns;
    standing.doing += fmt::format("; its stream {} {} {}", StreamName(stream),
                                  runs ? "is at" : "waits for an event at", InstructionText(at));
    standing.holds_up = standing.holds_up || runs;
  }
  standing.doing += BusyStreams();
  return standing;
}

// The driver may be what is stuck: asked by a thread that nobody has to wait for.
std::string CudaRank::BusyStreams() const {
  std::vector<std::pair<std::string, cudaStream_t>> streams;
  for (int s = 0; s < kStreams; ++s) {
    const auto of = static_cast<Stream>(s);
    if (!OnHost(of)) streams.emplace_back(StreamName(of), stream(of));
  }
  const auto answer = std::make_shared<std::promise<std::string>>();
  std::future<std::string> busy = answer->get_future();
  try {
    StartThread("a question to the driver", [answer, streams, device = device_] {
      std::string names;
      cudaSetDevice(device);
      for (const auto& [name, stream] : streams) {
        if (cudaStreamQuery(stream) == cudaErrorNotReady) {
          names += (names.empty() ? "" : ", ") + name;
        }
      }
      answer->set_value(names);
    }).detach();
  } catch (const Error&) {
    return "";  // the rest of what is known is said all the same
  }
  if (busy.wait_for(std::chrono::seconds(1)) != std::future_status::ready) {
    return "; the driver does not answer";
  }
  const std::string names = busy.get();
  return names.empty() ? "; nothing is under way on its GPU" : "; under way on its GPU: " + names;
}

uint64_t CudaRank::moves() const noexcept {
  uint64_t moves = place_.moves();
  for (const Stream stream : kHostStreams) moves += host_->place(stream).moves();
  return moves;
}

std::string CudaRank::Problem() const {
  for (const auto& [key, communicator] : communicators_) {
    if (std::string problem = communicator.AsyncProblem(); !problem.empty()) return problem;
  }
  return {};
}

void CudaRank::Abort(const std::exception_ptr& cause) noexcept {
  // First: what follows may wait for this GPU, which may wait for ranks that do not know yet.
  FailOf(group_, cause);
  LetGo();
}

// Whatever waits, here and on the GPU.
void CudaRank::LetGo() noexcept {
  aborted_ = true;
  host_->Abort();
  events_.ReleaseAll();
  for (auto& [key, communicator] : communicators_) communicator.Abort();
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
  if (graphs_->ReplaysWhole(section)) {
    place_.Set(Doing::kRuns, section, 0, repetition);
    graphs_->LaunchWhole(section, kind, stream(Stream::kCompute),
                         [&] { IssueAll(section, kind, repetition); });
    place_.Set(Doing::kRuns, section, program_.section(section).size(), repetition);
    place_.CountCollectives(CollectivesOf(section, kind));
    if (section == Section::kMicroStep) tokens_under_way_ = true;
  } else {
    IssueAll(section, kind, repetition);
  }
  graphs_->Count(section);
}

uint64_t CudaRank::CollectivesOf(Section section, When kind) {
  const auto [found, added] = collectives_.try_emplace({section, kind}, 0);
  if (!added) return found->second;
  for (const Instruction& instruction : program_.section(section)) {
    if (RunsIn(instruction, section, kind) && std::holds_alternative<Collective>(instruction.op)) {
      ++found->second;
    }
  }
  return found->second;
}

void CudaRank::IssueAll(Section section, When kind, int repetition) {
  const std::vector<Instruction>& instructions = program_.section(section);
  GraphReplay::Runs* runs = graphs_->RunsOf(section, kind);
  for (size_t i = 0; i < instructions.size(); ++i) {
    if (!RunsIn(instructions[i], section, kind)) continue;
    place_.Set(Doing::kRuns, section, i, repetition);
    NoteIssue(instructions[i]);
    if (OnHost(instructions[i].stream)) {
      host_->Issue(section, i);
    } else if (const int32_t run = runs == nullptr ? LaunchRuns::kNone : runs->RunOf(i);
               run == LaunchRuns::kNone) {
      IssueOnGpu(section, i);
    } else if (runs->Begins(i)) {
      graphs_->LaunchRun(*runs, run, stream(instructions[i].stream),
                         [&](size_t launch) { IssueOnGpu(section, launch); });
    }
    NoteExecuted(section, i, repetition, resolved_.section(section)[i]);
  }
  if (!graphs_->capturing()) clock_->EndIssue(stream(Stream::kCompute));
}

// The copies, events and host work of offload, as long as nothing else comes between.
void CudaRank::NoteIssue(const Instruction& instruction) {
  const bool nothing =
      std::holds_alternative<Alloc>(instruction.op) || std::holds_alternative<Free>(instruction.op);
  if (nothing || graphs_->capturing()) return;
  const Stream s = instruction.stream;
  const bool offload = OnHost(s) || s == Stream::kHostToDevice || s == Stream::kDeviceToHost;
  if (offload) {
    clock_->BeginIssue(stream(Stream::kCompute));
  } else {
    clock_->EndIssue(stream(Stream::kCompute));
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
  const auto communicator = communicators_.find({collective.axis, s});
  ZEROPLAN_CHECK(communicator != communicators_.end(), "no communicator for {}", StreamName(s));
  if (!graphs_->capturing()) place_.CountCollectives(1);
  communicator->second.Issue({collective.kind, collective.dtype, resolved_.segments(resolved)},
                             stream(s));
  NoteTraffic(collective, resolved);
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
  NoteTraffic(copy, resolved);
  if (copy.src.buffer == program_.tokens_host_buffer) {
    // External: the host asks for it, whether it is recorded by a graph or directly.
    ZEROPLAN_CUDA(cudaEventRecordWithFlags(
        tokens_copied_.get(), stream(s),
        graphs_->capturing() ? cudaEventRecordExternal : cudaEventRecordDefault));
    tokens_under_way_ = true;
  }
}

// Those of compute are timed, but for the few of a graph, which knows no times.
void CudaRank::IssueWait(EventId event, Stream s) {
  const Stream recorder = events_.recorder(event);
  if (s != Stream::kCompute || graphs_->capturing()) {
    events_.WaitOn(stream(s), event);
    return;
  }
  const bool communication = recorder == Stream::kGather || recorder == Stream::kReduce;
  clock_->BeginWait(stream(s),
                    communication ? StepClock::Cause::kCommunication : StepClock::Cause::kOffload);
  events_.WaitOn(stream(s), event);
  clock_->EndWait(stream(s));
}

void CudaRank::Poll(cudaEvent_t event) {
  Patience patience;
  place_.Turn(Doing::kAwaitsGpu);
  while (true) {
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaSuccess) return place_.Turn(Doing::kRuns);
    if (status != cudaErrorNotReady) ZEROPLAN_CUDA(status);
    host_->RethrowFailure();
    group_.ThrowIfFailed();
    ThrowIfInterrupted();
    if (patience.asked() % 1024 == 1023) {
      for (const auto& [key, communicator] : communicators_) communicator.CheckAsyncError();
    }
    patience.Pause();
  }
}

StepTimes CudaRank::Finish() {
  ZEROPLAN_CUDA(cudaEventRecord(finished_.get(), stream(Stream::kCompute)));
  Poll(finished_.get());
  host_->RethrowFailure();
  StepTimes times = clock_->Settle();
  // What is replayed as a whole does not tell its waits.
  if (!graphs_->ReplaysWhole(Section::kMicroStep)) {
    times.waited_for_others_seconds = times.exposed_comm_seconds;
  }
  return times;
}

void CudaRank::AwaitTokens() {
  if (tokens_under_way_) Poll(tokens_copied_.get());
  tokens_under_way_ = false;
}

std::optional<uint64_t> CudaRank::DeviceUsedBytes() const {
  size_t free_bytes = 0, total_bytes = 0;
  ZEROPLAN_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  return total_bytes - free_bytes;
}

std::array<uint64_t, kSpaces> CudaRank::PatternHighWater() const {
  return ArenaPatternEnds(program_, bases_, arenas_.file());
}

std::span<const std::byte> CudaRank::Peek(BufferId id) {
  const Buffer& buffer = program_.buffers.at(id);
  std::vector<std::byte>& copy = peeked_[id];
  copy.resize(buffer.bytes);
  ZEROPLAN_CUDA(cudaDeviceSynchronize());
  ZEROPLAN_CUDA(cudaMemcpy(copy.data(), bases_[static_cast<size_t>(buffer.space)] + buffer.offset,
                           buffer.bytes, cudaMemcpyDefault));
  return copy;
}

namespace {

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

}  // namespace

std::string LockPinnedArena(const Program& program, EngineOptions& options) {
  const ProcessPlace place = options.group == nullptr ? ProcessPlace{} : options.group->place();
  UseDevice(ChooseDevice(place));
  std::string why;
  options.pinned = PinnedArena::Try(program.arena_bytes[static_cast<size_t>(Space::kPinned)],
                                    place.rank, HostThreads(options, place), why);
  return why;
}

std::unique_ptr<LocalRanks> MakeCudaRanks(const Program& program, const EngineOptions& options) {
  const ProcessPlace place = options.group == nullptr ? ProcessPlace{} : options.group->place();
  ZEROPLAN_CHECK(place.world_size == program.setup.batch.world_size,
                 "{} processes for a program of {} ranks", place.world_size,
                 program.setup.batch.world_size);
  ZEROPLAN_CHECK(options.random_order_seed == 0, "random orders are the CPU backend's");
  return std::make_unique<LocalRanks>(place.rank, 1, LocalRanks::Threads::kCallers, [&](int) {
    return std::make_unique<CudaRank>(program, options, ChooseDevice(place));
  });
}

}  // namespace zeroplan
