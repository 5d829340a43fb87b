// What a runtime's program does, as time: kernels, collectives and copies on its streams, work of
// its Python thread, and the clocks that they run on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/program/axes.h"
#include "planner/runtimes/fitted.h"
#include "planner/runtimes/torch_kernels.h"

namespace zeroplan {

// Seconds of one GPU's step: all micro-steps and the update. step_seconds is the sum of the others.
struct RuntimeTime {
  double step_seconds = 0;
  double compute = 0;  // kernels of the compute stream: model, gradients, update
  // What the compute stream waits for, when it has nothing to run:
  double exposed_communication = 0;  // collectives
  double transfers = 0;              // copies between GPU and host
  double host_update = 0;            // the optimizer on the host, and clipping and casts there
  double host_overhead = 0;          // the Python thread, which launches too late or does not yet
};

// What the time of a step is spent on (RuntimeTime).
enum class TimeCause : uint8_t { kCompute, kCommunication, kTransfer, kHostUpdate, kHostOverhead };
inline constexpr size_t kTimeCauses = 5;

// Work of which only one runs at a time. kLink: collectives within nodes, and all where there are
// no groups; kNetwork: those of groups with at most one rank of each node. kBoth: groups of several
// ranks of several nodes, where there are others beside them.
enum class SharedResource : uint8_t { kNone, kLink, kToDevice, kFromDevice, kNetwork, kBoth };
inline constexpr size_t kSharedResources = 5;  // kBoth is two of them

// Streams are numbered; 0 computes. Times are seconds since the clock was made.
class TorchClock {
 public:
  static constexpr int kComputeStream = 0;
  static constexpr int kStreams = 6;

  // The share of their speed, (0, 1], that kernels keep beside a collective: the first one that
  // starts beside it, whose blocks wait for one more wave since NCCL's hold multiprocessors; and
  // those that follow. `collective`: what a collective keeps while kernels run.
  struct Overlap {
    double first_kernel = 1, kernels = 1, collective = 1;
    double slowest = 1;  // SlowestRank
  };
  explicit TorchClock(const Overlap& overlap) : overlap_(overlap) {}

  // The host is busy.
  void Host(double seconds, TimeCause cause = TimeCause::kHostOverhead);
  // `count` kernels of the compute stream that take `seconds` together, and the host
  // `launch_seconds` to launch.
  void Kernels(double seconds, int count, double launch_seconds);
  // Issued now to a stream; starts when that is free and the resource too.
  void Issue(int stream, double seconds, TimeCause cause,
             SharedResource resource = SharedResource::kNone);
  // cudaStreamWaitEvent of what the other stream has been given so far.
  void StreamWaits(int stream, int other);
  // cudaStreamSynchronize.
  void HostWaits(int stream);
  void HostWaitsForAll();
  // cudaEventRecord on a stream, and cudaEventSynchronize.
  struct Event {
    double seconds = 0;
    TimeCause cause = TimeCause::kCommunication;
  };
  Event Record(int stream) { return {free_at(stream), last_cause_[static_cast<size_t>(stream)]}; }
  void HostWaits(const Event& event) { HostSpan(event.seconds, event.cause); }
  // cudaStreamWaitEvent of that event.
  void StreamWaits(int stream, const Event& event);

  // Times of the compute stream since the clock was made.
  struct Reading {
    double seconds = 0;
    std::array<double, kTimeCauses> by_cause{};  // sums to `seconds`
  };
  const Reading& reading() const { return reading_; }

 private:
  struct Span {
    double begin, end;
    TimeCause cause;
  };
  void Note(TimeCause cause, double seconds) {
    reading_.by_cause[static_cast<size_t>(cause)] += seconds;
  }
  void HostSpan(double end, TimeCause cause);
  // The compute stream is idle until `end`; from `waits_from` on since it waits for `cause`, and
  // before that for the host.
  void Idle(double end, double waits_from, TimeCause cause);
  // When the resource is free.
  double FreeAt(SharedResource resource) const;
  void Take(SharedResource resource, double until);
  double& free_at(int stream) {
    return stream == kComputeStream ? reading_.seconds : free_at_[static_cast<size_t>(stream)];
  }

  Overlap overlap_;
  int64_t collectives_ = 0, met_ = 0;  // issued; the last that a kernel started beside
  double host_ = 0;
  std::vector<Span> host_spans_;  // of the last while
  std::array<double, kStreams> free_at_{};
  std::array<TimeCause, kStreams> last_cause_{};
  std::array<double, kSharedResources> resource_free_{};
  double wait_until_ = 0;  // of the compute stream's next work
  TimeCause wait_cause_ = TimeCause::kCommunication;
  Reading reading_;
};

// What passed between two readings.
RuntimeTime TimeBetween(const TorchClock::Reading& begin, const TorchClock::Reading& end);

// Calls of a runtime's Python code that take the host longer than an operation, at stage 3 of
// DeepSpeed: a module's hooks, of its forward or backward pass; a gather of some parameters, and
// each of them; a parameter that is gathered by itself after an update; a gradient.
enum class PythonCall : uint8_t {
  kModuleHooks,
  kGather,
  kGatheredParam,
  kPersistentParam,
  kGradient,
  kReduction
};
inline constexpr size_t kPythonCalls = 6;

// Groups that a collective runs over: all ranks, those of a rank's axis; or, however ranks are
// grouped, the ranks of a node, and those of the same place in each node. kSequence: those that
// share sequences.
enum class RankGroups : uint8_t { kAll, kShard, kReplica, kNode, kAcrossNodes, kSequence };
inline constexpr size_t kRankGroups = 6;

// A step whose micro-steps were played, or three of them.
class PlayedStep {
 public:
  // Bytes that it copies between GPU and host, both ways, with `micro_steps` in place of the played
  // ones, as Time counts them; without a machine too.
  double CopiedBytes(int64_t micro_steps) const;
  // Its time with `micro_steps` in place of the played ones, each that is added as long as the last
  // but one. Nothing without a machine.
  std::optional<RuntimeTime> Time(int64_t micro_steps) const;

 private:
  friend class TorchTimer;
  bool timed_ = false;
  std::vector<TorchClock::Reading> micro_steps_;
  double copied_ = 0;              // since the step began
  std::vector<double> copied_at_;  // when each micro-step began
  TorchClock::Reading begin_, end_;
};

// Without a machine nothing takes time.
class TorchTimer {
 public:
  TorchTimer(const TorchMachine* machine, const TimeConstants& constants);

  explicit operator bool() const { return machine_ != nullptr; }
  const TimeConstants& constants() const { return constants_; }

  // Sets how ranks are grouped for all that follows; without it they are one shard group.
  void SetGroups(const RankAxes& axes);
  // 1 without a machine.
  int nodes() const { return machine_ ? machine_->shape.nodes() : 1; }
  double arithmetic_bytes() const { return machine_ ? machine_->arithmetic_bytes : 1; }
  // Sets the model for all that follows.
  void SetModel(const TorchModel& model, const TorchRun& run, Dtype dtype);
  void Forward(TorchOp op) {
    if (kernels_) Launch(kernels_->forward(op));
  }
  void Backward(TorchOp op) {
    if (kernels_) Launch(kernels_->backward(op));
  }
  // What an adapter does beside the product `op`.
  void ForwardAdapter(TorchOp op) {
    if (kernels_) Launch(kernels_->adapter_forward(op), constants_.launch);
  }
  void BackwardAdapter(TorchOp op) {
    if (kernels_) Launch(kernels_->adapter_backward(op), constants_.launch);
  }
  // Kernels take no time, while it is so.
  void Skip(bool skip) { skip_ = skip; }
  // Compiled code is entered: a layer, or a module of its own; a layer within
  // torch.utils.checkpoint, which costs eager code.
  void EnterGraph();
  void EnterModuleGraph();
  void EnterCheckpoint();

  // Kernels that read and write `bytes` in all.
  void Memory(double bytes, int launches = 1, int stream = TorchClock::kComputeStream);
  // `full_bytes` as CollectiveCost counts them, of one group; all groups do it at once. Nothing
  // with one rank in a group.
  void Collective(int stream, CollectiveOp op, double full_bytes, int calls = 1,
                  RankGroups groups = RankGroups::kAll);
  void AllToAll(int stream, double full_bytes, RankGroups groups);
  // The sum of `full_bytes` of the last step's collectives, of what was played of it.
  double full_bytes(RankGroups groups) const { return full_bytes_[static_cast<size_t>(groups)]; }
  // Between page-locked memory and the GPU, or pageable.
  void Copy(int stream, bool to_device, double bytes, int calls = 1, bool pageable = false);
  // A rank's part of the node's disks reads or writes, beside what the host does.
  void File(int stream, bool write, double bytes);
  // `count` calls, each as long as TimeConstants says.
  void Python(PythonCall call, int count = 1);
  // How many calls there have been.
  int64_t calls(PythonCall call) const { return calls_[static_cast<size_t>(call)]; }
  void Host(double seconds) {
    if (machine_) clock_.Host(seconds);
  }
  // The optimizer's own work on the host, which reads and writes `bytes` of its memory.
  void HostUpdate(double bytes);
  void StreamWaits(int stream, int other) { clock_.StreamWaits(stream, other); }
  void HostWaits(int stream) { clock_.HostWaits(stream); }
  void HostWaitsForAll() { clock_.HostWaitsForAll(); }
  TorchClock::Event Record(int stream) { return clock_.Record(stream); }
  void HostWaits(const TorchClock::Event& event) { clock_.HostWaits(event); }
  void StreamWaits(int stream, const TorchClock::Event& event) {
    clock_.StreamWaits(stream, event);
  }

  // The step begins now; its micro-steps begin where they are marked.
  void BeginStep();
  void BeginMicroStep();
  void EndStep();
  // The last step.
  const PlayedStep& step() const { return step_; }
  std::optional<RuntimeTime> Time(int64_t micro_steps) const { return step_.Time(micro_steps); }

 private:
  struct Group {
    CollectiveCost cost;
    int ranks;
    SharedResource resource;
  };
  Group GroupOf(const RankAxes& axes, RankAxis axis) const;
  // Null where nothing is sent.
  const Group* Over(RankGroups groups, double full_bytes);
  void Launch(const TorchWork& work) { Launch(work, launch_); }
  void Launch(const TorchWork& work, double launch_seconds);

  const TorchMachine* machine_;
  TimeConstants constants_;
  TorchClock clock_;
  std::vector<Group> groups_;  // by RankGroups; none without a machine
  std::optional<TorchKernels> kernels_;
  bool compiled_ = false, skip_ = false;
  double launch_ = 0;  // of the host, for an operation of the model
  std::array<int64_t, kPythonCalls> calls_{};
  std::array<double, kRankGroups> full_bytes_{};
  PlayedStep step_;
};

}  // namespace zeroplan
